"""What can be known of a site before the first job: all that is wrong, at once, in seconds.

::

    this node     SLURM's commands, slurm.extra, scratch, setup, container, folders
    sinfo         partition, nodes, GRES, time limit, kinds of node (``checks.py``)
    sbatch        what it refuses of the largest cell's request (``checks.py``)

Only nodes know their scratch and what their ``setup`` does: what looks wrong here is a doubt.
``ddlbench site doctor`` looks there, with a job.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ddlbench.cluster.checks import (
    Finding,
    judge_limits,
    judge_partition,
    judge_request,
    options_of,
    sbatch_refuses,
    usable_nodes,
)
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import few
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS, expanded, scratch_dir
from ddlbench.experiment.site import Site
from ddlbench.planning.budget import request
from ddlbench.slurm.jobs import NEEDED_COMMANDS, SlurmError, missing_commands, telling_line
from ddlbench.slurm.partitions import (
    accounts,
    enforced_limits,
    node_kinds,
    qos_names,
    unknown_nodes,
)

_SETUP_S = 20.0
# File systems that no other machine sees.
_LOCAL_SYSTEMS = {"tmpfs", "ramfs", "overlay", "devtmpfs", "squashfs", "iso9660"}
# Options with which the executor could not follow the job, beside those that its plugin refuses.
_NOT_FOLLOWED = {
    r"(?<!\S)(--wait|-W)(?![\w-])": "--wait",
    r"(?<!\S)(--array[=\s]|-a\s)": "--array",
    r"(?<!\S)--wrap": "--wrap",
    r"(?<!\S)--test-only": "--test-only",
    r"(?<!\S)--requeue": "--requeue",
    r"(?<!\S)(-M|--clusters?\b)": "--clusters",
    r"(?<!\S)--chdir": "--chdir",
}


def examine(
    site: Site,
    shapes: Iterable[tuple[int, int]] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Finding]:
    """All findings of this node; those that are not ok, or doubtful, need a look.

    Args:
        site: to check.
        shapes: nodes, and devices of each, of the jobs; the largest that the site has if left out.
        environment: the user's shell; this process's if left out.
    """
    missing = missing_commands()
    here = [
        *_extra(site),
        *_scratch(site),
        *_setup(site),
        *_container(site),
        *_folders(site),
        *_account_of_shell(site, os.environ if environment is None else environment),
    ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        says = (
            f"{' and '.join(missing)} {verb} not in PATH; run this on a login node, or load SLURM "
            "first (for example: module load slurm)"
        )
        return [Finding("SLURM", False, says, in_file=False), *here]
    try:
        known = node_kinds()
    except SlurmError as error:
        return [Finding("SLURM", False, str(error), in_file=False), *here]
    largest = _largest(shapes) or [(site.nodes, site.devices_per_node)]
    findings = [*judge_partition(site, known, largest), *_names(site)]
    here += _nodes_by_name(site)
    # Of these keys, sbatch would judge wrong options instead of those of other keys.
    wrong = {f"slurm.{finding.what}" for finding in here if not finding.ok}
    usable, others = usable_nodes(site, known)
    for shape in largest:
        findings += judge_limits(site, known, shape)
    for nodes, devices in largest:
        wanted = nodes
        if usable is not None and usable < nodes:
            if others:
                says = f"{usable} can be used, {others}; cells on {nodes} wait"
                findings.append(Finding("nodes now", True, says, doubtful=True))
            wanted = usable  # sbatch would refuse more in the words of a wrong request
        options = [o for o in options_of(site, wanted, devices) if o.key not in wrong]
        seen = {finding.what for finding in findings if not finding.ok}
        findings += judge_request(options, sbatch_refuses, seen) if wanted else []
    return [*dict.fromkeys(findings), *here]


def _largest(shapes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Shapes of jobs that no other one covers, the largest first."""
    every = sorted(set(shapes), reverse=True)

    def covered(shape: tuple[int, int]) -> bool:
        return any(other != shape and min(other[0] - shape[0], other[1] - shape[1]) >= 0
                   for other in every)  # fmt: skip

    return [shape for shape in every if not covered(shape)]


