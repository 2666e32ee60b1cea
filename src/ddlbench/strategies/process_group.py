"""The process group of a cell's ranks, groups within it, and sums of gradients over a group.

Groups are of gloo (CPU) or NCCL (CUDA)::

    join_all        rank 0 .. n-1         once, before any other group
    every_rank      rank 0 .. n-1         the same ranks; messages of their own
    side_by_side    | 0 1 | 2 3 | ...     this rank's team of several

They wait for each other as long as the supervisor lets them (``Context.patience_s``). Libraries
have limits of their own, some minutes, and a step over a bad link may take longer; a cell that
hangs or lasts too long is ended by the supervisor, which says which of the two it was.

A sum is one all-reduce a bucket, all under way together::

    gradients   | a b | c d e | f |      flattened into a row a bucket
    buckets     |--0--|---1---|-2-|      waited for in order; each sum is a view of its row
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.planning.gradient_traffic import DEFAULT_BUCKET_BYTES, buckets
from ddlbench.planning.strategy import Process
from ddlbench.strategies.executor import Context


def join_all(context: Context, process: Process, world_size: int) -> None:
    """Join the default group; every process of the cell calls it, before its first collective."""
    device = context.devices[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        store=context.store or dist.HashStore(),
        rank=process.rank,
        world_size=world_size,
        timeout=_patience(context),
    )


def every_rank(context: Context) -> dist.ProcessGroup:
    """One more group of all ranks; all call it."""
    group = dist.new_group(timeout=_patience(context))
    assert isinstance(group, dist.ProcessGroup)
    return group


def side_by_side(teams: Sequence[Sequence[int]], context: Context) -> dist.ProcessGroup:
    """This rank's group of ``teams``, in which every rank is once; all call it with the same."""
    group, _ = dist.new_subgroups_by_enumeration(
        [list(ranks) for ranks in teams], timeout=_patience(context)
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def _patience(context: Context) -> timedelta:
    return timedelta(seconds=context.patience_s)


class GradientSum:
    """One sum under way; starts when made.

    Args:
        gradients: of this rank; all ranks of the group have the same shapes.
        group: of the ranks.
        bucket_bytes: size of a bucket; a larger gradient is alone.
        in_place: a gradient that is alone in its bucket may be overwritten by its sum, which
            saves a copy.
    """

    def __init__(
        self,
        gradients: Sequence[Tensor],
        group: dist.ProcessGroup | None,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        *,
        in_place: bool = False,
    ) -> None:
        sizes = [gradient.nbytes for gradient in gradients]
        found = buckets(sizes, bucket_bytes, [gradient.dtype for gradient in gradients])
        parts = [[gradients[index] for index in bucket] for bucket in found]
        self._shapes = [[gradient.shape for gradient in part] for part in parts]
        self._rows = [_flat(part, in_place) for part in parts]
        self._works = [dist.all_reduce(row, group=group, async_op=True) for row in self._rows]

    def wait(self, divisor: int = 1) -> Iterator[Tensor]:
        """Each gradient's sum over ``divisor``, in order; waits bucket by bucket."""
        for work, row, shapes in zip(self._works, self._rows, self._shapes, strict=True):
            work.wait()
            if divisor != 1:
                row.div_(divisor)
            pieces = row.split([shape.numel() for shape in shapes])
            for piece, shape in zip(pieces, shapes, strict=True):
                yield piece.view(shape)


def sum_gradients(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Replace each gradient by its sum over the group; all ranks have the same parameters."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = GradientSum(gradients, group, in_place=True)
    for gradient, summed in zip(gradients, total.wait(), strict=True):
        gradient.copy_(summed)


def _flat(gradients: Sequence[Tensor], in_place: bool) -> Tensor:
    if in_place and len(gradients) == 1:
        return gradients[0].contiguous().view(-1)
    return torch.cat([gradient.flatten() for gradient in gradients])
