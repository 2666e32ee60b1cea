"""Write links.json of one fabric: from the site file, or measured in a job on all nodes.

::

    run_rank_job(node_pairs)   pairs of GPUs in each node        -+
    run_rank_job(sweep)        of CPUs in each node; groups       +-> entries -> links.json
    run_rank_job(rank_pairs)   pairs of all ranks                -+

Entries of the file come from raw times of the ranks, or from links given in the site file::

    raw times of a tool                    -> points, intervals, fits; pair matrices
    site file: interconnect.links.FABRIC   -> fits without points; equal pairs within a level

The site file gives links whose speed is known without a measurement (as thesis Table 4.1 lists
links, Jansen 2020). No torch.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import fit_hockney, given_hockney
from ddlbench.common.quantities import counted
from ddlbench.common.statistics import median_interval
from ddlbench.experiment.links import (
    LibraryBackground,
    LinkOverlap,
    Links,
    LinkSweep,
    MessageDelay,
    NodeRate,
    PairMatrix,
    SweepPoint,
    TensorCost,
    write_links,
)
from ddlbench.experiment.site import GivenLinks, Site, shrunk_bytes
from ddlbench.experiment.status import Status
from ddlbench.interconnect.pair_matrix import Matrix, off_diagonal, pair_matrix, with_slow_pairs
from ddlbench.interconnect.progress import LinksDisplay
from ddlbench.interconnect.time_plan import (
    FIGURES_S,
    PAIRS,
    LinksPlan,
    copies_inside,
    is_given,
    level_of,
    links_geometry,
    links_plan,
)
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
_LEAST_BYTES = 4096  # a fit needs several sizes
_PAIRS_BUDGET_S = 600.0


class LinksFailed(ConfigError):  # noqa: N818 - what happened
    """The links could not be measured; the message says why."""


def largest_bytes(site: Site) -> int:
    """Largest message of a sweep; by default divided as the tensors of emulated devices are."""
    usual = _LARGEST_BYTES[site.device]
    if site.accelerator is not None:
        usual = shrunk_bytes(usual, site.accelerator.shrink)
    return site.interconnect.largest_bytes or max(usual, _LEAST_BYTES)


@dataclass
class _Parts:
    """Parts of links.json."""

    pairs: list[PairMatrix] = field(default_factory=list)
    sweeps: tuple[LinkSweep, ...] = ()
    node_rates: tuple[NodeRate, ...] = ()
    overlaps: tuple[LinkOverlap, ...] = ()
    backgrounds: tuple[LibraryBackground, ...] = ()
    tensor_costs: tuple[TensorCost, ...] = ()
    delays: tuple[MessageDelay, ...] = ()
    notes: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)


def measure_links(site: Site, fabric: str, path: Path) -> Links:
    """Measure the links of ``site`` under ``fabric``, or take them from the site file.

    Args:
        site: where; on a cluster this process runs in a job of all its nodes and devices.
        fabric: link condition; in force now, or emulated if the site file defines it.
        path: of links.json; log files of the tools go beside it.

    Returns:
        the content of ``path``.

    Raises:
        LinksFailed: a process of a tool failed, or the site has fewer than two devices.
        ConfigError: the links in the site file are incomplete.
        ConfigError: a matrix has a hole, or an invalid value.
    """
    parts = _Parts(provenance=driver_provenance(seed=0))
    if is_given(site, fabric):
        pairs, parts.sweeps = given_parts(site, fabric)
        parts.node_rates = given_node_rates(site, fabric)
        parts.pairs += pairs
        parts.provenance["source"] = "given"
        parts.notes.append("given by hand in the site file; nothing was measured")
    else:
        parts.provenance["source"] = "measured"
        _measure(site, fabric, parts, path.parent)
    whole = {"pairs": tuple(map(with_slow_pairs, parts.pairs)), "notes": tuple(parts.notes)}
    links = Links(
        site=site.name, fabric=fabric, device_kind=site.device, **{**vars(parts), **whole}
    )
    write_links(path, links)
    return links


def _measure(site: Site, name: str, parts: _Parts, folder: Path) -> None:
    nodes, devices = links_geometry(site, name)
    if nodes * devices < 2:
        raise LinksFailed(
            f"site {site.name} has one device: there is no link to measure; raise nodes or "
            "devices_per_node in the site file"
        )
    plan = links_plan(site, name)
    settings = {
        "interconnect": site.interconnect.to_dict(),
        "largest_bytes": largest_bytes(site),
        "budget_s": plan.sweep_s,
        "aim_s": plan.aim_s if plan.aim_s < math.inf else None,
        "limit_s": plan.limit_s,
        "passes_s": plan.passes_s if plan.passes_s < math.inf else None,
        # Half of the tool's time limit; the rest is for the start and for the last pair.
        "pairs_budget_s": min(_PAIRS_BUDGET_S, site.cell_timeout_s / 2),
        "devices_per_node": devices,
        "node_copies": copies_inside(site, name),
        "worlds": plan.groups,
        "cores": plan.cores,
        "device_kind": site.device,
    }
    parts.provenance["settings"] = settings
    display = LinksDisplay(f"links {name}")
    starts = "processes start"
    display.begin(starts, plan.before_s + plan.sweeps_s, plan.after_s)
    try:
        with fabric_up(site, name, (nodes, devices)) as fabric:
            _run_tools(site, plan, settings, parts, folder, fabric=fabric, display=display)
            link = fabric.report()
        fault = fault_of(link)
        if fault is not None:
            raise FabricUnfit(fault)
    except (FabricUnsupported, FabricUnfit, RankJobFailed) as error:
        raise LinksFailed(f"the links of site {site.name} are not measured: {error}") from None
    display.begin("figures", FIGURES_S, 0.0)
    if link is not None:
        parts.provenance["link"] = link


def _run_tools(
    site: Site,
    plan: LinksPlan,
    settings: dict[str, Any],
    parts: _Parts,
    folder: Path,
    *,
    fabric: Fabric,
    display: LinksDisplay,
) -> None:
    nodes, devices = plan.groups[0]

    def run(
        tool: str, geometry: tuple[int, int] = (nodes, devices), site: Site = site
    ) -> list[dict[str, Any]]:
        module = f"ddlbench.interconnect.{tool}"
        reports = run_rank_job(
            site, geometry, module, settings, folder / tool, fabric=fabric, display=display
        )
        for report in reports:
            if report["status"] != Status.OK:
                reason = report.get("reason", report["status"])
                raise RankJobFailed(f"rank {report['rank']}: {reason}")
        return reports

    copies = devices > 1 and settings["node_copies"]
    if copies and site.device == "cuda":
        reports = run("node_pairs", (nodes, 1))
        parts.pairs += node_type_pairs(reports)
        reasons = dict.fromkeys(report.get("no_pairs") for report in reports)
        notes = [f"no pairs within the node: {reason}" for reason in reasons if reason]
        notes += node_type_notes(reports)
        parts.notes += notes
        for note in notes:
            display.say(note)
    reports = run("sweep")
    if copies and site.device == "cpu":
        parts.pairs += node_type_pairs(reports)

    def measured(part: str) -> list[dict[str, Any]]:
        """Entries of all groups, the smallest group first."""
        order = plan.groups[::-1]
        entries = reports[0][part]
        return sorted(
            entries, key=lambda entry: order.index((entry["nodes"], entry["devices_per_node"]))
        )

    parts.sweeps, notes = sweeps_of(measured("sweeps"))
    parts.overlaps = tuple(map(LinkOverlap.from_dict, measured("overlaps")))
    parts.backgrounds = tuple(map(LibraryBackground.from_dict, measured("backgrounds")))
    parts.tensor_costs = tuple(map(TensorCost.from_dict, measured("tensor_costs")))
    parts.delays = tuple(map(MessageDelay.from_dict, measured("delays")))
    parts.notes += [*reports[0]["notes"], *notes]
    parts.provenance["ranks"] = [
        report["provenance"] for rank, report in enumerate(reports) if rank % devices == 0
    ]
    # If this tool hangs, the job must still have time to write the sweeps.
    display.begin(PAIRS, plan.after_s - FIGURES_S, FIGURES_S)
    limited = replace(site, cell_timeout_s=2 * settings["pairs_budget_s"])
    try:
        reports = run("rank_pairs", site=limited)
    except RankJobFailed as error:  # keep the sweeps, which took long and suffice for most readers
        parts.notes.append(f"no pairs of ranks: {error}")
        return
    pairs = world_pairs(reports[0]["pairs"])
    parts.pairs += pairs
    parts.node_rates = tuple(map(NodeRate.from_dict, reports[0]["node_rates"]))
    sampled = pairs[0].sampled
    if sampled is not None:
        parts.notes.append(f"pairs of ranks: {sampled.in_words()}")


def points_of(raw: list[dict[str, Any]]) -> tuple[SweepPoint, ...]:
    """Medians of ``times_s`` and ``cpu_s`` of each size; the times' rank-based 95 % interval."""
    return tuple(
        SweepPoint(
            message_bytes=point["message_bytes"],
            time_s=statistics.median(point["times_s"]),
            # None for fewer than six repeats, which cannot give 95 %.
            interval_s=median_interval(point["times_s"]).ends(),
            repeats=len(point["times_s"]),
            cpu_s=statistics.median(point["cpu_s"]) if "cpu_s" in point else None,
        )
        for point in raw
    )


