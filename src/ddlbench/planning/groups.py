"""Equal groups of devices: each group computes the same samples, other groups others.

::

    8 devices, groups of 4     ranks 0 1 2 3   replica 0   its half of the mini-batch
                               ranks 4 5 6 7   replica 1   the other half
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlbench.common.form import Natural
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.options import Options
from ddlbench.planning.plan import Process, process_at

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan


@dataclass(frozen=True)
class Group:
    """The shape of ranks among which a message travels.

    Args:
        nodes, devices_per_node: over which they are spread.
        sharing: groups like it that send over the links of the same node at once.
    """

    nodes: int
    devices_per_node: int
    sharing: int = 1

    @classmethod
    def of(cls, plan: Plan, ranks: Sequence[int]) -> Group:
        nodes = [plan.processes[rank].node for rank in ranks]
        spread = len(set(nodes))
        if spread == 1:
            return cls(1, len(ranks))
        sharing = max(1, plan.cell.devices_per_node // nodes.count(nodes[0]))
        if len(ranks) % spread:  # no such geometry is swept: as if each had a node of its own
            spread = len(ranks)
        return cls(spread, len(ranks) // spread, sharing)


@dataclass(frozen=True, kw_only=True)
class GroupOptions(Options):
    """Options of strategies whose devices work in groups."""

    group: Natural = 0
    """Devices that compute the same samples together; 0 takes the devices of a node."""


def uneven_groups(cell: Cell, size: int) -> str | None:
    """Why the devices do not make equal groups of ``size`` with equal samples; None if they do."""
    if cell.devices % size:
        return Reason(
            "uneven_groups",
            f"{cell.devices} devices do not make equal groups of {size}; write another group",
        )
    groups = cell.devices // size
    if cell.batch_size % groups:
        return Reason(
            "uneven_batch",
            f"a mini-batch of {cell.batch_size} does not divide over {groups} groups; "
            f"make batch_size a multiple of {groups}",
        )
    return None


def larger_groups(cell: Cell) -> Iterator[int]:
    """Groups of several whole nodes, smallest first, over which the mini-batch divides."""
    for nodes in range(2, cell.nodes):
        if cell.nodes % nodes == 0 and cell.batch_size % (cell.nodes // nodes) == 0:
            yield nodes * cell.devices_per_node


def placement_of_groups(cell: Cell, size: int) -> tuple[Process, ...]:
    """One process a device; a group is a replica and has neighbouring ranks."""
    count = cell.devices // size
    groups = [rank // size for rank in range(cell.devices)]
    return tuple(
        process_at(cell, rank, "worker", replica=group, shard=group, num_shards=count)
        for rank, group in enumerate(groups)
    )
