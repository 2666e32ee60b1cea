"""The communication hook of the one step of DDP that is recorded.

Annotations here are types, not texts: DDP compares those of a hook with its own.
"""

import torch
import torch.distributed as dist

from ddlbench.strategies.timing import SpanRecorder

__all__ = ["recorded_average"]


def recorded_average(
    spans: SpanRecorder, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """What DDP does with a bucket by itself: the average over all ranks, in place.

    Args:
        spans: gets the time from the bucket's last gradient to the end of its all-reduce.
        bucket: gradients side by side.
    """
    begin = spans.now()
    if bucket.is_last():
        spans.phase("all_reduce_wait")
    gradients = bucket.buffer().div_(dist.get_world_size())
    kind = f"all_reduce_bucket {bucket.index()}.0"

    def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        spans.beside(kind, begin, spans.now())
        return future.value()[0]

    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
    return averaged
