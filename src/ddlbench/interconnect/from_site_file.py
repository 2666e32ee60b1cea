"""Links that somebody wrote into the site file (as thesis Table 4.1 lists them, Jansen 2020).

The site key ``interconnect.links`` holds latency and bandwidth of each level, by fabric. Nothing is
measured: sweeps have a fit and no points, and every pair of a level is alike.
"""

from __future__ import annotations

from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fits import given_hockney
from ddlbench.experiment.links import LinkSweep, PairMatrix
from ddlbench.experiment.site import Site
from ddlbench.interconnect.pair_matrix import Matrix, pair_matrix

__all__ = ["given_parts"]


def given_parts(site: Site, fabric: str) -> tuple[tuple[PairMatrix, ...], tuple[LinkSweep, ...]]:
    """``pairs`` and ``sweeps`` of links.json for a fabric that the site file describes.

    Raises:
        ConfigError: a level that the site has is missing, or a number cannot be.
    """
    links = site.interconnect["links"][fabric]
    where = f"site {site.name}: interconnect.links.{fabric}"
    levels = []
    if site.devices_per_node > 1:
        levels.append(("node", 1, site.devices_per_node))
    if site.nodes > 1:
        levels.append(("network", site.nodes, 1))
    sweeps = []
    for level, nodes, devices in levels:
        if level not in links:
            raise ConfigError(
                f"{where}: {level!r} is missing; the site has {site.nodes} node(s) of "
                f"{site.devices_per_node} device(s): add its latency_s and bandwidth_bytes_per_s"
            )
        try:
            fit = given_hockney(links[level]["latency_s"], links[level]["bandwidth_bytes_per_s"])
        except ConfigError as error:
            raise ConfigError(f"{where}.{level}: {error}") from None
        sweeps.append(
            LinkSweep(
                operation="p2p",
                transport="given",
                level=level,
                nodes=min(nodes, 2),
                devices_per_node=min(devices, 2),
                ranks=2,
                points=(),
                fit=fit,
            )
        )
    return (_world(site, links),), tuple(sweeps)


def _world(site: Site, links: dict[str, Any]) -> PairMatrix:
    """All devices of the site as one matrix."""
    nodes = [node for node in range(site.nodes) for _ in range(site.devices_per_node)]
    matrix = pair_matrix(
        scope="world",
        method="given",
        endpoints=[f"rank {rank}" for rank in range(len(nodes))],
        nodes=nodes,
        bandwidth_bytes_per_s=_by_level(nodes, links, "bandwidth_bytes_per_s"),
        latency_s=_by_level(nodes, links, "latency_s"),
    )
    return PairMatrix.from_dict(matrix)


def _by_level(nodes: list[int], links: dict[str, Any], key: str) -> Matrix:
    return [
        [
            None if i == j else float(links["node" if a == b else "network"][key])
            for j, b in enumerate(nodes)
        ]
        for i, a in enumerate(nodes)
    ]