def sweeps_of(raw: list[dict[str, Any]]) -> tuple[tuple[LinkSweep, ...], list[str]]:
    """The ``sweeps`` part with its fits, and notes on sweeps that ended early."""
    sweeps, notes = [], []
    for entry in raw:
        name = (
            f"{entry['operation']} over {entry['nodes']}x{entry['devices_per_node']} "
            f"with {entry['transport']}"
        )
        if entry["ended"]:
            notes.append(f"{name}: {entry['ended']}")
        if len(entry["points"]) < 2:
            notes.append(f"{name}: left out, as fewer than two sizes cannot be fitted")
            continue
        points = points_of(entry["points"])
        sweeps.append(
            LinkSweep(
                operation=entry["operation"],
                transport=entry["transport"],
                level=level_of(entry["nodes"]),
                nodes=entry["nodes"],
                devices_per_node=entry["devices_per_node"],
                ranks=entry["ranks"],
                points=points,
                fit=fit_hockney(points),
            )
        )
    return tuple(sweeps), notes


def world_pairs(report: dict[str, Any]) -> tuple[PairMatrix, PairMatrix]:
    """The pair matrices of all ranks, one way and both ways, from the ``pairs`` of rank 0."""
    across_hosts = ("hosts", "both_ways_bytes_per_s")
    fields = {key: value for key, value in report.items() if key not in across_hosts}
    fields["endpoints"] = [f"rank {rank} on {host}" for rank, host in enumerate(report["hosts"])]
    both = {
        **fields,
        "bandwidth_bytes_per_s": report["both_ways_bytes_per_s"],
        "direction": "bidirectional",
    }
    one_way, both_ways = (
        PairMatrix.from_dict(pair_matrix(scope="world", **entry)) for entry in (fields, both)
    )
    return one_way, both_ways


