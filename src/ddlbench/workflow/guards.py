"""Guards of a run, before its first job: the profile, the cluster, and who uses this machine.

::

    Snakefile is read    check_profile, begin
    jobs are known       hold_machine, check_cluster
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import IO

from ddlbench.common.errors import ConfigError, file_fault
from ddlbench.common.owner import begin_run
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import Site
from ddlbench.slurm.jobs import drop_user_defaults

# Sites that this process measures on, with the open lock of this machine; a cluster has none.
_held: dict[str, IO[str] | None] = {}


def check_config_files(files: Sequence[str]) -> None:
    """Refuse a target that Snakemake took for a configuration, as it stands after one.

    Raises:
        ConfigError: a file of results is among them.
    """
    for file in files:
        if Path(file).parts[:1] == RESULTS.parts:
            raise ConfigError(
                f"Snakemake takes {file} for a configuration, as it stands after --configfile; "
                f"write targets first: snakemake {file} --profile ... --configfile FILE"
            )


def check_profile(site: Site, arguments: Sequence[str]) -> None:
    """Refuse a Snakemake profile that starts jobs elsewhere than the site says.

    Raises:
        ConfigError: a site of this machine would be submitted, or a cluster's run here.
    """
    executor, source, has_profile = _executor_of(arguments)
    if executor in ("dryrun", "touch"):
        return
    if site.launcher == "local" and executor != "local":
        target = "SLURM" if executor == "slurm" else f"executor {executor}"
        raise ConfigError(
            f"site {site.name} measures on this machine, but {source} submits to {target}; write "
            "--profile profiles/local, or name a cluster's site: --config site=NAME"
        )
    allocated = "SLURM_JOB_ID" in os.environ
    if site.launcher == "slurm" and executor == "local" and has_profile and not allocated:
        raise ConfigError(
            f"site {site.name} is a SLURM cluster, but {source} runs jobs on this machine; write "
            "--profile profiles/slurm, or measure on this machine: --config site=local"
        )


def _executor_of(arguments: Sequence[str]) -> tuple[str, str, bool]:
    """Snakemake's executor, what sets it, and whether there is any profile.

    Snakemake's own parser is asked: a profile has many names and places (``--profile``, also
    several times, ``SNAKEMAKE_PROFILE``, ``--workflow-profile``, ``profiles/default``, folders of
    the user and the site, ``config.v8+.yaml``), and the command line goes before all of them.
    """
    from snakemake.cli import parse_args  # noqa: PLC0415 - slow; it is loaded where rules run

    try:
        with _in_folder_of_start(arguments), redirect_stderr(io.StringIO()):
            parser, options = parse_args(list(arguments))
    except SystemExit:
        raise ConfigError(
            "the profile cannot be read again from --directory; write its absolute path"
        ) from None
    sources = parser.get_source_to_settings_dict()  # "command_line", "config_file|PATH", ...
    files = [name.partition("|")[2] for name in sources if name.startswith("config_file|")]
    setting = next(
        (name for name, setting_source in sources.items() if "executor" in setting_source), ""
    )
    # The parser leaves out of a file's settings what the command line says.
    by_hand = options.executor is not None and not setting
    source = "your command" if by_hand or not files else setting.partition("|")[2] or files[-1]
    return options.executor or "local", source, bool(files)


@contextmanager
def _in_folder_of_start(arguments: Sequence[str]) -> Iterator[None]:
    """Go to where the shell started Snakemake, if ``--directory`` led it elsewhere."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--directory", "-d")
    known, _ = parser.parse_known_args(arguments)
    start = Path(os.environ.get("PWD", "."))
    with chdir(start) if known.directory and start.is_dir() else nullcontext():
        yield


def begin(site: Site) -> None:
    """Prepare this process for a run: its name, its environment, and who submits its jobs.

    Raises:
        ConfigError: nothing can be written here.
    """
    try:
        begin_run(next(f for f in (RESULTS / site.name, RESULTS, Path()) if f.is_dir()))
    except OSError as error:
        raise ConfigError(f"results cannot be written here: {file_fault(error) or error}") from None
    if site.launcher != "slurm":
        return
    _shell.update(drop_user_defaults())
    if "snakemake_executor_plugin_slurm" in sys.modules:
        from ddlbench.cluster.executor import install  # noqa: PLC0415 - it loads the plugin

        install(site.slurm.array_tasks)


# Defaults of the user's shell for SLURM's commands, which were dropped.
_shell: dict[str, str] = {}


def check_cluster(
    site: Site,
    cells: Sequence[Cell],
    arrays: str | None = None,
    further: Sequence[tuple[int, int]] = (),
) -> None:
    """Say what is wrong with a cluster's site before the first job.

    ``arrays`` is what the option --slurm-array-jobs says, ``further`` are nodes, and devices of
    each, of jobs beside the cells'.

    Raises:
        ConfigError: jobs cannot run as the site says; all that is wrong is named.
    """
    if site.launcher != "slurm" or not cells:
        return
    if arrays:
        raise ConfigError(
            "--slurm-array-jobs: leave the option out; cells of one shape are a job array without "
            "it (slurm.array_tasks in the site's file)"
        )

    from ddlbench.cluster import preflight  # noqa: PLC0415 - no measured cell needs it

    findings = preflight.examine_for(site, cells, {**os.environ, **_shell}, further)
    doubts = [f"{each.what}: {each.says}" for each in findings if each.ok and each.doubtful]
    for doubt in doubts:
        print(f"ddlbench: note: {doubt}", file=sys.stderr)
    faults = [each for each in findings if not each.ok]
    if faults:
        listed = "\n".join(f"  - {fault.what}: {fault.says}" for fault in faults)
        in_file = any(fault.in_file for fault in faults)
        needs = f", as site {site.name} needs a change" if in_file else ""
        raise ConfigError(
            f"no job was submitted{needs}:\n{listed}\n"
            f"`ddlbench plan --site {site.name}` checks it again"
        )


def hold_machine(site: Site) -> None:
    """Keep other runs off this machine while cells are measured on it, until this process ends.

    The kernel drops the lock with its process, so a killed run leaves nothing behind. On a cluster
    SLURM keeps cells apart.

    Raises:
        ConfigError: another run measures here.
    """
    _held[site.name] = _locked(site) if site.launcher == "local" else None


def holds_machine(site: Site) -> bool:
    """Whether this process has begun to measure on a site, after :func:`hold_machine`."""
    return site.name in _held


def _locked(site: Site) -> IO[str]:
    path = RESULTS / site.name / ".running"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        raise ConfigError(
            f"process {file.read().strip() or 'unknown'} measures on this machine already; "
            "wait for it or end it, as two runs at once would disturb each other"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