def is_here() -> bool:
    """Whether this machine has any command of SLURM."""
    return len(missing_commands()) < len(NEEDED_COMMANDS)


def examine_for(
    site: Site,
    cells: Sequence[Cell],
    environment: Mapping[str, str] | None = None,
    further: Sequence[tuple[int, int]] = (),
) -> list[Finding]:
    """:func:`examine` for the jobs of some cells, and ``further`` shapes of jobs."""
    return examine(site, [*map(site.held_geometry, cells), *further], environment)


def _names(site: Site) -> list[Finding]:
    """Whether the accounting knows account and QOS; sbatch takes any where limits are off."""
    findings = []
    for key, names_of, enforced in (
        ("account", accounts, "associations"),
        ("qos", qos_names, "qos"),
    ):
        wanted: str | None = getattr(site.slurm, key)
        names = names_of() if wanted else []
        if wanted and names and str(wanted).lower() not in [name.lower() for name in names]:
            kind = "an account of yours" if key == "account" else "a QOS"
            says = f"{wanted} is not {kind}; write slurm.{key}: one of {', '.join(names)}"
            # Without enforcement SLURM takes any name.
            refused = enforced in enforced_limits()
            findings.append(Finding(key, not refused, says, doubtful=not refused))
    return findings


def _extra(site: Site) -> list[Finding]:
    extra = site.slurm.extra
    if not extra:
        return []
    submitted = request(1, 1, site).extra
    try:
        shlex.split(extra)
    except ValueError as error:
        return [Finding("extra", False, f"{extra!r} has {error}; close the quote")]
    if site.slurm.exclude and re.search(r"--exclude\b|(^|\s)-x", extra):
        says = "excludes nodes beside slurm.exclude, of which sbatch takes one; write all in that"
        return [Finding("extra", False, f"{extra!r} {says}")]
    # The plugin's patterns hold anywhere in the text.
    patterns = {**_refused_by_plugin(), **_NOT_FOLLOWED}
    names = [name for pattern, name in patterns.items() if re.search(pattern, submitted)]
    if not names:
        return []
    what = " and ".join(name if name.startswith("-") else f"the {name}" for name in names)
    says = (
        f"{extra!r} sets {what}, which the workflow sets itself; take it out and use "
        "the site's keys (account, partition, qos, constraint, gres, memory_per_device_mb, "
        "cell_timeout_s)"
    )
    return [Finding("extra", False, says)]


_OPTION_OF_NODES = re.compile(r"(?:--(?:nodelist|exclude)(?:=|$)|-[wx])(.*)")
_NAMES_SHOWN = 6


def _nodes_by_name(site: Site) -> list[Finding]:
    """Whether SLURM knows the nodes that the site names, to take or to leave out."""
    words: list[str] = []
    with suppress(ValueError):  # a quote is open; it is named already
        words = shlex.split(site.slurm.extra)
    options = [
        (match, after)
        for word, after in zip(words, [*words[1:], ""], strict=False)
        if (match := _OPTION_OF_NODES.fullmatch(word))
    ]
    lists = [match[1] or after for match, after in options]
    lists = [names for names in lists if "/" not in names]  # else a file that lists nodes
    findings = []
    for key, names in (("exclude", site.slurm.exclude), ("extra", lists)):
        unknown = unknown_nodes(",".join(names)) if names else []
        if unknown:
            verb = "is not a node" if len(unknown) == 1 else "are not nodes"
            says = f"{few(unknown, _NAMES_SHOWN)} {verb} of this cluster; change slurm.{key}"
            findings.append(Finding(key, False, says))
    return findings


