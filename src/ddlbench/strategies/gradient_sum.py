"""Sums of gradients over a process group, in buckets.

A sum is one all-reduce for each bucket; all of them start at once::

    gradients   | a b | c d e | f |      each bucket is flattened into one row
    buckets     |--0--|---1---|-2-|      waited for in order; each sum is a view of its row
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.experiment.site import Accelerator
from ddlbench.planning.gradient_traffic import buckets
from ddlbench.planning.workload import DEFAULT_BUCKET_BYTES


class GradientSum:
    """A sum that is under way from construction on.

    Args:
        gradients: of this rank; shapes are the same on all ranks of the group.
        group: the ranks.
        bucket_bytes: size of a bucket; a larger gradient has a bucket of its own. None takes the
            usual one.
        in_place: whether the sum may overwrite a gradient that is alone in its bucket; this saves a
            copy.
    """

    def __init__(
        self,
        gradients: Sequence[Tensor],
        group: dist.ProcessGroup | None,
        bucket_bytes: int | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        if bucket_bytes is None:
            bucket_bytes = Accelerator.shrunk(DEFAULT_BUCKET_BYTES)
        sizes = [gradient.nbytes for gradient in gradients]
        numbers = buckets(sizes, bucket_bytes, [gradient.dtype for gradient in gradients])
        parts = [[gradients[index] for index in bucket] for bucket in numbers]
        self._shapes = [[gradient.shape for gradient in part] for part in parts]
        self._rows = [_flat(part, in_place) for part in parts]
        self._works = [dist.all_reduce(row, group=group, async_op=True) for row in self._rows]

    def wait(self, divisor: int = 1) -> Iterator[Tensor]:
        """Yield each gradient's sum divided by ``divisor``, in order; wait bucket by bucket."""
        for work, row, shapes in zip(self._works, self._rows, self._shapes, strict=True):
            work.wait()
            if divisor != 1:
                row.div_(divisor)
            pieces = row.split([shape.numel() for shape in shapes])
            for piece, shape in zip(pieces, shapes, strict=True):
                yield piece.view(shape)


def sum_gradients(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Replace each gradient by its sum over the group, whose ranks have the same parameters.

    A sparse gradient becomes dense: ranks have values at different places.
    """
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
    sum_in_place([p.grad for p in parameters if p.grad is not None], group)


def sum_in_place(gradients: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Replace each tensor by its sum over the group; all its ranks give tensors of these shapes."""
    total = GradientSum(gradients, group, in_place=True)
    for gradient, summed in zip(gradients, total.wait(), strict=True):
        gradient.copy_(summed)


def _flat(gradients: Sequence[Tensor], in_place: bool) -> Tensor:
    if in_place and len(gradients) == 1:
        return gradients[0].contiguous().view(-1)
    return torch.cat([gradient.flatten() for gradient in gradients])
