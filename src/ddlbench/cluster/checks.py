"""The checks of a site: against its partition, against sbatch, and on each node.

The partition is as sinfo lists it: nodes, GPUs, kinds of node, time limit. What sbatch says of the
job of a cell is known before one is submitted::

    options of the site --> sbatch --test-only -- taken --> nothing to say
                              ^                '- refused -> which key is it? name it, take it out
                              '-----------------------------------'

So one mistake does not hide the next. Where sbatch only says that no node fits, each option is
added alone to what it takes.

``python -m ddlbench.cluster.checks`` checks what a worker needs on a node, for
`ddlbench site doctor`. srun starts one task a node. Each writes a report into a shared folder.
Once all reports exist, it tries to connect to every other node.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddlbench
from ddlbench.cluster.kind_choice import SHORTEST_JOB_S, kind_text
from ddlbench.common.document import read_json, write_json
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.site import Site
from ddlbench.interconnect.nvidia_programs import state_of_p2p
from ddlbench.planning.budget import (
    SPARE_MINUTES,
    data_minutes,
    job_minutes,
    request,
    timeouts_within,
)
from ddlbench.runtime.addresses import address_of
from ddlbench.runtime.launch import visible_devices
from ddlbench.slurm import partitions
from ddlbench.slurm.jobs import SlurmError, ask
from ddlbench.slurm.partition_limits import partition_limits
from ddlbench.slurm.partitions import (
    SLICES_ALONE,
    NodeKind,
    holds,
    in_words,
    is_plain,
    is_slice,
    telling,
    unusable_in,
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: was looked at.
        ok: nothing has to change.
        says: what it is, and, if it is wrong, what to write instead.
        doubtful: jobs may run as it is, but it is perhaps not what the user means.
        in_file: what is wrong stands in the site's file.
    """

    what: str
    ok: bool
    says: str
    doubtful: bool = False
    in_file: bool = True


def judge_partition(
    site: Site, known: Sequence[NodeKind], shapes: Sequence[tuple[int, int]] = ()
) -> list[Finding]:
    """Findings about the site's partition, for jobs of these (nodes, devices of each)."""
    serve = {kind.partition for kind in known if kind.nodes and kind.is_up}
    names = ", ".join(sorted(serve)) or "none"
    wanted = _wanted(site)
    unknown = [name for name in wanted if name not in {kind.partition for kind in known}]
    if unknown:
        says = f"there is no partition {unknown[0]!r}; write slurm.partition: one of {names}"
        return [Finding("partition", False, says)]
    kinds = _in_partition(site, known)
    if not kinds:
        says = f"there is no default partition; write slurm.partition: one of {names}"
        return [Finding("partition", True, says, doubtful=True)]
    name = _name(kinds)
    serving = _serving(site, kinds) or kinds
    usable, nodes = sum(kind.usable for kind in serving), sum(kind.nodes for kind in serving)
    up = any(kind.is_up for kind in kinds)
    says = f"{name}, {counted(nodes, 'node')}, up"
    if not up:
        says = f"{name} is down; write another slurm.partition: one of {names}"
    elif usable < nodes:
        says += f", {usable} of them usable ({in_words(unusable_in(serving))})"
    findings = [Finding("partition", up, says)]
    down = [other for other in wanted if other not in _name(kinds).split(",")]
    if down:
        verb = "is" if len(down) == 1 else "are"
        says = f"{', '.join(down)} {verb} down; jobs run in {name} alone"
        findings.append(Finding("partition", True, says, doubtful=True))
    most = max((nodes for nodes, _ in shapes), default=site.nodes)
    if site.nodes > nodes:
        fits = most <= nodes
        says = f"{name} has {nodes}; write nodes: {nodes}" if nodes else f"{name} has none"
        findings.append(Finding("nodes", fits, says, doubtful=fits))
    return [
        *findings,
        *_gpus(site, kinds),
        *_slices(site, kinds),
        *_kinds_of_node(site, serving),
        *_time_limit(site, kinds),
    ]


