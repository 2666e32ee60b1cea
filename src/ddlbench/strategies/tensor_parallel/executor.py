"""Executor of tensor parallelism, over gloo (CPU) or NCCL (CUDA): one process for each device.

::

    group 0   rank 0 | forward | backward, with an all-reduce after each pair  | sum   | update
              rank 1 |   of the same samples                                   | over  | update
    group 1   rank 2 | ... of other samples                                    | groups| update
              rank 3 |                                                         |       | update

A rank's groups are the two axes of a mesh: its tensor group, and the ranks with the same place in
the other groups, which have the same part of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ddlbench.planning.network_tables import why_not_in_pairs
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.gradient_sum import sum_in_place
from ddlbench.strategies.process_group import join_all, side_by_side
from ddlbench.strategies.sharded_state import ShardedStateExecutor, local
from ddlbench.strategies.tensor_parallel.conversion import linear_pairs, split_pairs
from ddlbench.strategies.tensor_parallel.descriptor import TensorDetails
from ddlbench.strategies.timing import SpanRecorder

_COLLECTIVES = ("all_reduce", "wait_tensor")


class TensorParallelExecutor(ShardedStateExecutor):
    """Halves of linear layers on the ranks of a group; equal groups add up gradients."""

    def place(self, network: nn.Sequential) -> nn.Module:
        device = self.context.devices[0]
        details = TensorDetails.of(self.plan)
        self.groups = details.replicas
        join_all(self.context, self.process, self.plan.world_size)
        why_not = why_not_in_pairs(
            linear_pairs(network), self.plan.cell.network, self.plan.cell.strategy, details.group
        )
        if why_not is not None:
            raise Unsupported(why_not)
        # All ranks of a group must draw the same random numbers in the layers that each computes.
        torch.manual_seed(self.plan.cell.seed + self.process.replica)
        network.to(device)
        ranks = range(self.plan.world_size)
        rows = [list(ranks[at : at + details.group]) for at in ranks[:: details.group]]
        self.over_groups = None
        if self.groups > 1:
            same_place = [list(one) for one in zip(*rows, strict=True)]
            self.over_groups = side_by_side(same_place, self.context)
        if details.group > 1:
            # Of a group of our own, because a group that the mesh makes has torch's time limit.
            within = side_by_side(rows, self.context)
            split_pairs(network, DeviceMesh.from_group(within, device.type))
        return network

    def backward(self, loss: Tensor) -> None:
        (loss / self.groups).backward()
        if self.over_groups is not None:
            with self.spans.span("all_reduce"), torch.no_grad():
                gradients = [local(p.grad) for p in self.module.parameters() if p.grad is not None]
                sum_in_place(gradients, self.over_groups)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time the all-reduces of pairs, which on CPUs interrupt the pass.

        On GPUs collectives run on streams of their own, which the recorder does not see.
        """
        on_cpu = self.context.devices[0].type == "cpu"
        with _Recorder(self.spans) if on_cpu else nullcontext():
            yield


class _Recorder(TorchDispatchMode):
    """Sees the collectives that DTensor starts, and where a pass waits for them."""

    def __init__(self, spans: SpanRecorder) -> None:
        super().__init__()
        self._spans = spans

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        # DTensor comes first and calls operations of plain tensors, which come back here.
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented
        packet = func._overloadpacket
        is_collective = packet._qualified_op_name.startswith("_c10d_functional::")
        is_timed = is_collective and packet.__name__ in _COLLECTIVES
        with self._spans.span("all_reduce") if is_timed else nullcontext():
            return func(*args, **(kwargs or {}))
