"""What Snakemake's rules and scripts call: logs, the matrix, guards of a run, tables, figures.

::

    Snakefile    check_profile, begin, check_cluster, hold_machine    before any job
    scripts      logged, make_predictions, draw_predictions ...       one function a rule
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import Experiment, parse_experiment
from ddlbench.experiment.errors import ConfigError, file_fault
from ddlbench.experiment.json_text import UnreadableJson, read_object
from ddlbench.experiment.paths import (
    LOG_HEADING,
    RESULTS,
    STAGED_FILE,
    advice_file,
    cell_dir,
    figures_dir,
    prediction_figures_dir,
    predictions_file,
    tables_dir,
)
from ddlbench.experiment.run_id import Writer, begin_run
from ddlbench.experiment.screen import say_error
from ddlbench.experiment.site import Site, load_site
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.slurm.commands import drop_user_defaults
from ddlbench.slurm.jobs import states

if TYPE_CHECKING:
    import pandas as pd


# Sites that this process measures on, with the open lock of this machine; a cluster has none.
_held: dict[str, IO[str] | None] = {}


@contextmanager
def logged(path: str, *explained: type[Exception], attempt: int = 1) -> Iterator[None]:
    """Keep the traceback of what fails in the rule's log, and tell the user one sentence.

    The first line of the log names the job and its attempt, as an earlier job's log may lie there.

    Args:
        path: the rule's log.
        explained: exceptions whose sentence says all; our own traceback would only hide it.
        attempt: of this job.
    """
    log = Path(path)
    now = datetime.now().isoformat(" ", "seconds")
    heading = f"{LOG_HEADING}{Writer.here(attempt)}, {socket.gethostname()}, {now}\n"
    _write_log(log, heading)
    try:
        yield
    except KeyboardInterrupt:
        _write_log(log, f"{heading}stopped by Ctrl-C\n")
        print("ddlbench: stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        one_sentence = isinstance(error, (ConfigError, *explained))
        text = f"{error}\n" if one_sentence else traceback.format_exc()
        _write_log(log, heading + text)
        say_error(error)
        sys.exit(1)


def _write_log(log: Path, text: str) -> None:
    with suppress(OSError):  # a full disk must not hide what went wrong
        log.parent.mkdir(parents=True, exist_ok=True)
        # A file's name that is no UTF-8 may stand in it.
        log.write_text(text, encoding="utf-8", errors="backslashreplace")


def matrix_of(
    config: Mapping[str, Any], where: str = "the configuration"
) -> tuple[Experiment, Site, list[MatrixRow]]:
    """The experiment, its site and its cells.

    Raises:
        ConfigError: something in the configuration is wrong; ``where`` names it.
    """
    experiment = parse_experiment(config, where)
    site = load_site(experiment.site, real_data=experiment.real_data)
    return experiment, site, expand(experiment, site)


def check_profile(site: Site, arguments: Sequence[str]) -> None:
    """Refuse a Snakemake profile that starts jobs elsewhere than the site says.

    Args:
        site: of the experiment.
        arguments: Snakemake's command line.

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
    setting = next((name for name, found in sources.items() if "executor" in found), "")
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


