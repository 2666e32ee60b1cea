"""The average over replicas: gradients fused into buckets, all reduced at the end of a step.

::

    gradients   | a b | c d e | f |          one all-reduce a bucket, all under way together
    bucket      |--0--|---1---|-2-|
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

__all__ = ["BUCKET_BYTES", "sum_gradients"]

# As large as DDP's buckets.
BUCKET_BYTES = 25 * 2**20


def sum_gradients(
    parameters: Sequence[nn.Parameter],
    group: dist.ProcessGroup | None,
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Replace each gradient by its sum over the group; all ranks have the same parameters."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    under_way = []
    for bucket in _buckets(gradients, bucket_bytes):
        flat = _flatten_dense_tensors(bucket)
        under_way.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in under_way:
        work.wait()
        for gradient, total in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
            gradient.copy_(total)


def _buckets(gradients: Sequence[Tensor], bucket_bytes: int) -> list[list[Tensor]]:
    """Neighbours of one type, up to so many bytes; a larger gradient is alone."""
    buckets: list[list[Tensor]] = []
    filled = 0
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        if not buckets or filled + size > bucket_bytes or buckets[-1][0].dtype != gradient.dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(gradient)
        filled += size
    return buckets
