"""Communication hooks: what DDP calls when a bucket of gradients is full, to average it.

::

    none    | gradients / W |------- all-reduce -------|
    fp16    | fp16 | / W |--- all-reduce ---| fp32 |           half the bytes

Source: ``torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py``, torch 2.13.
"""

# Without deferred annotations: DDP compares the types in a hook's signature with its own.

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from ddlbench.strategies.timing import SpanRecorder

Averaged = torch.futures.Future[torch.Tensor]


@dataclass
class Hook:
    """A hook that records its spans.

    Args:
        spans: of the step; off outside of a recorded one.
        reduce: averages a bucket over all ranks in place.
    """

    spans: SpanRecorder
    reduce: Callable[[dist.GradBucket], Averaged]


def called(hook: Hook, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket; a span lasts from its last gradient to the end of its all-reduce."""
    spans = hook.spans
    if not spans.enabled:
        return hook.reduce(bucket)
    begin = spans.now()
    if bucket.is_last():
        spans.phase("all_reduce_wait")
    kind = f"all_reduce_bucket {bucket.index()}.0"

    def done(future: Averaged) -> torch.Tensor:
        spans.beside(kind, begin, spans.now())
        return future.value()

    averaged: Averaged = hook.reduce(bucket).then(done)
    return averaged


def average(bucket: dist.GradBucket) -> Averaged:
    """As DDP does itself."""
    gradients = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    averaged: Averaged = work.get_future().then(lambda future: future.value()[0])
    return averaged


def halved(bucket: dist.GradBucket) -> Averaged:
    """Sum gradients as fp16; values beyond 65504 become infinite."""
    assert dist.group.WORLD is not None
    averaged: Averaged = fp16_compress_hook(dist.group.WORLD, bucket)
    return averaged
