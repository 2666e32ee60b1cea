"""The sum of gradients over the replicas of a stage, in buckets, under way while others compute.

::

    gradients   | a b | c d e | f |         one all-reduce a bucket, all started at once
    buckets     |--0--|---1---|-2-|         wait: each gradient is a view of its bucket
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["ReplicaSum"]

# As large as the buckets of torch's DDP.
BUCKET_BYTES = 25 * 2**20


class ReplicaSum:
    """One sum under way; starts when made.

    Args:
        gradients: of this replica; all replicas have the same shapes.
        group: of the replicas.
        bucket_bytes: size of a bucket; a larger gradient is alone.
    """

    def __init__(
        self,
        gradients: Sequence[Tensor],
        group: dist.ProcessGroup | None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        buckets = _buckets(gradients, bucket_bytes)
        self._shapes = [[gradient.shape for gradient in bucket] for bucket in buckets]
        self._flats = [torch.cat([g.flatten() for g in bucket]) for bucket in buckets]
        self._works = [dist.all_reduce(flat, group=group, async_op=True) for flat in self._flats]

    def mean(self, count: int) -> list[Tensor]:
        """Wait for the sum; return it over ``count``, the mini-batches that are in it."""
        gradients: list[Tensor] = []
        for work, flat, shapes in zip(self._works, self._flats, self._shapes, strict=True):
            work.wait()
            flat.div_(count)
            ends = list(accumulate(shape.numel() for shape in shapes))
            for begin, end, shape in zip([0, *ends], ends, shapes, strict=False):
                gradients.append(flat[begin:end].view(shape))
        return gradients


def _buckets(gradients: Sequence[Tensor], bucket_bytes: int) -> list[list[Tensor]]:
    """Neighbours of one type, up to so many bytes."""
    buckets: list[list[Tensor]] = []
    filled = 0
    for gradient in gradients:
        size = gradient.nbytes
        if not buckets or filled + size > bucket_bytes or buckets[-1][0].dtype != gradient.dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(gradient)
        filled += size
    return buckets
