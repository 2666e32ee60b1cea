"""Whether a site fits its partition, as sinfo lists it: nodes, GPUs, kinds of node, time limit."""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.cluster.kind_choice import SHORTEST_JOB_S, kind_text
from ddlbench.cluster.request_check import Finding
from ddlbench.experiment.site import Site
from ddlbench.planning.resources import (
    SPARE_MINUTES,
    job_minutes,
    stage_minutes,
    timeouts_within,
)
from ddlbench.slurm.constraints import holds, is_plain, telling
from ddlbench.slurm.node_kinds import SLICES_ALONE, NodeKind, counted, is_slice, unusable_in


def judge_partition(
    site: Site, known: Sequence[NodeKind], shapes: Sequence[tuple[int, int]] = ()
) -> list[Finding]:
    """Findings about the site's partition.

    Args:
        site: to check.
        known: kinds of node of all partitions.
        shapes: nodes, and devices of each, of the jobs; the site's if left out.
    """
    names = ", ".join(sorted({kind.partition for kind in known if kind.nodes})) or "none"
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
    says = f"{name}, {nodes} node(s), up" if up else f"{name} is down; write another: {names}"
    if up and usable < nodes:
        says += f", {usable} of them usable ({counted(unusable_in(serving))})"
    findings = [Finding("partition", up, says)]
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


def usable_nodes(site: Site, known: Sequence[NodeKind]) -> tuple[int | None, str]:
    """Nodes for the site's jobs that run jobs or could, and in words what others are.

    None if SLURM does not tell.
    """
    kinds = _in_partition(site, known)
    if not kinds:
        return None, ""
    kinds = _serving(site, kinds) or kinds
    return sum(kind.usable for kind in kinds), f"others are not ({counted(unusable_in(kinds))})"


def _wanted(site: Site) -> list[str]:
    return [name for name in str(site.slurm.partition or "").split(",") if name]


def _in_partition(site: Site, known: Sequence[NodeKind]) -> list[NodeKind]:
    wanted = _wanted(site)
    return [k for k in known if k.partition in wanted or (not wanted and k.is_default)]


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
    """Whether nodes have the GPUs that a job asks for."""
    needed, name = _gpus_needed(site), _name(kinds)
    if needed is None:
        return []
    gpu_type = site.slurm.gpu_type
    types = sorted({found for kind in kinds for found, _ in kind.gpus if found})
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
    """Whether cells would train on several slices of one card."""
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
    one = "so that all cells run on one kind"
    if len(types) > 1 and not site.slurm.gpu_type:
        return f"write slurm.gpu_type: one of {', '.join(types)}, {one}"
    told = [
        telling(kind.features, [other.features for other in kinds if other != kind])
        for kind in kinds
    ]
    constraints = list(dict.fromkeys(found for found in told if found))
    if constraints:
        return f"write slurm.constraint: {' or '.join(constraints)}, {one}"
    return "no feature tells them apart, so cells may run on either"


def _time_limit(site: Site, kinds: Sequence[NodeKind]) -> list[Finding]:
    limits = [kind.time_limit_s for kind in kinds]
    # Of several partitions, the one that gives most.
    limit_s = None if None in limits else max((s for s in limits if s is not None), default=None)
    asked = job_minutes(site)
    if limit_s is None or asked * 60 <= limit_s:
        return []
    stage_s, cell_s = timeouts_within(limit_s, site.stage_timeout_s, site.cell_timeout_s)
    remedy = f"write cell_timeout_s: {cell_s}"
    if stage_s < int(site.stage_timeout_s):
        remedy += f" and stage_timeout_s: {stage_s}"
    if limit_s < SHORTEST_JOB_S:
        remedy = "write another slurm.partition"
    parts = (
        f"{stage_minutes(site)} to make its data, {asked - stage_minutes(site) - SPARE_MINUTES} "
        f"to run, {SPARE_MINUTES} to spare"
    )
    says = f"{_name(kinds)} ends jobs after {limit_s / 60:g} min, a cell asks for {asked} ({parts})"
    return [Finding("time limit", False, f"{says}; {remedy}")]
