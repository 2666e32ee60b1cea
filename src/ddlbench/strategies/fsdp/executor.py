"""Executor of fully sharded data parallelism, over gloo (CPU) or NCCL (CUDA).

Each block with weights is a unit of ``fully_shard``. On CPUs its collectives are spans of the
recorded step, as they interrupt the pass::

    | gather 0 | forward | gather 2 | forward | backward | scatter 2 | gather 0 | backward | ...

Hybrid sharding has a mesh of two axes: groups, and ranks of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from ddlbench.planning.step import GroupOptions
from ddlbench.strategies.accumulation import AccumulatingExecutor
from ddlbench.strategies.fsdp.descriptor import FsdpOptions, FullyShardedDataParallel
from ddlbench.strategies.process_group import ShardedStateExecutor, join_all
from ddlbench.strategies.timing import SpanRecorder


class FsdpExecutor(AccumulatingExecutor, ShardedStateExecutor):
    """A share of every weight for each process, and whole weights for the block that computes.

    Batch-norm statistics stay whole, each process's own, as with DDP.
    """

    def place(self, network: nn.Sequential) -> nn.Module:
        device = self.context.devices[0]
        join_all(self.context, self.process, self.plan.world_size)
        mesh = self.mesh()
        details = FsdpOptions.of(self.plan)
        policy = MixedPrecisionPolicy()
        if details.param_dtype == "bf16":
            policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
            )
        network.to(device)
        units = {
            index: block
            for index, block in enumerate(network)
            if any(True for _ in block.parameters())
        }
        for index, block in units.items():
            fully_shard(
                block,
                mesh=mesh,
                reshard_after_forward=details.reshard_after_forward and index != max(units),
                mp_policy=policy,
            )
        fully_shard(network, mesh=mesh, mp_policy=policy)
        self.units = units
        return network

    def mesh(self) -> DeviceMesh:
        """The ranks that share the weights."""
        strategy = cast(FullyShardedDataParallel, self.plan.strategy)
        kind, sharers = self.context.devices[0].type, strategy.sharers(self.plan.cell)
        if not issubclass(strategy.options, GroupOptions):
            return init_device_mesh(kind, (sharers,))
        shape = (self.plan.world_size // sharers, sharers)
        return init_device_mesh(kind, shape, mesh_dim_names=("groups", "group"))

    @contextmanager
    def before_the_last(self) -> Iterator[None]:
        """Gradients are scattered, see the descriptor; HSDP sums shares over its groups later."""
        assert isinstance(self.module, FSDPModule)
        self.module.set_requires_all_reduce(False)
        yield
        self.module.set_requires_all_reduce(True)

    def compiled_modules(self) -> list[nn.Module]:
        """Each sharded block, between the collectives that make its weights whole."""
        return list(self.units.values())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time the collectives of every unit; no step may be measured afterwards.

        On GPUs they run on streams of their own, which the recorder does not see.
        """
        watched = self.units if self.context.devices[0].type == "cpu" else {}
        for index, block in watched.items():
            assert isinstance(block, FSDPModule)
            block.set_custom_all_gather(RecordedAllGather(self.spans, index))
            block.set_custom_reduce_scatter(RecordedReduceScatter(self.spans, index))
        yield


class _Recorded:
    """A collective of a unit, whose span interrupts the pass."""

    kind = ""

    def __init__(self, spans: SpanRecorder, unit: int) -> None:
        self._spans, self._name = spans, f"{self.kind} {unit}.0"

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class RecordedAllGather(_Recorded, AllGather):
    """Weights of all ranks become whole."""

    kind = "gather"

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        with self._spans.span(self._name):
            return dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )


class RecordedReduceScatter(_Recorded, ReduceScatter):
    """Gradients are summed; each rank gets its part of the sum."""

    kind = "scatter"

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        with self._spans.span(self._name):
            return dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
