"""Which links are measured: groups of ranks, message sizes, and the job that they need.

::

    within a node      1x2  1x3  1x4        one, and more, devices of the first node
    between nodes      2x1  3x1  4x1        one device of each node
    both               4x4                  all

Beyond eight the numbers double, as the cost of a collective changes slowly with many ranks. No
torch: a login node plans the job with this module.
"""

from __future__ import annotations

from typing import Literal

from ddlbench.common.units import doubled
from ddlbench.experiment.site import Site
from ddlbench.planning.resources import SchedulerRequest, request

OPERATIONS = ("p2p", "all_reduce", "broadcast", "all_gather", "reduce_scatter")
_EVERY_UP_TO = 8
_SMALLEST_BYTES = 1024


def worlds(nodes: int, devices_per_node: int, *, every: bool = True) -> list[tuple[int, int]]:
    """Groups as (nodes, devices per node), the smallest first; empty for a single device.

    Without ``every`` the numbers double from two on.
    """
    groups = [(1, count) for count in _counts(devices_per_node, every)]
    groups += [(count, 1) for count in _counts(nodes, every)]
    if nodes > 1 and devices_per_node > 1:
        groups.append((nodes, devices_per_node))
    return groups


def level_of(nodes: int) -> Literal["node", "network"]:
    """Level of the slowest link of a group."""
    return "network" if nodes > 1 else "node"


def message_sizes(largest_bytes: int) -> list[int]:
    """Powers of two from 1 KiB; each piece of a fit needs three sizes, also the last one."""
    return list(doubled(_SMALLEST_BYTES, largest_bytes))


def buffer_bytes(operation: str, message_bytes: int, ranks: int) -> int:
    """Bytes of a rank's largest buffer, which ``largest_bytes`` limits."""
    return message_bytes * ranks if operation == "all_gather" else message_bytes


def _counts(most: int, every: bool) -> list[int]:
    if most < 2:
        return []
    if not every:
        return [*doubled(2, most - 1), most]
    if most <= _EVERY_UP_TO:
        return list(range(2, most + 1))
    return [*range(2, _EVERY_UP_TO + 1), *doubled(2 * _EVERY_UP_TO, most - 1), most]


def is_given(site: Site, fabric: str) -> bool:
    """Whether the site file gives the links of this fabric, so that nothing is measured."""
    return fabric in site.interconnect.links


def links_geometry(site: Site, fabric: str) -> tuple[int, int]:
    """Nodes, and devices of each, whose links are measured.

    These are all of the site, or one device if nothing is measured. On a cluster, one real node
    emulates as many nodes as it has devices, or half as many of two devices where they have links
    inside their nodes.
    """
    if is_given(site, fabric):
        return 1, 1
    if site.launcher == "slurm" and site.emulates(fabric):
        per_node = 1 if copies_inside(site, fabric) else min(2, site.devices_per_node)
        return site.devices_per_node // per_node, per_node
    return site.nodes, site.devices_per_node


def copies_inside(site: Site, fabric: str) -> bool:
    """Whether devices of a node meet as the machine has it, so that its own copies tell of them."""
    condition = site.fabrics.get(fabric)
    return condition is None or condition.inside is None


def links_request(site: Site, fabric: str) -> SchedulerRequest:
    """The job of the devices whose links are measured."""
    return request(*site.real_geometry(*links_geometry(site, fabric), fabric), site)