def _refused_by_plugin() -> dict[str, str]:
    try:
        from snakemake_executor_plugin_slurm.validation import (  # noqa: PLC0415 - it may be missing
            get_forbidden_slurm_options,
        )
    except ImportError:
        return {}
    return dict(get_forbidden_slurm_options())


def _scratch(site: Site) -> list[Finding]:
    """Whether the scratch folder can be made on this node, which may have another one."""
    try:
        folder = scratch_dir(site.scratch)
    except ConfigError:
        return []  # a variable that only jobs have
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if there.is_dir() and os.access(there, os.W_OK) and there != Path("/"):
        return []
    what = f"there is no {folder}" if there == Path("/") else f"{there} cannot be written"
    says = f"{what} on this node; check that nodes have it, or write another (/tmp)"
    return [Finding("scratch", True, says, doubtful=True)]


def _setup(site: Site) -> list[Finding]:
    if not site.setup:
        return []
    try:
        done = subprocess.run(
            ["bash", "-c", " && ".join(site.setup)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SETUP_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        says = f"the commands did not end within {_SETUP_S:g} s on this node"
        return [Finding("setup", True, says, doubtful=True)]
    except OSError as error:
        return [Finding("setup", True, str(error), doubtful=True)]
    if done.returncode == 0:
        return []
    words = telling_line(done.stderr or done.stdout)
    says = f"the commands ended with {done.returncode} on this node" + (
        f": {words}" if words else ""
    )
    return [Finding("setup", True, says, doubtful=True)]


def _container(site: Site) -> list[Finding]:
    if site.container is None:
        return []
    with suppress(ConfigError):
        image = expanded(site.container.image, "container.image")
        if "://" not in str(image) and not Path(image).exists():
            says = f"there is no {image} on this node"
            return [Finding("container", True, says, doubtful=True)]
    return []


def _folders(site: Site) -> list[Finding]:
    """Whether nodes can see the project, its results and its Python."""
    findings = []
    here = Path.cwd().resolve()
    if "%" in str(here):
        says = f"{here} has a % in its name, which SLURM replaces in paths of logs; rename it"
        findings.append(Finding("folder", False, says, in_file=False))
    if not os.access(here, os.W_OK):
        says = f"{here} cannot be written; run elsewhere"
        findings.append(Finding("folder", False, says, in_file=False))
    scratch = None
    with suppress(ConfigError):
        scratch = scratch_dir(site.scratch).resolve()
    places = {"project": here, "results": RESULTS.resolve(), "Python": Path(sys.prefix).resolve()}
    for what, folder in places.items():
        system = _file_system(folder)
        if scratch is not None and folder.is_relative_to(scratch) and scratch != Path("/"):
            why = f"lies in the site's scratch, {scratch}"
        elif system in _LOCAL_SYSTEMS:
            why = f"lies on a file system of this node alone ({system})"
        else:
            continue
        says = f"{what}: {folder} {why}; nodes may not see it: use a folder that all nodes share"
        findings.append(Finding("folder", True, says, doubtful=True))
    return findings


def _file_system(folder: Path) -> str:
    """Kind of the file system that holds a folder; empty if unknown."""
    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    for parent in (folder, *folder.parents):
        if parent in mounts:
            return mounts[parent]
    return ""


def _account_of_shell(site: Site, environment: Mapping[str, str]) -> list[Finding]:
    """Defaults of the shell that would have decided what the site file leaves open."""
    findings = []
    for key in ("account", "partition", "qos", "constraint", "reservation"):
        value = environment.get(f"SBATCH_{key.upper()}")
        if value and not getattr(site.slurm, key, None):
            write = f"slurm.extra: --reservation={value}" if key == "reservation" else None
            says = (
                f"SBATCH_{key.upper()}={value} of this shell is not used; write "
                f"{write or f'slurm.{key}: {value}'} into the site's file if jobs need it"
            )
            findings.append(Finding(key, True, says, doubtful=True))
    return findings
