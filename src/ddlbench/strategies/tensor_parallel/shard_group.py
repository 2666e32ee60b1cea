"""The ranks that compute the same samples together, and all that they say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ddlbench.strategies.tensor_parallel.layout import Parts
from ddlbench.strategies.timing import SpanRecorder

__all__ = ["GridAxis", "ShardGroup"]

_HALF_TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class ShardGroup:
    """A process group seen from one of its ranks.

    Args:
        rank, size: within the group.
        group: None where the rank is alone.
        spans: times every exchange.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None
    spans: SpanRecorder

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks, the same bits everywhere; ``values`` stay as they are."""
        if self.size == 1:
            return values
        with self.spans.span("all_reduce"):
            dtype = torch.float32 if _is_half_on_cpu(values) else values.dtype
            total = torch.empty(values.shape, dtype=dtype, device=values.device).copy_(values)
            dist.all_reduce(total, group=self.group)
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
            dist.all_gather([_plain(one) for one in found], _plain(mine), group=self.group)
            sized = zip(found, parts.sizes, strict=True)
            return torch.cat([tensor.narrow(dim, 0, size) for tensor, size in sized], dim)

    def stack(self, values: Tensor) -> Tensor:
        """(n,) of every rank -> (size, n)."""
        if self.size == 1:
            return values[None]
        with self.spans.span("gather"):
            found = [torch.empty_like(values) for _ in range(self.size)]
            dist.all_gather(found, values.contiguous(), group=self.group)
            return torch.stack(found)

    def swap(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send to some ranks and receive from some, all at once; tensors are contiguous.

        Nothing waits before everything is posted, so no order of ranks can deadlock.
        """
        operations = [
            *(dist.P2POp(dist.isend, t, group=self.group, group_peer=peer) for peer, t in sends),
            *(dist.P2POp(dist.irecv, t, group=self.group, group_peer=peer) for peer, t in receives),
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
        team: in the order of their parts.
    """

    dim: int
    team: ShardGroup

    def parts(self, shape: Sequence[int]) -> Parts:
        """How a tensor of this whole shape lies on the line."""
        return Parts.even(shape[self.dim], self.team.size)

    def own(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor that it has whole."""
        first, behind = self.parts(whole.shape)[self.team.rank]
        return whole.narrow(self.dim, first, behind - first)


def _is_half_on_cpu(values: Tensor) -> bool:
    """A type that gloo does not know: added up in single precision, and sent as bytes."""
    return values.device.type == "cpu" and values.dtype in _HALF_TYPES


def _plain(values: Tensor) -> Tensor:
    """The same memory of a contiguous tensor, in a type that every transport knows."""
    return values.view(-1).view(torch.uint8) if _is_half_on_cpu(values) else values
