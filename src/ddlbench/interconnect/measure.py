"""links.json of one fabric: given by hand, or measured inside a job that holds the nodes.

::

    run_rank_job(node_pairs)   pairs within each node     -+
    run_rank_job(sweep)        groups of ranks             +-> assemble -> slow pairs -> links.json
    run_rank_job(rank_pairs)   pairs of all ranks         -+
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.links import Links, LinkSweep, PairMatrix, write_links
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.interconnect.assemble import given_parts, node_type_pairs, sweeps_of, world_pairs
from ddlbench.interconnect.pair_matrix import with_slow_pairs
from ddlbench.interconnect.worlds import is_given, links_geometry, worlds
from ddlbench.runtime.environment import driver_provenance
from ddlbench.runtime.fabric import (
    Fabric,
    FabricUnfit,
    FabricUnsupported,
    fabric_up,
    fault_of,
)
from ddlbench.runtime.rank_job import RankJobFailed, run_rank_job

_LARGEST_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
_SWEEP_BUDGET_S = 3.0
_PAIRS_BUDGET_S = 600.0
_MODULES = "ddlbench.interconnect"


class LinksFailed(ConfigError):  # noqa: N818 - what happened
    """The links could not be measured; one sentence says why."""


def largest_bytes(site: Site) -> int:
    """Largest message of a sweep."""
    return int(site.interconnect.get("largest_bytes") or _LARGEST_BYTES[site.device])


@dataclass
class _Found:
    """What the tools have found so far."""

    pairs: list[PairMatrix] = field(default_factory=list)
    sweeps: tuple[LinkSweep, ...] = ()
    notes: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)


def measure_links(site: Site, fabric: str, path: Path) -> Links:
    """Measure the links of ``site`` under ``fabric``, or take them from the site file.

    Args:
        site: where; on a cluster this process runs in a job of all its nodes and devices.
        fabric: link condition; in force now, or emulated where the site file says what it is.
        path: of links.json; log files of the tools go beside it.

    Returns:
        what was written to ``path``.

    Raises:
        LinksFailed: a process of a tool failed, or there are no two devices to measure between.
        ConfigError: links given by hand are incomplete.
        InvalidLinks: a matrix has a hole, or a value that cannot be.
    """
    found = _Found(provenance=driver_provenance(seed=0))
    if is_given(site, fabric):
        pairs, found.sweeps = given_parts(site, fabric)
        found.pairs += pairs
        found.provenance["source"] = "given"
        found.notes.append("given by hand in the site file; nothing was measured")
    else:
        found.provenance["source"] = "measured"
        _measure(site, fabric, found, path.parent)
    links = Links(
        site=site.name,
        fabric=fabric,
        device_kind=site.device,
        pairs=tuple(with_slow_pairs(pair) for pair in found.pairs),
        sweeps=found.sweeps,
        notes=tuple(found.notes),
        provenance=found.provenance,
    )
    write_links(path, links)
    return links


def _measure(site: Site, name: str, found: _Found, folder: Path) -> None:
    nodes, devices = links_geometry(site, name)
    if nodes * devices < 2:
        raise LinksFailed(
            f"site {site.name} has one device: there is no link to measure; raise nodes or "
            "devices_per_node in the site file"
        )
    settings = {
        "interconnect": site.interconnect,
        "largest_bytes": largest_bytes(site),
        "budget_s": float(site.interconnect.get("sweep_budget_s", _SWEEP_BUDGET_S)),
        # Half of what the tool may take at all: the rest is for starting, and for the last pair.
        "pairs_budget_s": min(_PAIRS_BUDGET_S, site.cell_timeout_s / 2),
        "devices_per_node": devices,
        "worlds": worlds(nodes, devices),
    }
    found.provenance["settings"] = settings
    try:
        with fabric_up(site, name, nodes) as fabric:
            _run_tools(site, (nodes, devices), settings, found, folder, fabric=fabric)
            link = fabric.report()
    except (FabricUnsupported, FabricUnfit, RankJobFailed) as error:
        raise _failed(site, str(error)) from None
    fault = fault_of(link)
    if fault is not None:
        raise _failed(site, fault)
    if link is not None:
        found.provenance["link"] = link


def _run_tools(
    site: Site,
    geometry: tuple[int, int],
    settings: dict[str, Any],
    found: _Found,
    folder: Path,
    *,
    fabric: Fabric,
) -> None:
    """Run the tools and put what they found into ``found``.

    Raises:
        RankJobFailed: pairs within the nodes, or the sweeps, went wrong.
    """
    nodes, devices = geometry
    if devices > 1:
        per_node = devices if site.device == "cpu" else 1
        reports = _run(site, (nodes, per_node), "node_pairs", settings, folder, fabric=fabric)
        found.pairs += node_type_pairs(reports)
        reasons = dict.fromkeys(report.get("no_pairs") for report in reports)
        found.notes += [f"no pairs within the node: {why}" for why in reasons if why]
    reports = _run(site, geometry, "sweep", settings, folder, fabric=fabric)
    found.sweeps, notes = sweeps_of(reports[0]["sweeps"])
    found.notes += [*reports[0]["notes"], *notes]
    found.provenance["ranks"] = [
        report["provenance"] for rank, report in enumerate(reports) if rank % devices == 0
    ]
    # Should they hang, there must be time left in the job to write what the sweeps found.
    hasty = replace(site, cell_timeout_s=2 * settings["pairs_budget_s"])
    try:
        reports = _run(hasty, geometry, "rank_pairs", settings, folder, fabric=fabric)
    except RankJobFailed as error:  # sweeps took long, and most of what reads links needs no more
        found.notes.append(f"no pairs of ranks: {error}")
        return
    pairs = world_pairs(reports[0]["pairs"])
    found.pairs.append(pairs)
    if pairs.sampled is not None:
        found.notes.append(f"pairs of ranks: {pairs.sampled.in_words()}")


def _run(
    site: Site,
    geometry: tuple[int, int],
    module: str,
    settings: dict[str, Any],
    folder: Path,
    *,
    fabric: Fabric,
) -> list[dict[str, Any]]:
    """Run a tool; what goes wrong is one sentence."""
    reports = run_rank_job(
        site, geometry, f"{_MODULES}.{module}", settings, folder / module, fabric=fabric
    )
    for report in reports:
        if report["status"] != Status.OK:
            raise RankJobFailed(f"rank {report['rank']}: {report.get('reason', report['status'])}")
    return reports


def _failed(site: Site, why: str) -> LinksFailed:
    return LinksFailed(f"the links of site {site.name} are not measured: {why}")
