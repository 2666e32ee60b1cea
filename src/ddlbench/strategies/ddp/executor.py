"""Executor of DistributedDataParallel, over gloo (CPU) or NCCL (CUDA).

In the recorded step a communication hook starts the all-reduces of DDP's buckets, as only a hook
sees when they begin and end::

    process    | forward | backward              | wait | update |
    buckets                  |-- 0 --|-- 1 --|-- 2 -----|

A bucket's span begins when its last gradient is ready.
"""

# Without deferred annotations: DDP compares the types in a hook's signature with its own.

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddlbench.strategies.ddp.descriptor import DdpDetails
from ddlbench.strategies.executor import StepwiseExecutor
from ddlbench.strategies.process_group import join_all
from ddlbench.strategies.timing import SpanRecorder


class DdpExecutor(StepwiseExecutor):
    """One replica for each process.

    Each replica keeps its own batch-norm statistics (``broadcast_buffers=False``), as with Horovod.
    Otherwise DDP would send them at every step, which Horovod does not.
    """

    def place(self, network: nn.Sequential) -> nn.Module:
        device = self.context.devices[0]
        join_all(self.context, self.process, self.plan.world_size)
        details = DdpDetails.of(self.plan)
        first_bytes, cap_bytes = details.first_bucket_bytes, details.bucket_cap_bytes
        return DistributedDataParallel(
            network.to(device),
            device_ids=[device] if device.type == "cuda" else None,
            # A number is also the size of the first bucket; None keeps torch's smaller one.
            bucket_cap_mb=cap_bytes / 2**20 if first_bytes == cap_bytes else None,
            broadcast_buffers=False,
        )

    def state_dict(self) -> dict[str, Any]:
        replica = self.module.module
        assert isinstance(replica, nn.Module)
        return {"network": replica.state_dict(), "optimizer": self.optimizer.state_dict()}

    def details(self) -> dict[str, Any]:
        first_bytes = DdpDetails.of(self.plan).first_bucket_bytes
        return {**super().details(), "first_bucket_bytes": first_bytes}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Register the hook, which cannot be removed: no step may be measured afterwards."""
        assert isinstance(self.module, DistributedDataParallel)
        self.module.register_comm_hook(self.spans, recorded_average)
        yield


def recorded_average(
    spans: SpanRecorder, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks in place, as DDP does itself, and record the span.

    It lasts from the bucket's last gradient to the end of its all-reduce.
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
