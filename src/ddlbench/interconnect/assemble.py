"""Entries of links.json, from raw times of the ranks or from links given in the site file.

::

    raw times of a tool                    -> points, intervals, fits; pair matrices
    site file: interconnect.links.FABRIC   -> fits without points; equal pairs within a level

The site file gives links whose speed is known without a measurement (as thesis Table 4.1 lists
links, Jansen 2020). No torch.
"""

from __future__ import annotations

import statistics
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import fit_hockney, given_hockney
from ddlbench.common.statistics import median_interval
from ddlbench.experiment.links import LinkSweep, PairMatrix, SweepPoint
from ddlbench.experiment.site import GivenLinks, Site
from ddlbench.interconnect.pair_matrix import Matrix, off_diagonal, pair_matrix
from ddlbench.interconnect.worlds import level_of


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
    own = ("hosts", "both_ways_bytes_per_s")
    fields = {key: value for key, value in report.items() if key not in own}
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
                f"{where}: {level!r} is missing; the site has {site.nodes} node(s) of "
                f"{site.devices_per_node} device(s): add its latency_s and bandwidth_bytes_per_s"
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
