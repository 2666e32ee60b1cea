"""Raw times of the ranks -> points, intervals, fits and matrices of links.json. No torch."""

from __future__ import annotations

import statistics
from typing import Any

from ddlbench.experiment.fits import fit_hockney
from ddlbench.experiment.links import LinkSweep, PairMatrix, SweepPoint
from ddlbench.experiment.statistics import median_interval
from ddlbench.interconnect.pair_matrix import pair_matrix
from ddlbench.interconnect.worlds import level_of

__all__ = ["node_type_pairs", "points_of", "sweeps_of", "world_pairs"]


def points_of(raw: list[dict[str, Any]]) -> tuple[SweepPoint, ...]:
    """Median and rank-based 95 % interval of each size.

    Args:
        raw: mappings with ``message_bytes`` and ``times_s``, one time a repeat.
    """
    points = []
    for point in raw:
        times = point["times_s"]
        ends = median_interval(times).ends()  # fewer than six repeats cannot give 95 %
        points.append(
            SweepPoint(
                message_bytes=point["message_bytes"],
                time_s=statistics.median(times),
                interval_s=ends,
                repeats=len(times),
            )
        )
    return tuple(points)


def sweeps_of(raw: list[dict[str, Any]]) -> tuple[tuple[LinkSweep, ...], list[str]]:
    """``sweeps`` with their fits, and notes on those that ended early."""
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


def world_pairs(found: dict[str, Any]) -> PairMatrix:
    """The pair matrix of all ranks, from the report of the first one."""
    matrix = pair_matrix(
        scope="world",
        method=found["method"],
        endpoints=[f"rank {rank} on {host}" for rank, host in enumerate(found["hosts"])],
        nodes=found["nodes"],
        bandwidth_bytes_per_s=found["bandwidth_bytes_per_s"],
        latency_s=found["latency_s"],
        repeats=found["repeats"],
        sampled=found["sampled"],
    )
    return PairMatrix.from_dict(matrix)


def node_type_pairs(reports: list[dict[str, Any]]) -> list[PairMatrix]:
    """Matrices within a node, once for every type of node: those of its first node."""
    seen: dict[str, list[dict[str, Any]]] = {}
    for report in sorted(reports, key=lambda entry: int(entry["rank"])):
        seen.setdefault(report["node_type"], report["pairs"])
    return [PairMatrix.from_dict(pair) for pairs in seen.values() for pair in pairs]
