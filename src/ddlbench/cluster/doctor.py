"""What `ddlbench doctor` finds: what this node tells of a site, then nodes inside a small job.

::

    this node     -> preflight    -> findings; if none forbids a job:
    job on nodes  -> judge_nodes  -> findings about the job and each node
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlbench.cluster import preflight
from ddlbench.cluster.probe_job import ask_nodes
from ddlbench.cluster.request_check import Finding
from ddlbench.common.errors import ConfigError
from ddlbench.common.units import GB
from ddlbench.experiment.site import Site
from ddlbench.interconnect.nvidia_programs import P2P


def examine(
    site: Site,
    nodes: int,
    *,
    site_name: str | None = None,
    patience_s: float = 600,
    say: Callable[[str], None] = lambda _sentence: None,
) -> list[Finding]:
    """All findings; the job is only sent when nothing forbids it.

    Args:
        site: to check.
        nodes: of the job, at most what the site says.
        site_name: by which the nodes read the site again; its name if left out.
        patience_s: how long the job may wait for nodes.
        say: takes sentences about the job while it waits.

    Raises:
        ConfigError: the site has no SLURM.
    """
    if site.launcher != "slurm":
        raise ConfigError(f"site {site.name} starts its cells on this machine: run make demo")
    findings = preflight.examine(site, [(nodes, site.devices_per_node)])
    if not all(finding.ok for finding in findings):
        return findings
    reports, error = ask_nodes(site, site_name or site.name, nodes, patience_s, say)
    return findings + judge_nodes(site, nodes, reports, error)


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
        if site.device == "cuda" and site.devices_per_node > 1 and not site.devices_share_gpu:
            # NVIDIA's test of links; without it links are measured by our own copies.
            state = report["p2p_state"]
            ok, absent = state != "wrong", state == "absent"
            findings.append(Finding(f"{report['host']}: {P2P}", ok, report["p2p"], doubtful=absent))
    return findings + _alike(reports)


def _alike(reports: list[dict[str, Any]]) -> list[Finding]:
    """What should be the same on all nodes: Python, ddlbench, and the clock."""
    findings = []
    for key, what in (("python", "Python"), ("ddlbench", "ddlbench")):
        values = [(report["host"], report[key]) for report in reports]
        if len({value for _, value in values}) > 1:
            listed = ", ".join(f"{host}: {value}" for host, value in values)
            says = f"nodes differ ({listed}); use one environment that all nodes share"
            findings.append(Finding(what, False, says))
    offsets_s = [report["clock_offset_s"] for report in reports]
    apart_s = max(offsets_s, default=0.0) - min(offsets_s, default=0.0)
    if apart_s > _CLOCKS_APART_S:
        says = (
            f"clocks of the nodes are {apart_s:.0f} s apart; results are not wrong, but times in "
            "logs are: an administrator should look at NTP"
        )
        findings.append(Finding("clocks", True, says, doubtful=True))
    return findings


_CLOCKS_APART_S = 5.0


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
