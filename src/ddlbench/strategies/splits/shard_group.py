"""The ranks that compute the same samples together, and their collectives.

::

    4 devices a group, a grid of 2 x 2, 2 groups

    group 0    0  1        axis of height    0-2  1-3   4-6  5-7
               2  3        axis of width     0-1  2-3   4-5  6-7
    group 1    4  5        across groups     0-4  1-5   2-6  3-7
               6  7

These operations convert between whole and split activations; each has its own backward operation:

=============  ==================  =====================  =====================================
step           forward             backward               where
=============  ==================  =====================  =====================================
``share``      nothing             all-reduce (sum)       every rank reads a whole input
``gather``     all-gather          own part               parts become whole, on every rank
``take``       own part            all-gather             whole becomes parts
``total``      all-reduce (sum)    nothing                partial sums become whole
=============  ==================  =====================  =====================================

A *whole* activation has the same values on every rank, and every rank then computes the same from
it; so its gradient is whole, too. Megatron-LM (Shoeybi et al. 2019, section 3) calls ``share`` *f*
and ``total`` *g*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ddlbench.strategies.executor import Context
from ddlbench.strategies.process_group import Ranks, side_by_side
from ddlbench.strategies.splits.layout import Parts
from ddlbench.strategies.timing import SpanRecorder

_HALF_TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class ShardGroup:
    """A process group seen from one of its ranks.

    Args:
        rank, size: within the group.
        process_group: None for a single rank.
        spans: times every exchange.
    """

    rank: int
    size: int
    process_group: dist.ProcessGroup | None
    spans: SpanRecorder

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks, with the same bits on each; ``values`` are not changed."""
        if self.size == 1:
            return values
        with self.spans.span("all_reduce"):
            dtype = torch.float32 if _is_half_on_cpu(values) else values.dtype
            total = torch.empty(values.shape, dtype=dtype, device=values.device).copy_(values)
            dist.all_reduce(total, group=self.process_group)
            return total.to(values.dtype)

    def all_gather(self, part: Tensor, dim: int, parts: Parts) -> Tensor:
        """The concatenation of all ranks' parts along ``dim``; parts may differ in size."""
        if self.size == 1:
            return part
        with self.spans.span("gather"):
            largest = max(parts.sizes)
            shape = list(part.shape)
            shape[dim] = largest
            mine = part.contiguous()
            if part.shape[dim] < largest:  # collectives need equal sizes
                mine = part.new_zeros(shape)
                mine.narrow(dim, 0, part.shape[dim]).copy_(part)
            gathered = [part.new_empty(shape) for _ in range(self.size)]
            plain = [_plain(tensor) for tensor in gathered]
            dist.all_gather(plain, _plain(mine), group=self.process_group)
            sized = zip(gathered, parts.sizes, strict=True)
            return torch.cat([tensor.narrow(dim, 0, size) for tensor, size in sized], dim)

    def stack(self, values: Tensor) -> Tensor:
        """(n,) of every rank -> (size, n)."""
        return self.all_gather(values[None], 0, Parts.even(self.size, self.size))

    def swap(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send contiguous tensors to some ranks and receive from some, all at once.

        All messages are posted before any wait, so no order of ranks can deadlock.
        """
        group = self.process_group
        operations = [
            *(dist.P2POp(dist.isend, t, group=group, group_peer=peer) for peer, t in sends),
            *(dist.P2POp(dist.irecv, t, group=group, group_peer=peer) for peer, t in receives),
        ]
        if not operations:
            return
        with self.spans.span("halo"):
            for work in dist.batch_isend_irecv(operations):
                work.wait()


@dataclass(frozen=True)
class GridAxis:
    """The ranks that share one split dimension.

    Args:
        dim: -1 is width, -2 height, -3 depth.
        group: the ranks, in the order of their parts.
    """

    dim: int
    group: ShardGroup

    def parts(self, shape: Sequence[int]) -> Parts:
        """The ranks' parts of a tensor of this whole shape."""
        return Parts.even(shape[self.dim], self.group.size)

    def shard(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""
        return _shard(whole, self.dim, self.parts(whole.shape), self.group)


def _is_half_on_cpu(values: Tensor) -> bool:
    """Whether gloo lacks the type: such values are summed in float32 and sent as bytes."""
    return values.device.type == "cpu" and values.dtype in _HALF_TYPES


def _plain(values: Tensor) -> Tensor:
    """A contiguous tensor's memory, in a type that every transport can send."""
    return values.view(-1).view(torch.uint8) if _is_half_on_cpu(values) else values


def share(whole: Tensor, group: ShardGroup) -> Tensor:
    """A whole tensor, all of which this rank reads to compute a part of the outputs."""
    return _Share.apply(whole, group)


def gather(part: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
    """The whole tensor, from each rank's part along ``dim``."""
    return _Gather.apply(part, dim, parts, group)


def take(whole: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
    """This rank's part of a whole tensor."""
    return _Take.apply(whole, dim, parts, group)


def total(addend: Tensor, group: ShardGroup) -> Tensor:
    """The sum over the ranks."""
    return _Total.apply(addend, group)


def _shard(whole: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
    first, end = parts[group.rank]
    return whole.narrow(dim, first, end - first)


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: ShardGroup) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.group.all_reduce(gradients[0]), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
        ctx.place = dim, parts, group
        return group.all_gather(part, dim, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _shard(gradients[0], *ctx.place).contiguous(), None, None, None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, parts: Parts, group: ShardGroup) -> Tensor:
        ctx.place = dim, parts, group
        return _shard(whole, dim, parts, group).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dim, parts, group = ctx.place
        return group.all_gather(gradients[0], dim, parts), None, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, addend: Tensor, group: ShardGroup) -> Tensor:
        return group.all_reduce(addend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


def axes_of(groups: Sequence[Sequence[int]], sizes: Mapping[int, int]) -> dict[int, Ranks]:
    """Ranks along each dimension of every group's grid; those of the last one are neighbours.

    Args:
        groups: each has as many ranks as the grid.
        sizes: dimension -> extent of the grid, the outermost first.
    """
    axes = {}
    inner = len(groups[0])
    for dim, size in sizes.items():
        outer, inner = inner, inner // size
        axes[dim] = [
            [group[start + offset + step * inner] for step in range(size)]
            for group in groups
            for start in range(0, len(group), outer)
            for offset in range(inner)
        ]
    return axes


def join_shard_group(
    rank_groups: Ranks, rank: int, spans: SpanRecorder, context: Context
) -> ShardGroup:
    """Join this rank's group; every rank of the cell calls this with the same ``rank_groups``."""
    mine = next(ranks for ranks in rank_groups if rank in ranks)
    if len(mine) == 1:
        return ShardGroup(0, 1, None, spans)
    group = side_by_side(rank_groups, context)
    # NCCL builds a communicator at its first use, and all ranks must take part in that.
    dist.all_reduce(torch.zeros(1, device=context.devices[0]), group=group)
    return ShardGroup(mine.index(rank), len(mine), group, spans)
