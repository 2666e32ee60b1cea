"""How fast stages talk at a site: what its links file says of one message from device to device."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.links import Links, PairMatrix, read_links

__all__ = ["Reach", "bandwidth_bytes_per_s", "bandwidth_of"]

Reach = Literal["node", "network"]  # within a node, between nodes

# What training sends through, not what a link could carry.
_TRANSPORTS = ("nccl", "gloo", "given")


def bandwidth_bytes_per_s(path: Path, level: Reach) -> float:
    """Bytes per second of large messages within a node, or between nodes.

    The largest message of a point-to-point sweep, else the slowest pair of a matrix.

    Args:
        path: a links file.
        level: which of the two.

    Raises:
        ConfigError: there is no such file, or it holds nothing of the level.
    """
    return bandwidth_of(read_links(path), level, str(path))


def bandwidth_of(links: Links, level: Reach, where: str) -> float:
    """The same of a links file that was read; ``where`` names it.

    Raises:
        ConfigError: it holds nothing of the level.
    """
    for sweep in links.sweeps:
        if sweep.operation == "p2p" and sweep.level == level and sweep.points:
            largest = max(sweep.points, key=lambda point: point.message_bytes)
            return largest.message_bytes / largest.time_s
    found = [
        bandwidth
        for pair in links.pairs
        if pair.method in _TRANSPORTS
        for bandwidth in _of_level(pair, same_node=level == "node")
    ]
    if not found:
        place = "within a node" if level == "node" else "between nodes"
        raise ConfigError(
            f"{where}: nothing was measured {place} with the transport of training; measure the "
            "links again, or give them in the site file"
        )
    return min(found)


def _of_level(pair: PairMatrix, same_node: bool) -> list[float]:
    nodes = pair.nodes
    return [
        float(bandwidth)
        for row, values in enumerate(pair.bandwidth_bytes_per_s)
        for column, bandwidth in enumerate(values)
        if bandwidth is not None and row != column and (nodes[row] == nodes[column]) == same_node
    ]
