"""Check a site: what sinfo says of it, then what its nodes say inside a small job."""

from __future__ import annotations

from collections.abc import Callable

from ddlbench.cluster.finding import Finding
from ddlbench.cluster.node_findings import judge_nodes
from ddlbench.cluster.partition_findings import judge_partition
from ddlbench.cluster.probe_job import ask_nodes
from ddlbench.cluster.query import partitions
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.site import Site

__all__ = ["examine"]


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
