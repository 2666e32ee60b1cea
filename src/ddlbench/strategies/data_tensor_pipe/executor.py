"""Executor of data, tensor and pipeline parallelism, over gloo (CPU) or NCCL (CUDA)."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ddlbench.planning.network_tables import why_not_in_pairs
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.pipelining.executor import PipelineExecutor
from ddlbench.strategies.process_group import (
    ShardedStateExecutor,
    local,
    side_by_side,
    sum_in_place,
)
from ddlbench.strategies.tensor_parallel.executor import linear_pairs, split_pairs


class DataTensorPipeExecutor(PipelineExecutor, ShardedStateExecutor):
    """A part of one stage for each process; the ranks of a stage send within its passes."""

    def place(self, network: nn.Sequential) -> nn.Module:
        cell, processes = self.plan.cell, self.plan.processes
        together = len(processes) // len({(p.replica, p.stage) for p in processes})
        why_not = why_not_in_pairs(linear_pairs(network), cell.network, cell.strategy, together)
        if why_not is not None:
            raise Unsupported(why_not)
        # The ranks of a stage draw the same numbers in the layers that each of them computes.
        torch.manual_seed(cell.seed + self.process.replica)
        return super().place(network)

    def prepared(self, blocks: nn.Sequential) -> nn.Sequential:
        """The blocks with their pairs of linear layers split over the ranks of the stage."""
        group = side_by_side(self.stage_ranks, self.context)
        if len(self.stage_ranks[0]) > 1:
            split_pairs(blocks, DeviceMesh.from_group(group, self.context.devices[0].type))
        return blocks

    def sum_over_replicas(self) -> None:
        with torch.no_grad():
            gradients = [local(p.grad) for p in self.module.parameters() if p.grad is not None]
            sum_in_place(gradients, self.replica_group)