def judge_limits(site: Site, known: Sequence[NodeKind], shape: tuple[int, int]) -> list[Finding]:
    """Findings about what the site's partition gives one job of this (nodes, devices of each)."""
    nodes, devices = shape
    wanted = request(nodes, devices, site)
    cpus = devices * wanted.cpus_per_task
    kinds = _in_partition(site, known)
    node_cpus = max((kind.cpus_per_node for kind in _serving(site, kinds) or kinds), default=0)
    over = [
        (limits, limits.refused(nodes, cpus, wanted.mem_mb, node_cpus))
        for limits in partition_limits(_name(kinds).split(","))
    ]
    # Of several partitions one that takes the job is enough.
    if not over or not all(refused for _, refused in over):
        return []
    limits, refused = min(over, key=lambda each: len(each[1]))
    findings = []
    for what, (requested, limit) in refused.items():
        key, most, value = {
            "nodes": ("nodes", counted(limit, "node"), limit),
            "cpus": ("cpus_per_device", f"{counted(limit, 'core')} of a node", limit // devices),
            "memory_mb": ("memory_per_device_mb", f"{limit} MB on a node", limit // devices),
        }[what]
        remedy = f"write {key}: {value}" if value else "write fewer devices_per_node"
        says = (
            f"{limits.partition} gives a job at most {most}, one on "
            f"{nodes}x{devices} asks for {requested}; {remedy}, or another slurm.partition"
        )
        findings.append(Finding(key, False, says))
    return findings


def usable_nodes(site: Site, known: Sequence[NodeKind]) -> tuple[int | None, str]:
    """Nodes for the site's jobs that run jobs or could, and in words what others are.

    None if SLURM does not tell; no words if there are no others.
    """
    kinds = _in_partition(site, known)
    if not kinds:
        return None, ""
    kinds = _serving(site, kinds) or kinds
    others = unusable_in(kinds)
    words = f"others are not ({in_words(others)})" if others else ""
    return sum(kind.usable for kind in kinds), words


def _wanted(site: Site) -> list[str]:
    return [name for name in str(site.slurm.partition or "").split(",") if name]


def _in_partition(site: Site, known: Sequence[NodeKind]) -> list[NodeKind]:
    """Kinds of node of the site's partitions that are up; of all of them if none is."""
    wanted = _wanted(site)
    kinds = [k for k in known if k.partition in wanted or (not wanted and k.is_default)]
    return [kind for kind in kinds if kind.is_up] or kinds


def _name(kinds: Sequence[NodeKind]) -> str:
    return ",".join(dict.fromkeys(kind.partition for kind in kinds))


def _gpus_needed(site: Site) -> int | None:
    """GPUs that a job takes of a node; None if it does not ask for them as GRES gpu."""
    if site.slurm.gres != "gpu":
        return None
    return 1 if site.devices_share_gpu else site.devices_per_node


def _serving(site: Site, kinds: Sequence[NodeKind]) -> list[NodeKind]:
    """Kinds of node on which the site's jobs can run."""
    needed = _gpus_needed(site) or 0
    memory_mb = (site.memory_per_device_mb or 0) * site.devices_per_node
    return [
        kind
        for kind in kinds
        if kind.gpus_of(site.slurm.gpu_type) >= needed
        and holds(str(site.slurm.constraint or ""), kind.all_features)
        and (kind.memory_mb is None or kind.memory_mb >= memory_mb)
    ]


def _gpus(site: Site, kinds: Sequence[NodeKind]) -> list[Finding]:
    needed, name = _gpus_needed(site), _name(kinds)
    if needed is None:
        return []
    gpu_type = site.slurm.gpu_type
    types = sorted({type_name for kind in kinds for type_name, _ in kind.gpus if type_name})
    if gpu_type and types and gpu_type not in types:
        says = f"{name} has no {gpu_type}; write slurm.gpu_type: one of {', '.join(types)}"
        return [Finding("GRES", False, says)]
    gpus = max(kind.gpus_of(gpu_type) for kind in kinds)
    if gpus == needed:
        return []
    says = f"{name} has {gpus} a node, the site uses {needed}"
    remedy = f"; write devices_per_node: {gpus}" if gpus else '; write gres: ""'
    enough = gpus > needed
    return [Finding("GRES", enough, says if enough else says + remedy)]


def _slices(site: Site, kinds: Sequence[NodeKind]) -> list[Finding]:
    needed = _gpus_needed(site)
    if needed is None or needed < _SEVERAL:
        return []
    serving = _serving(site, kinds) or kinds
    wanted = site.slurm.gpu_type
    types = {name for kind in serving for name, _ in kind.gpus if wanted in (None, "", name)}
    cut = sorted(name for name in types if is_slice(name))
    if not cut:
        return []
    whole = sorted({name for kind in kinds for name, _ in kind.gpus if not is_slice(name)} - {""})
    says = f"{', '.join(cut)}: {SLICES_ALONE}; write devices_per_node: 1"
    if whole:
        says += f", or a whole GPU as slurm.gpu_type: {' or '.join(whole)}"
    return [Finding("MIG slices", True, says, doubtful=True)]


_SEVERAL = 2


def _kinds_of_node(site: Site, kinds: Sequence[NodeKind]) -> list[Finding]:
    """Cells that are compared should not run on different nodes by chance."""
    constraint, gpu_type = site.slurm.constraint, site.slurm.gpu_type
    if constraint and not is_plain(constraint):
        return []  # as [rack1|rack2]: the user has thought of it
    traits: dict[tuple[object, ...], list[NodeKind]] = {}
    for kind in kinds:
        gpus = kind.gpus_of(gpu_type) if gpu_type else kind.gpus
        traits.setdefault((gpus, frozenset(kind.features), kind.memory_mb), []).append(kind)
    if len(traits) < _SEVERAL:
        return []
    listed = "; ".join(kind_text(same) for same in traits.values())
    says = f"{_name(kinds)} has {listed}; {_remedy(site, [same[0] for same in traits.values()])}"
    return [Finding("kinds of node", True, says, doubtful=True)]


def _remedy(site: Site, kinds: Sequence[NodeKind]) -> str:
    """What to write, so that all cells run on one of several kinds of node."""
    types = sorted({name for kind in kinds for name, _ in kind.gpus if name})
    choose_one = "so that all cells run on one kind"
    if len(types) > 1 and not site.slurm.gpu_type:
        return f"write slurm.gpu_type: one of {', '.join(types)}, {choose_one}"
    constraints_of_types = [
        telling(kind.features, [other.features for other in kinds if other != kind])
        for kind in kinds
    ]
    constraints = list(
        dict.fromkeys(constraint for constraint in constraints_of_types if constraint)
    )
    if constraints:
        return f"write slurm.constraint: {' or '.join(constraints)}, {choose_one}"
    return "no feature tells them apart, so cells may run on either"


def _time_limit(site: Site, kinds: Sequence[NodeKind]) -> list[Finding]:
    limits = [kind.time_limit_s for kind in kinds]
    # Of several partitions, the one that gives most.
    limit_s = None if None in limits else max((s for s in limits if s is not None), default=None)
    wanted_minutes = job_minutes(site)
    if limit_s is None or wanted_minutes * 60 <= limit_s:
        return []
    stage_s, cell_s = timeouts_within(limit_s, site.stage_timeout_s, site.cell_timeout_s)
    remedy = f"write cell_timeout_s: {cell_s}"
    if stage_s < int(site.stage_timeout_s):
        remedy += f" and stage_timeout_s: {stage_s}"
    if limit_s < SHORTEST_JOB_S:
        remedy = "write another slurm.partition"
    parts = (
        f"{data_minutes(site)} to make its data, "
        f"{wanted_minutes - data_minutes(site) - SPARE_MINUTES} to run, {SPARE_MINUTES} to spare"
    )
    says = (
        f"{_name(kinds)} ends jobs after {limit_s / 60:g} min, a cell asks for {wanted_minutes} "
        f"({parts})"
    )
    return [Finding("time limit", False, f"{says}; {remedy}")]


_TEST_S = 20.0


@dataclass(frozen=True)
class Option:
    """An option of sbatch, as ``--partition=gpu``, and the key of the site file that decides it."""

    key: str
    text: str


def options_of(site: Site, nodes: int, devices_per_node: int) -> list[Option]:
    """What the job of a cell asks sbatch for, with the key that decides each part."""
    wanted = request(nodes, devices_per_node, site)
    options = {
        "slurm.account": ("account", wanted.account),
        "slurm.partition": ("partition", wanted.partition),
        "slurm.qos": ("qos", wanted.qos),
        "slurm.constraint": ("constraint", wanted.constraint),
        "slurm.gpu_type" if site.slurm.gpu_type else "slurm.gres": ("gres", wanted.gres),
        "memory_per_device_mb": ("mem", wanted.mem_mb or None),
        "cell_timeout_s": ("time", job_minutes(site)),
        "cpus_per_device": ("cpus-per-task", wanted.cpus_per_task),
        "devices_per_node": ("ntasks-per-node", devices_per_node),
        "nodes": ("nodes", wanted.nodes),
    }
    listed = [
        Option(key, f"--{name}={value}")
        for key, (name, value) in options.items()
        if value is not None
    ]
    with suppress(ValueError):
        extra = shlex.split(site.slurm.extra)
        listed += [Option("slurm.extra", text) for text in extra]
    if site.slurm.exclusive:
        listed.append(Option("slurm.exclusive", "--exclusive"))
    if site.slurm.exclude:
        listed.append(Option("slurm.exclude", f"--exclude={','.join(site.slurm.exclude)}"))
    return listed


def sbatch_refuses(options: Sequence[str]) -> str:
    """What sbatch says against a job with these options; empty if it would take it.

    Raises:
        SlurmError: it does not answer.
    """
    try:
        ask(["sbatch", "--test-only", *options, "--wrap=true"], patience_s=_TEST_S)
    except SlurmError as error:
        if not error.words:
            raise
        return error.words
    return ""


def judge_request(
    options: Sequence[Option], refuses: Callable[[Sequence[str]], str], seen: set[str]
) -> list[Finding]:
    """What sbatch refuses, one finding a key; of what sinfo told already it would only repeat."""
    left = list(options)
    findings: list[Finding] = []
    while left:
        named = seen | {finding.what for finding in findings}
        try:
            words = refuses([option.text for option in left])
            unfit = partitions.fits_no_node(words)
            keys = _unfit_keys(left, refuses, named) if unfit else _keys_of(words)
        except SlurmError as error:
            return [*findings, Finding("sbatch", True, str(error), doubtful=True)]
        if not words:
            break
        if partitions.lacks_nodes(words):
            says = f"{words}; cells on so many nodes wait until they are back"
            return [*findings, Finding("nodes now", True, says, doubtful=True)]
        if partitions.limits_jobs(words):
            later = partitions.may_pass(words)
            says = f"{words}" + ("; jobs are submitted as others end" if later else "")
            return [*findings, Finding("limit", later, says, doubtful=later)]
        guilty = [option for option in left if option.key in keys]
        if not guilty:
            # It follows from a mistake that is named already, or nobody knows whose it is: the
            # submission itself will tell.
            if not named:
                says = f"it refuses the job: {words}"
                findings.append(Finding("sbatch", True, says, doubtful=True))
            return findings
        left = [option for option in left if option not in guilty]
        for key in dict.fromkeys(option.key for option in guilty):
            what = _WHAT.get(key, key.removeprefix("slurm."))
            if what not in named:
                refused = " ".join(option.text for option in guilty if option.key == key)
                findings.append(Finding(what, False, f"{refused}: {words}; change {key}"))
    return findings


# Names that judge_partition gives to what keys decide.
_WHAT = {"slurm.gres": "GRES", "slurm.gpu_type": "GRES", "cell_timeout_s": "time limit"}
# A wrong number of devices asks for wrong amounts of these.
_OF_DEVICES = ("memory_per_device_mb", "devices_per_node", "cpus_per_device")
# What a node must have, from the plainest mistake to those that may follow from others.
_OF_A_NODE = ("nodes", "slurm.constraint", "slurm.gres", "slurm.gpu_type", *_OF_DEVICES)


def _unfit_keys(
    options: Sequence[Option], refuses: Callable[[Sequence[str]], str], named: set[str]
) -> set[str]:
    """Keys that no node satisfies: each is added to those that a node does satisfy.

    What follows from findings that are ``named`` is left out.
    """
    if "partition" in named:  # without it sbatch looks at the nodes of another one
        return set()
    taken = [option.text for option in options if option.key not in _OF_A_NODE]
    if partitions.fits_no_node(refuses(taken)):
        without = [o.text for o in options if o.key not in ("slurm.exclude", *_OF_A_NODE)]
        excluded = without != taken and not partitions.fits_no_node(refuses(without))
        return {"slurm.exclude" if excluded else "slurm.extra"}
    unfit = set()
    for key in _OF_A_NODE:
        added = [option.text for option in options if option.key == key]
        if added and partitions.fits_no_node(refuses([*taken, *added])):
            unfit.add(key)
        else:
            taken += added
    return unfit - set(_OF_DEVICES) if "GRES" in named else unfit


def _keys_of(words: str) -> set[str]:
    key = partitions.key_of(words)
    if key == "slurm.gres":
        return {"slurm.gres", "slurm.gpu_type"}
    return set(key.split(partitions.EITHER)) if key else set()


def visible_gpus() -> list[dict[str, Any]]:
    """``index``, ``name`` and ``error`` (None if the GPU works) of every GPU that torch sees."""
    import torch  # noqa: PLC0415 - its absence is one of the doctor's findings

    gpus = []
    for index in range(torch.cuda.device_count()):
        try:
            name = torch.cuda.get_device_name(index)
        except Exception as error:  # the user must see any error
            name = type(error).__name__
        gpus.append({"index": index, "name": name, "error": failure_of(f"cuda:{index}")})
    return gpus


def failure_of(device: str) -> str | None:
    """Run a convolution with a known result, forward and backward; returns the error, or None.

    A GPU that the driver lists may still fail: this build of torch may lack kernels for it, or the
    driver may be too old.
    """
    import torch  # noqa: PLC0415

    # Each of the 2 * 4 * 6 * 6 outputs sums 27 ones. It adds 1 to the gradient of each of its 27
    # inputs, so the gradients have the same sum.
    known = 2 * 4 * 6 * 6 * 27
    try:
        images = torch.ones(2, 3, 8, 8, device=device, requires_grad=True)
        output = torch.nn.functional.conv2d(images, torch.ones(4, 3, 3, 3, device=device)).sum()
        output.backward()
        assert images.grad is not None
        sums = (output.item(), images.grad.sum().item())
    except Exception as error:  # the user must see any error
        return " ".join(str(error).split())[:300] or type(error).__name__
    if sums != (known, known):
        return f"a convolution gives {sums[0]:g} and {sums[1]:g} instead of {known}"
    return None


# Importing torch may be fast on one node, and slow on another that reads it over the network.
_WAIT_S = 180.0


def main(arguments: str) -> None:
    """Check this node, then the connections to the others."""
    request = json.loads(arguments)
    reports = Path(request["reports"])
    host = socket.gethostname()
    # Two nodes may have one host name, but each task has a number.
    task = os.environ.get("SLURM_PROCID", "0")
    report = {"host": host, "task": task, **_node(request)}
    with socket.create_server((report["address"] or "127.0.0.1", 0)) as server:
        wrote_s = time.time()
        report["port"] = server.getsockname()[1]
        write_json(reports / f"{task}.node.json", report)
        _wait_for(reports, "*.node.json", int(request["nodes"]))
        written_s = (reports / f"{task}.node.json").stat().st_mtime
        report["clock_offset_s"] = wrote_s - written_s
        others = [read_json(p) for p in sorted(reports.glob("*.node.json"))]
        report["unreachable"] = [
            f"{other['host']} ({other['address']})"
            for other in others
            if other["task"] != task and not _reachable(other)
        ]
        report["met"] = len(others)
        write_json(reports / f"{task}.done.json", report)
        _wait_for(reports, "*.done.json", len(others))


def _node(request: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "address": None,
        "address_error": None,
        "python": platform.python_version(),
        "ddlbench": ddlbench.__version__,
    }
    try:
        report["address"] = address_of(request["interface"])
    except ConfigError as error:
        report["address_error"] = str(error)
    with suppress(OSError):
        report["own_name_is"] = socket.gethostbyname(socket.gethostname())
    _, visible = visible_devices()
    report["visible_gpus"] = None if visible is None else ",".join(visible)
    if request["device"] == "cuda":
        report["p2p_state"], report["p2p"] = state_of_p2p(request["interconnect"])
    return {**report, **_torch(request["device"]), **_scratch(request["scratch"])}


def _torch(device: str) -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"torch": None, "torch_cuda": None, "gpus": []}
    import torch  # noqa: PLC0415 - the report says if it is absent

    gpus = visible_gpus() if device == "cuda" else []
    # Of AMD's GPUs, which torch calls cuda, too.
    computes = torch.version.cuda or getattr(torch.version, "hip", None)
    return {"torch": torch.__version__, "torch_cuda": computes, "gpus": gpus}


def _scratch(template: str) -> dict[str, Any]:
    try:
        folder = scratch_dir(template)
    except ConfigError as error:
        return {"scratch": template, "scratch_error": str(error), "scratch_free_bytes": 0}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".ddlbench-doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        reason = f"{folder} cannot be used: {error}; write another scratch"
        return {"scratch": str(folder), "scratch_error": reason, "scratch_free_bytes": 0}
    return {"scratch": str(folder), "scratch_error": None, "scratch_free_bytes": free}


def _wait_for(reports: Path, pattern: str, count: int) -> None:
    limit = time.monotonic() + _WAIT_S
    while len(list(reports.glob(pattern))) < count and time.monotonic() < limit:
        time.sleep(0.2)


def _reachable(other: dict[str, Any]) -> bool:
    if other["address"] is None:
        return False
    with suppress(OSError), socket.create_connection((other["address"], other["port"]), timeout=5):
        return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
