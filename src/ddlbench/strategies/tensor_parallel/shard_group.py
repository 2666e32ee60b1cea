"""The ranks that compute the same samples together, and all that they say to each other.

::

    4 devices a group, a grid of 2 x 2, 2 groups

    group 0    0  1        lines of height   0-2  1-3   4-6  5-7
               2  3        lines of width    0-1  2-3   4-5  6-7
    group 1    4  5        across groups     0-4  1-5   2-6  3-7
               6  7

Steps between whole and split activations have each the gradient that belongs to them:

=============  ==================  =====================  =====================================
step           forward             backward               where
=============  ==================  =====================  =====================================
``share``      nothing             all-reduce (sum)       a whole input that all read a part of
``gather``     all-gather          own part               parts become whole, on every rank
``take``       own part            all-gather             whole becomes parts
``total``      all-reduce (sum)    nothing                partial sums become whole
=============  ==================  =====================  =====================================

*Whole* means the same values on every rank, and behind it every rank computes the same; so the
gradient of a whole activation is whole as well. Megatron-LM (Shoeybi et al. 2019, section 3)
calls ``share`` f and ``total`` g.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddlbench.strategies.executor import Context
from ddlbench.strategies.process_group import side_by_side
from ddlbench.strategies.tensor_parallel.layout import Parts
from ddlbench.strategies.timing import SpanRecorder

_HALF_TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class ShardGroup:
    """A process group seen from one of its ranks.

    Args:
        rank, size: within the group.
        process_group: None where the rank is alone.
        spans: times every exchange.
    """

    rank: int
    size: int
    process_group: dist.ProcessGroup | None
    spans: SpanRecorder

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks, the same bits everywhere; ``values`` stay as they are."""
        if self.size == 1:
            return values
        with self.spans.span("all_reduce"):
            dtype = torch.float32 if _is_half_on_cpu(values) else values.dtype
            total = torch.empty(values.shape, dtype=dtype, device=values.device).copy_(values)
            dist.all_reduce(total, group=self.process_group)
            return total.to(values.dtype)

    def all_gather(self, part: Tensor, dim: int, parts: Parts) -> Tensor:
        """The parts of all ranks side by side along ``dim``; parts may differ in size."""
        if self.size == 1:
            return part
        with self.spans.span("gather"):
            largest = max(parts.sizes)
            shape = list(part.shape)
            shape[dim] = largest
            mine = part.contiguous()
            if part.shape[dim] < largest:  # collectives want equal sizes
                mine = part.new_zeros(shape)
                mine.narrow(dim, 0, part.shape[dim]).copy_(part)
            found = [part.new_empty(shape) for _ in range(self.size)]
            dist.all_gather([_plain(one) for one in found], _plain(mine), group=self.process_group)
            sized = zip(found, parts.sizes, strict=True)
            return torch.cat([tensor.narrow(dim, 0, size) for tensor, size in sized], dim)

    def stack(self, values: Tensor) -> Tensor:
        """(n,) of every rank -> (size, n)."""
        if self.size == 1:
            return values[None]
        with self.spans.span("gather"):
            found = [torch.empty_like(values) for _ in range(self.size)]
            dist.all_gather(found, values.contiguous(), group=self.process_group)
            return torch.stack(found)

    def swap(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send to some ranks and receive from some, all at once; tensors are contiguous.

        Nothing waits before everything is posted, so no order of ranks can deadlock.
        """
        operations = [
            *(
                dist.P2POp(dist.isend, t, group=self.process_group, group_peer=peer)
                for peer, t in sends
            ),
            *(
                dist.P2POp(dist.irecv, t, group=self.process_group, group_peer=peer)
                for peer, t in receives
            ),
        ]
        if not operations:
            return
        with self.spans.span("halo"):
            for work in dist.batch_isend_irecv(operations):
                work.wait()


@dataclass(frozen=True)
class GridAxis:
    """The ranks among which one dimension lies.

    Args:
        dim: counted from the last: -1 width, -2 height, -3 depth.
        group: in the order of their parts.
    """

    dim: int
    group: ShardGroup

    def parts(self, shape: Sequence[int]) -> Parts:
        """How a tensor of this whole shape lies on the line."""
        return Parts.even(shape[self.dim], self.group.size)

    def own(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor that it has whole."""
        first, behind = self.parts(whole.shape)[self.group.rank]
        return whole.narrow(self.dim, first, behind - first)


def _is_half_on_cpu(values: Tensor) -> bool:
    """A type that gloo does not know: added up in single precision, and sent as bytes."""
    return values.device.type == "cpu" and values.dtype in _HALF_TYPES


def _plain(values: Tensor) -> Tensor:
    """The same memory of a contiguous tensor, in a type that every transport knows."""
    return values.view(-1).view(torch.uint8) if _is_half_on_cpu(values) else values


def share(whole: Tensor, group: ShardGroup) -> Tensor:
    """A whole tensor of which this rank computes with all, for a part of the outputs."""
    result: Tensor = _Share.apply(whole, group)
    return result


def gather(part: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
    """The whole, of which each rank has one of ``parts`` along ``dim``."""
    result: Tensor = _Gather.apply(part, dim, parts, group)
    return result


def take(whole: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
    """This rank's part of a whole tensor."""
    result: Tensor = _Take.apply(whole, dim, parts, group)
    return result


def total(addend: Tensor, group: ShardGroup) -> Tensor:
    """The sum over the ranks."""
    result: Tensor = _Total.apply(addend, group)
    return result


def _own(whole: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
    first, behind = parts[group.rank]
    return whole.narrow(dim, first, behind - first)


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: ShardGroup) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.group.all_reduce(gradients[0]), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
        ctx.place = dim, parts, group
        return group.all_gather(part, dim, parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _own(gradients[0], *ctx.place).contiguous(), None, None, None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
        ctx.place = dim, parts, group
        return _own(whole, dim, parts, group).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dim, parts, group = ctx.place
        return group.all_gather(gradients[0], dim, parts), None, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, addend: Tensor, group: ShardGroup) -> Tensor:
        return group.all_reduce(addend)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


Ranks = list[list[int]]
"""Teams that lie side by side: every rank is in one of them."""


def groups_of(world_size: int, size: int) -> Ranks:
    """Neighbouring ranks."""
    return [list(range(start, start + size)) for start in range(0, world_size, size)]


def across(groups: Sequence[Sequence[int]]) -> Ranks:
    """The same place of every group."""
    return [list(same) for same in zip(*groups, strict=True)]


def axes_of(groups: Sequence[Sequence[int]], sizes: Mapping[int, int]) -> dict[int, Ranks]:
    """The lines of every group's grid along each dimension; ranks of the last one are neighbours.

    Args:
        groups: of as many ranks as the grid has.
        sizes: dimension -> extent of the grid, the outermost first.
    """
    found = {}
    inner = len(groups[0])
    for dim, size in sizes.items():
        outer, inner = inner, inner // size
        found[dim] = [
            [group[start + offset + step * inner] for step in range(size)]
            for group in groups
            for start in range(0, len(group), outer)
            for offset in range(inner)
        ]
    return found


def join_shard_group(
    rank_groups: Ranks, rank: int, spans: SpanRecorder, context: Context
) -> ShardGroup:
    """This rank's group; every rank of the world calls it with the same rank_groups."""
    mine = next(ranks for ranks in rank_groups if rank in ranks)
    if len(mine) == 1:
        return ShardGroup(0, 1, None, spans)
    group = side_by_side(rank_groups, context)
    # NCCL builds a communicator at its first use, in which all must take part.
    dist.all_reduce(torch.zeros(1, device=context.devices[0]), group=group)
    return ShardGroup(mine.index(rank), len(mine), group, spans)
