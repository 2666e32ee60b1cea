"""What `ddlbench doctor` finds: what sinfo says of a site, then what nodes say inside a small job.

::

    sinfo         -> judge_partition -> findings; if all is right:
    job on nodes  -> judge_nodes     -> findings about the job and each node
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddlbench.cluster.probe_job import ask_nodes
from ddlbench.cluster.query import Partition, partitions
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.site import Site
from ddlbench.experiment.units import GB
from ddlbench.planning.resources import (
    SPARE_MINUTES,
    job_minutes,
    stage_minutes,
    timeouts_within,
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: was looked at.
        ok: nothing has to change.
        says: what was found, and, if it is wrong, what to write instead.
        doubtful: cells run as it is, but it may not be what the user means.
    """

    what: str
    ok: bool
    says: str
    doubtful: bool = False


def examine(
    site: Site,
    nodes: int,
    *,
    site_name: str | None = None,
    patience_s: float = 600,
    say: Callable[[str], None] = lambda _sentence: None,
) -> list[Finding]:
    """All findings; the job is only sent when the partition is right.

    Args:
        site: to check.
        nodes: of the job, at most what the site says.
        site_name: by which the nodes read the site again; its name if left out.
        patience_s: how long the job may wait for nodes.
        say: takes sentences about the job while it waits.

    Raises:
        ConfigError: the site has no SLURM, or SLURM does not answer.
    """
    if site.launcher != "slurm":
        raise ConfigError(f"site {site.name} starts its cells on this machine: run make demo")
    findings = judge_partition(site, partitions())
    if not all(finding.ok for finding in findings):
        return findings
    reports, error = ask_nodes(site, site_name or site.name, nodes, patience_s, say)
    return findings + judge_nodes(site, nodes, reports, error)


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
    return findings + _kinds_of_node(site, kinds) + _time_limit(site, kinds)


def _kinds_of_node(site: Site, kinds: list[Partition]) -> list[Finding]:
    """Cells that are compared should not run on different nodes by chance."""
    if site.slurm.get("constraint") or site.slurm.get("gpu_type"):
        return []
    nodes_of_kind: dict[tuple[str, int, str], int] = {}
    for kind in kinds:
        traits = (kind.gpu_type, kind.gpus_per_node, kind.features)
        nodes_of_kind[traits] = nodes_of_kind.get(traits, 0) + kind.nodes
    if len(nodes_of_kind) < 2:
        return []
    listed = "; ".join(
        f"{nodes} node(s) {_kind_in_words(*traits)}" for traits, nodes in nodes_of_kind.items()
    )
    types = sorted({gpu_type for gpu_type, _, _ in nodes_of_kind if gpu_type})
    remedy = "slurm.constraint: one of the features"
    if len(types) > 1:
        remedy = f"slurm.gpu_type: one of {', '.join(types)}"
    says = f"{kinds[0].name} has {listed}; write {remedy}, so that all cells run on one kind"
    return [Finding("kinds of node", True, says, doubtful=True)]


def _kind_in_words(gpu_type: str, gpus: int, features: str) -> str:
    devices = f"with {gpus} {gpu_type or 'GPU'}" if gpus else "without GPU"
    return f"{devices} ({features})" if features else devices


def _time_limit(site: Site, kinds: list[Partition]) -> list[Finding]:
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


def judge_nodes(site: Site, nodes: int, reports: list[dict[str, Any]], error: str) -> list[Finding]:
    """Findings about the job and about each node that answered.

    Args:
        site: to check.
        nodes: that were asked for.
        reports: of ``node_check``, one a node.
        error: why some are missing, as far as anybody knows.
    """
    hosts = ", ".join(report["host"] for report in reports)
    if len(reports) < nodes:
        which = f" ({hosts})" if hosts else ""
        says = f"{len(reports)} of {nodes} nodes answered{which}: {error or 'no reason given'}"
        findings = [Finding("job", False, says)]
    else:
        findings = [Finding("job", True, f"{nodes} of {nodes} node(s): {hosts}")]
    for report in reports:
        findings += [_torch(site, report), _scratch(report), _network(report, nodes)]
    return findings


def _torch(site: Site, report: dict[str, Any]) -> Finding:
    what = f"{report['host']}: torch"
    version = report["torch"]
    if version is None:
        says = "not installed in this environment; run make setup on a shared file system"
        return Finding(what, False, says)
    if site.device == "cpu":
        return Finding(what, True, f"{version}, CPU workers")
    if report["torch_cuda"] is None:
        says = f"{version} is a build for CPUs; envs/README.md says how to get one for GPUs"
        return Finding(what, False, says)
    gpus, wanted = report["gpus"], site.devices_per_node
    broken = [gpu for gpu in gpus if gpu["error"]]
    if broken:
        says = f"GPU {broken[0]['index']} ({broken[0]['name']}) does not compute"
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        remedy = "envs/README.md says which torch fits which GPU"
        return Finding(what, False, f"{says}{more}: {broken[0]['error']}; {remedy}")
    if len(gpus) < (1 if site.devices_share_gpu else wanted):
        seen = f"{len(gpus)} GPU(s)" if gpus else "no GPU"
        says = f"{version} sees {seen}, the site uses {wanted}; does slurm.gres ask for GPUs?"
        if gpus:
            says += " To try strategies on fewer GPUs write devices_share_gpu: true"
        return Finding(what, False, says)
    names = ", ".join(sorted({gpu["name"] for gpu in gpus}))
    says = f"{version}, {len(gpus)} GPU(s) compute: {names}"
    if site.devices_share_gpu:
        says += f"; all {wanted} devices of the node share one: no timing claim between devices"
    return Finding(what, True, says)


def _scratch(report: dict[str, Any]) -> Finding:
    what = f"{report['host']}: scratch"
    if report["scratch_error"]:
        return Finding(what, False, report["scratch_error"])
    free = GB.text(report["scratch_free_bytes"], ".1f")
    return Finding(what, True, f"{report['scratch']}, {free} free")


def _network(report: dict[str, Any], nodes: int) -> Finding:
    what = f"{report['host']}: network"
    if report["address_error"]:
        return Finding(what, False, report["address_error"])
    if report["unreachable"]:
        says = f"cannot reach {', '.join(report['unreachable'])}; write another interface"
        return Finding(what, False, says)
    if report["met"] < nodes:
        says = (
            f"met {report['met']} of {nodes} nodes, itself included; the others did not start in "
            "time, or do not see this folder: put the project on a file system that all nodes share"
        )
        return Finding(what, False, says)
    if str(report.get("own_name_is", "")).startswith("127.") and nodes > 1:
        says = "its name resolves to a loopback address: Horovod between nodes will fail"
        return Finding(what, False, f"{says}; ask for an entry in /etc/hosts or DNS")
    if nodes == 1:
        return Finding(what, True, f"{report['address']}, the only node")
    return Finding(
        what, True, f"{report['address']}, reaches the other {nodes - 1} of {nodes} nodes"
    )
