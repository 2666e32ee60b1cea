"""DistributedDataParallel on gloo (CPU) or NCCL (CUDA).

In the one step that is recorded, the all-reduces of DDP's buckets are asked for by a communication
hook, as only there their begin and end can be seen::

    process    | forward | backward              | wait | update |
    buckets                  |-- 0 --|-- 1 --|-- 2 -----|

A bucket begins when its last gradient is there.
"""

# Annotations are types here, not texts: DDP compares those of a hook with its own.

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
    """One replica a process.

    Batch-norm statistics stay with each replica (``broadcast_buffers=False``), as they do with
    Horovod: otherwise DDP would send them at every step and the two would do unequal work.
    """

    def place(self, network: nn.Sequential) -> nn.Module:
        """Join the process group and wrap the replica."""
        device = self.context.devices[0]
        join_all(self.context, self.process, self.plan.world_size)
        details = DdpDetails.of(self.plan)
        first_bytes, cap_bytes = details.first_bucket_bytes, details.bucket_cap_bytes
        return DistributedDataParallel(
            network.to(device),
            device_ids=[device] if device.type == "cuda" else None,
            # With a number torch's first bucket is as large as the others; with None it is small.
            bucket_cap_mb=cap_bytes / 2**20 if first_bytes == cap_bytes else None,
            broadcast_buffers=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Weights under the names of the plain network."""
        replica = self.module.module
        assert isinstance(replica, nn.Module)
        return {"network": replica.state_dict(), "optimizer": self.optimizer.state_dict()}

    def details(self) -> dict[str, Any]:
        """And when the first bucket of a step is sent."""
        first_bytes = DdpDetails.of(self.plan).first_bucket_bytes
        return {**super().details(), "first_bucket_bytes": first_bytes}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """All-reduces by a hook; it stays, so nothing is measured afterwards."""
        assert isinstance(self.module, DistributedDataParallel)
        self.module.register_comm_hook(self.spans, recorded_average)
        yield

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


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
