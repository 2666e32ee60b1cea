"""What links are measured between: nodes and devices of a site, groups of ranks, message sizes.

::

    within a node      1x2  1x3  1x4        one, and more, devices of the first node
    between nodes      2x1  3x1  4x1        one device of each node
    both               4x4                  all

Beyond eight, numbers double: the cost of a collective changes slowly with many ranks. No torch: a
login node plans the job with it.
"""

from __future__ import annotations

from ddlbench.experiment.site import Site
from ddlbench.planning.resources import SchedulerRequest, request

OPERATIONS = ("p2p", "all_reduce", "broadcast", "all_gather", "reduce_scatter")
_EVERY_UP_TO = 8
_SMALLEST_BYTES = 1024


def worlds(nodes: int, devices_per_node: int) -> list[tuple[int, int]]:
    """Groups as (nodes, devices per node), the smallest first; none for a single device."""
    found = [(1, count) for count in _counts(devices_per_node)]
    found += [(count, 1) for count in _counts(nodes)]
    if nodes > 1 and devices_per_node > 1:
        found.append((nodes, devices_per_node))
    return found


def level_of(nodes: int) -> str:
    """Level of the slowest link of a group."""
    return "network" if nodes > 1 else "node"


def message_sizes(largest_bytes: int) -> list[int]:
    """Powers of two from 1 KiB: a piece of a fit needs three sizes, at the long end too."""
    sizes = []
    size = _SMALLEST_BYTES
    while size <= largest_bytes:
        sizes.append(size)
        size *= 2
    return sizes


def buffer_bytes(operation: str, message_bytes: int, ranks: int) -> int:
    """The largest buffer of one rank: what ``largest_bytes`` limits."""
    return message_bytes * ranks if operation == "all_gather" else message_bytes


def _counts(most: int) -> list[int]:
    counts = list(range(2, min(most, _EVERY_UP_TO) + 1))
    count = 2 * _EVERY_UP_TO
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most] if most > _EVERY_UP_TO else counts


def is_given(site: Site, fabric: str) -> bool:
    """Whether the site file holds the links of this fabric, so that nothing is measured."""
    return fabric in site.interconnect.get("links", {})


def links_geometry(site: Site, fabric: str) -> tuple[int, int]:
    """Nodes, and devices of each, that links are measured between.

    All of the site; one device where nothing is measured. On a cluster a real node stands for as
    many nodes of an emulated fabric as it has devices.
    """
    if is_given(site, fabric):
        return 1, 1
    if site.launcher == "slurm" and site.emulates(fabric):
        return site.devices_per_node, 1
    return site.nodes, site.devices_per_node


def links_request(site: Site, fabric: str) -> SchedulerRequest:
    """A job of the devices that links are measured between."""
    return request(*site.real_geometry(*links_geometry(site, fabric), fabric), site)
