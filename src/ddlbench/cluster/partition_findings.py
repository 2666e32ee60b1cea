"""What sinfo says against what the site file says."""

from __future__ import annotations

from ddlbench.cluster.finding import Finding
from ddlbench.cluster.query import Partition
from ddlbench.experiment.site import Site
from ddlbench.planning.job_time import (
    SPARE_MINUTES,
    job_minutes,
    stage_minutes,
    timeouts_within,
)

__all__ = ["judge_partition"]


def judge_partition(site: Site, found: list[Partition]) -> list[Finding]:
    """Findings about the site's partition.

    Args:
        site: to check.
        found: all partitions, one entry a kind of node.
    """
    wanted = site.slurm.get("partition")
    kinds = [p for p in found if p.name == wanted] if wanted else [p for p in found if p.is_default]
    names = ", ".join(sorted({p.name for p in found})) or "none"
    if not kinds:
        what = f"there is no partition {wanted!r}" if wanted else "there is no default partition"
        return [Finding("partition", False, f"{what}; write slurm.partition: one of {names}")]
    name = kinds[0].name
    nodes = sum(p.nodes for p in kinds)
    findings = [
        Finding("partition", any(p.is_up for p in kinds), f"{name}, {nodes} node(s), up")
        if any(p.is_up for p in kinds)
        else Finding("partition", False, f"{name} is down; write another slurm.partition: {names}")
    ]
    if site.nodes > nodes:
        findings.append(Finding("nodes", False, f"{name} has {nodes}; write nodes: {nodes}"))
    gpus = max(p.gpus_per_node for p in kinds)
    if site.slurm.get("gres", "gpu") and gpus != site.devices_per_node:
        ok = gpus > site.devices_per_node
        says = f"{name} has {gpus} a node, the site uses {site.devices_per_node}"
        remedy = "" if ok else f"; write devices_per_node: {gpus}" if gpus else '; write gres: ""'
        findings.append(Finding("GRES", ok, says + remedy))
    return findings + _kinds(site, kinds) + _time(site, kinds)


def _kinds(site: Site, kinds: list[Partition]) -> list[Finding]:
    """Cells that are compared should not run on different nodes by chance."""
    if site.slurm.get("constraint") or site.slurm.get("gpu_type"):
        return []
    told: dict[tuple[str, int, str], int] = {}
    for kind in kinds:
        traits = (kind.gpu_type, kind.gpus_per_node, kind.features)
        told[traits] = told.get(traits, 0) + kind.nodes
    if len(told) < 2:
        return []
    listed = "; ".join(f"{nodes} node(s) {_words(*traits)}" for traits, nodes in told.items())
    types = sorted({gpu_type for gpu_type, _, _ in told if gpu_type})
    remedy = "slurm.constraint: one of the features"
    if len(types) > 1:
        remedy = f"slurm.gpu_type: one of {', '.join(types)}"
    says = f"{kinds[0].name} has {listed}; write {remedy}, so that all cells run on one kind"
    return [Finding("kinds of node", True, says, doubtful=True)]


def _words(gpu_type: str, gpus: int, features: str) -> str:
    devices = f"with {gpus} {gpu_type or 'GPU'}" if gpus else "without GPU"
    return f"{devices} ({features})" if features else devices


def _time(site: Site, kinds: list[Partition]) -> list[Finding]:
    limit_s = min((p.time_limit_s for p in kinds if p.time_limit_s is not None), default=None)
    asked = job_minutes(site)
    if limit_s is None or asked * 60 <= limit_s:
        return []
    stage_s, cell_s = timeouts_within(limit_s, site.stage_timeout_s, site.cell_timeout_s)
    remedy = f"write cell_timeout_s: {cell_s}"
    if stage_s < int(site.stage_timeout_s):
        remedy += f" and stage_timeout_s: {stage_s}"
    if limit_s < (SPARE_MINUTES + 2) * 60:
        remedy = "write another slurm.partition"
    parts = (
        f"{stage_minutes(site)} to make its data, {asked - stage_minutes(site) - SPARE_MINUTES} "
        f"to run, {SPARE_MINUTES} to spare"
    )
    says = (
        f"{kinds[0].name} ends jobs after {limit_s / 60:g} min, a cell asks for {asked} ({parts})"
    )
    return [Finding("time limit", False, f"{says}; {remedy}")]
