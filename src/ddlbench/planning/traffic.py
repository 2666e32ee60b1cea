"""The all-reduces of gradients in a data-parallel step, and the groups of devices that send them.

Each group computes the same samples, other groups others::

    8 devices, groups of 4     ranks 0 1 2 3   replica 0   its half of the mini-batch
                               ranks 4 5 6 7   replica 1   the other half

Messages leave while the backward pass runs::

    backward   | layer n ........ layer 1 |
    messages          |-- m0 --| |-- m1 --| |-m2-|     m0 leaves when its last gradient is ready

Gradients are grouped into buckets; one all-reduce sums a bucket::

    gradients      | a | b |   c   | d | e | f |      in the order in which they are sent
    buckets        | a   b |   c   | d   e   f |      closed before a gradient would exceed the cap
    DDP's          | a |  b    c   | d   e   f |      closed once full; the first is smaller

Sources: Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2, for DDP's buckets and 25 MiB;
Sergeev and Del Balso, "Horovod" (2018), section 4, for the fusion buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlbench.common.form import Natural
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.options import Options
from ddlbench.planning.plan import Plan, Process, process_at

if TYPE_CHECKING:
    from ddlbench.planning.workload import Tensor


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


DDP_FIRST_BUCKET_BYTES = 2**20  # torch's first bucket, unless a size is given for all


def buckets(
    sizes_bytes: Sequence[int], cap_bytes: int, kinds: Sequence[object] | None = None
) -> list[range]:
    """Indices of the gradients of each bucket; a bucket never mixes ``kinds``, such as data types.

    A bucket has ``cap_bytes`` at most; a gradient that is larger has one of its own.
    """
    begins: list[int] = []
    filled = 0
    for index, size in enumerate(sizes_bytes):
        mixes = kinds is not None and index > 0 and kinds[index] != kinds[index - 1]
        if not begins or filled + size > cap_bytes or mixes:
            begins.append(index)
            filled = 0
        filled += size
    return _ranges(begins, len(sizes_bytes))


def buckets_once_full(
    sizes_bytes: Sequence[int], cap_bytes: int, first_cap_bytes: int
) -> list[range]:
    """Indices of the gradients of each of DDP's buckets, closed once it holds its bytes or more.

    ``sizes_bytes`` are in the order in which gradients are ready; the first bucket has a cap of
    its own.
    """
    begins: list[int] = []
    full = True
    filled = 0
    for index, size in enumerate(sizes_bytes):
        if full:
            begins.append(index)
            filled = 0
        filled += size
        full = filled >= (first_cap_bytes if len(begins) == 1 else cap_bytes)
    return _ranges(begins, len(sizes_bytes))


def whole_buckets(tensors: Sequence[Tensor], cap_bytes: int) -> list[list[int]]:
    """Bytes of the tensors of each bucket when all weights are summed at once, in their order.

    A bucket has ``cap_bytes`` at most. ``tensors`` are in the order in which their gradients are
    ready: the last weights come first.
    """
    sizes = [tensor.bytes for tensor in reversed(tensors)]
    return [[sizes[i] for i in bucket] for bucket in buckets(sizes, cap_bytes)]


def _ranges(begins: Sequence[int], count: int) -> list[range]:
    return [range(begin, end) for begin, end in zip(begins, [*begins[1:], count], strict=False)]


@dataclass(frozen=True)
class GradientMessage:
    """One all-reduce of a step.

    Args:
        bytes: contributed by each rank.
        ready_fraction: share of the backward pass after which its last gradient is ready.
    """

    bytes: int
    ready_fraction: float = 1.0


def filled_buckets(
    tensors: Sequence[Tensor], first_bytes: int, cap_bytes: int
) -> list[GradientMessage]:
    """Buckets that leave when they hold ``first_bytes`` or, after the first, ``cap_bytes``.

    ``tensors`` are in the order in which their gradients are ready.
    """
    buckets = buckets_once_full([tensor.bytes for tensor in tensors], cap_bytes, first_bytes)
    return [
        GradientMessage(
            sum(tensors[index].bytes for index in bucket), tensors[bucket[-1]].ready_fraction
        )
        for bucket in buckets
    ]