def node_type_pairs(reports: list[dict[str, Any]]) -> list[PairMatrix]:
    """Matrices within a node, once for every type of node: those of its first node."""
    return [
        PairMatrix.from_dict(pair)
        for report in _first_of_types(reports)
        for pair in report["pairs"]
    ]


def node_type_notes(reports: list[dict[str, Any]]) -> list[str]:
    """What is to be said of these matrices, each sentence once."""
    notes = (note for report in _first_of_types(reports) for note in report["notes"])
    return list(dict.fromkeys(notes))


def _first_of_types(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_type: dict[str, dict[str, Any]] = {}
    for report in sorted(reports, key=lambda entry: int(entry["rank"])):
        by_type.setdefault(report["node_type"], report)
    return list(by_type.values())


def given_parts(site: Site, fabric: str) -> tuple[tuple[PairMatrix, ...], tuple[LinkSweep, ...]]:
    """``pairs`` and ``sweeps`` of links.json for a fabric that the site file describes.

    Raises:
        ConfigError: a level that the site has is missing, or a number is invalid.
    """
    links = site.interconnect.links[fabric]
    where = f"site {site.name}: interconnect.links.{fabric}"
    levels = []
    if site.devices_per_node > 1:
        levels.append(("node", links.node, 1, site.devices_per_node))
    if site.nodes > 1:
        levels.append(("network", links.network, site.nodes, 1))
    sweeps = []
    for level, link, nodes, devices in levels:
        if link is None:
            raise ConfigError(
                f"{where}: {level!r} is missing; the site has {counted(site.nodes, 'node')} of "
                f"{counted(site.devices_per_node, 'device')}: add its latency_s and "
                "bandwidth_bytes_per_s"
            )
        try:
            fit = given_hockney(link.latency_s, link.bandwidth_bytes_per_s)
        except ConfigError as error:
            raise ConfigError(f"{where}.{level}: {error}") from None
        sweeps.append(
            LinkSweep(
                operation="p2p",
                transport="given",
                level=level_of(nodes),
                nodes=min(nodes, 2),
                devices_per_node=min(devices, 2),
                ranks=2,
                points=(),
                fit=fit,
            )
        )
    return (_world(site, links),), tuple(sweeps)


def given_node_rates(site: Site, fabric: str) -> tuple[NodeRate, ...]:
    """What all devices of a node send together, if the site file says it.

    Raises:
        ConfigError: it says so of a site whose devices cannot share a link between nodes.
    """
    links = site.interconnect.links[fabric]
    if links.node_bytes_per_s is None:
        return ()
    if site.nodes < 2 or site.devices_per_node < 2 or links.network is None:
        raise ConfigError(
            f"site {site.name}: interconnect.links.{fabric}.node_bytes_per_s is for several nodes "
            f"of several devices, and the site has {site.nodes} of {site.devices_per_node}; "
            "leave it out"
        )
    rate = NodeRate(
        nodes=2,
        devices_per_node=site.devices_per_node,
        ranks=2 * site.devices_per_node,
        transport="given",
        message_bytes=0,
        device_bytes_per_s=links.network.bandwidth_bytes_per_s,
        node_bytes_per_s=links.node_bytes_per_s,
    )
    return (rate,)


def _world(site: Site, links: GivenLinks) -> PairMatrix:
    nodes = [node for node in range(site.nodes) for _ in range(site.devices_per_node)]

    def by_level(key: str) -> Matrix:
        return off_diagonal(
            len(nodes),
            lambda i, j: float(getattr(links.node if nodes[i] == nodes[j] else links.network, key)),
        )

    matrix = pair_matrix(
        scope="world",
        method="given",
        endpoints=[f"rank {rank}" for rank in range(len(nodes))],
        nodes=nodes,
        bandwidth_bytes_per_s=by_level("bandwidth_bytes_per_s"),
        latency_s=by_level("latency_s"),
    )
    return PairMatrix.from_dict(matrix)