def begin(site: Site, cells: Iterable[str]) -> None:
    """Prepare this process for a run: its name, its environment, and who submits its jobs.

    Args:
        site: of the experiment.
        cells: ids of its cells.

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
    _forget_left_staging(cell_dir(site.name, cell) / STAGED_FILE for cell in cells)
    if "snakemake_executor_plugin_slurm" in sys.modules:
        from ddlbench.cluster.executor import install  # noqa: PLC0415 - it loads the plugin

        install()


def _forget_left_staging(reports: Iterable[Path]) -> None:
    """Delete reports of staged data whose job is gone: Snakemake would take them for data."""
    writers: dict[Path, Writer | None] = {}
    for report in reports:
        try:
            writers[report] = Writer.of(read_object(report))
        except FileNotFoundError:
            continue
        except UnreadableJson:
            writers[report] = None
    known = states(writer.job_id for writer in writers.values() if writer and writer.job_id)
    for report, writer in writers.items():
        job = known.get(writer.job_id or "") if writer else None
        if job is None or not job.may_live:
            report.unlink(missing_ok=True)


# Defaults of the user's shell for SLURM's commands, which were dropped.
_shell: dict[str, str] = {}


def check_cluster(site: Site, cells: Sequence[Cell], arrays: str | None = None) -> None:
    """Say what is wrong with a cluster's site before the first job.

    Args:
        site: of the experiment.
        cells: that may be submitted.
        arrays: what the option --slurm-array-jobs says.

    Raises:
        ConfigError: jobs cannot run as the site says; all that is wrong is named.
    """
    if site.launcher != "slurm" or not cells:
        return
    if arrays:
        raise ConfigError(
            "--slurm-array-jobs: a cell is a group of two rules (its data, then training), which "
            "SLURM's job arrays cannot hold; leave the option out"
        )
    from ddlbench.cluster import preflight  # noqa: PLC0415 - no measured cell needs it

    findings = preflight.examine_for(site, cells, {**os.environ, **_shell})
    doubts = [f"{each.what}: {each.says}" for each in findings if each.ok and each.doubtful]
    for doubt in doubts:
        print(f"ddlbench: note: {doubt}", file=sys.stderr)
    faults = [f"{each.what}: {each.says}" for each in findings if not each.ok]
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigError(
            f"no job was submitted, as site {site.name} needs a change:\n{listed}\n"
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


def make_report(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> list[Path]:
    """Tables, figures and HTML report of the results that are there; returns the figures."""
    # Here, because every measured cell imports this module and none needs what draws.
    from ddlbench.report import figures_for, make_figure, make_tables  # noqa: PLC0415

    tables = tables_dir(site.name, experiment.name)
    make_tables(experiment.name, site.name, rows, RESULTS, tables)
    figures = []
    for name in figures_for(rows):
        figures.append(figures_dir(site.name, experiment.name) / f"{name}.png")
        make_figure(name, tables, figures[-1], site.description, experiment.paper)
    make_page(experiment, site, rows)
    return figures


def make_advice(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> Path:
    """What to train with in each case of the experiment: advice.json, and its figure."""
    from ddlbench.predict.choose import answers_dict, write_choice  # noqa: PLC0415 - as above
    from ddlbench.predict.recommend import answers  # noqa: PLC0415
    from ddlbench.report.drawing import draw_figure  # noqa: PLC0415

    content = answers_dict(site.name, answers(experiment, rows, site))
    path = advice_file(site.name, experiment.name)
    write_choice(content, path)
    if content["answers"]:
        draw_figure("choice", figures_dir(site.name, experiment.name) / "choice.png", content)
    return path


def make_page(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> Path:
    """The advice, and the HTML report of the tables and figures that are there."""
    from ddlbench.report.html_report import make_html_report  # noqa: PLC0415 - as above

    make_advice(experiment, site, rows)
    return make_html_report(experiment.name, site, rows, RESULTS)


@dataclass(frozen=True)
class PredictionTables:
    """What predictions come to; see docs/prediction.md."""

    accuracy: pd.DataFrame
    table_6_1: pd.DataFrame
    table_8_1: pd.DataFrame
    table_8_2: pd.DataFrame
    table_8_1_published: pd.DataFrame
    table_8_2_published: pd.DataFrame


def make_predictions(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> PredictionTables:
    """Ask every predictor about every cell, and write predictions.json and its tables.

    Raises:
        ConfigError: nothing could be predicted; the message says why.
    """
    from ddlbench.predict.accuracy import errors, write_predictions  # noqa: PLC0415 - as above
    from ddlbench.predict.evaluate import predictions  # noqa: PLC0415
    from ddlbench.predict.recommender_score import (  # noqa: PLC0415
        published_cases,
        table_8_1,
        table_8_2,
        with_choices,
    )
    from ddlbench.report.choice_tables import beside_printed, write_choices  # noqa: PLC0415
    from ddlbench.report.figures.micro_batches import table_6_1  # noqa: PLC0415
    from ddlbench.report.tables import write_table  # noqa: PLC0415

    frame = predictions(rows, site)
    cases = table_8_1(frame, site.device)
    rates = table_8_2(cases)
    scored, columns = with_choices(errors(frame), rates), table_6_1(frame)
    as_published = published_cases(frame, site.device)
    tables = PredictionTables(scored, columns, cases, rates, *as_published)
    folder = tables_dir(site.name, experiment.name)
    for field in fields(tables):
        table = getattr(tables, field.name)
        shown = beside_printed(table) if field.name.startswith("table_8") else table
        write_table(folder / f"{field.name}.csv", shown)
    write_choices(cases, rates, as_published, folder)
    write_predictions(frame, site.name, experiment.name)
    return tables


def draw_predictions(
    experiment: Experiment, site: Site, rows: list[MatrixRow], names: Sequence[str] | None = None
) -> list[Path]:
    """Draw figures of the predictions that are there: all that suit the matrix, or those named."""
    from ddlbench.report.drawing import make_prediction_figures  # noqa: PLC0415 - as above
    from ddlbench.report.registry import prediction_figures_for  # noqa: PLC0415

    return make_prediction_figures(
        names or prediction_figures_for(rows),
        predictions_file(site.name, experiment.name),
        tables_dir(site.name, experiment.name),
        prediction_figures_dir(site.name, experiment.name),
        site_description=site.description,
        paper=experiment.paper,
    )


def compare_sites(config: Mapping[str, Any], sites: Sequence[str], where: str) -> Path:
    """Tables of an experiment on several sites, and the figure that compares them.

    Args:
        config: the experiment.
        sites: names of the sites; the first one's folder gets the figure.
        where: names the configuration in messages.
    """
    from ddlbench.report import make_tables  # noqa: PLC0415
    from ddlbench.report.figures.scaling import draw_sites  # noqa: PLC0415
    from ddlbench.report.footer import Context  # noqa: PLC0415
    from ddlbench.report.style import save_figure, style  # noqa: PLC0415
    from ddlbench.report.tables import write_table  # noqa: PLC0415

    tables, contexts = {}, {}
    for name in sites:
        experiment, site, rows = matrix_of({**config, "site": name}, where)
        folder = tables_dir(site.name, experiment.name)
        tables[site.name] = make_tables(experiment.name, site.name, rows, RESULTS, folder)
        contexts[site.name] = Context(site.description, paper=experiment.paper)
    path = figures_dir(next(iter(tables)), experiment.name) / "sites.png"
    with style():
        figure, plotted = draw_sites(tables, contexts)
        write_table(path.with_suffix(".csv"), plotted)
        save_figure(figure, path)
    return path
