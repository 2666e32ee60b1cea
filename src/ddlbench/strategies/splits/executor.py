"""Executors of the splits, over gloo (CPU) or NCCL (CUDA): one process for each device.

Every rank of a group reads the same samples, whole; a spatial rank then keeps its rows of them.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.block_forms import sample_form
from ddlbench.strategies.executor import Executor
from ddlbench.strategies.process_group import across, groups_of, join_all, sum_gradients
from ddlbench.strategies.splits.convert import Grid, Rows, WeightShards, split_rows, split_weights
from ddlbench.strategies.splits.descriptor import SplitDetails, SplitStrategy, grid_of
from ddlbench.strategies.splits.layout import BlockTrace, trace
from ddlbench.strategies.splits.shard_group import GridAxis, ShardGroup, axes_of, join_shard_group
from ddlbench.strategies.splits.weights import WeightSplit
from ddlbench.strategies.timing import SpanRecorder

# Spans of the last steps of a run are kept: a deep network has a thousand spans in each step.
_KEPT_STEPS = 5


class SplitExecutor(Executor):
    """Base of the splits: groups of ranks, and the average over groups."""

    def place(self, network: nn.Sequential) -> nn.Module:
        """Join the process groups and split the network."""
        device = self.context.devices[0]
        details = SplitDetails.of(self.plan)
        self.group_size, self.groups = details.group, details.replicas
        # On a GPU a thousand events would disturb a measured step: record_step records there.
        self.spans = SpanRecorder(device, keep_last=_KEPT_STEPS, enabled=device.type == "cpu")
        join_all(self.context, self.process, self.plan.world_size)
        self.rank_groups = groups_of(self.plan.world_size, self.group_size)
        self.within = self._join_one(self.rank_groups)
        self.over_groups = self._join_one(across(self.rank_groups)).process_group
        # All ranks of a group must draw the same random numbers in the layers that each computes.
        torch.manual_seed(self.plan.cell.seed + self.process.replica)
        if self.group_size > 1:
            cell = self.plan.cell
            samples = cell.batch_size // self.groups
            batch = sample_form(DATASETS[cell.dataset], samples, self.context.floating)
            self.split(network, trace(network, batch, device))
        return network.to(device)

    def split(self, network: nn.Sequential, traced: list[BlockTrace]) -> None:
        """Replace the split layers in place."""
        raise NotImplementedError

    def shard(self, inputs: Tensor) -> Tensor:
        """This rank's part of the inputs."""
        return inputs

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return super().step(self.shard(inputs), labels)

    def backward(self, loss: Tensor) -> None:
        (loss / self.groups).backward()
        self.combine_gradients()

    def combine_gradients(self) -> None:
        """Add up gradients over the ranks with the same place in each group."""
        if self.groups > 1:
            with self.spans.span("all_reduce"):
                sum_gradients(list(self.module.parameters()), self.over_groups)

    def _join_one(self, rank_groups: list[list[int]]) -> ShardGroup:
        """Join this rank's group of several disjoint ones."""
        return join_shard_group(rank_groups, self.process.rank, self.spans, self.context)


class SpatialExecutor(SplitExecutor):
    """Rows of every activation, up to the head."""

    rows: Rows | None = None
    grid: Grid | None = None

    def split(self, network: nn.Sequential, traced: list[BlockTrace]) -> None:
        details = SplitDetails.of(self.plan)
        sizes = grid_of(details.split, self.group_size)
        axes = axes_of(self.rank_groups, sizes)
        self.grid = Grid(
            self.within, tuple(GridAxis(d, self._join_one(ranks)) for d, ranks in axes.items())
        )
        self.rows = split_rows(network, traced, self.grid, details.until)
        split = set(self.rows.parameters)
        self.whole = [p for p in network.parameters() if p not in split]

    def shard(self, inputs: Tensor) -> Tensor:
        return inputs if self.grid is None else self.grid.shard(inputs)

    def combine_gradients(self) -> None:
        """Add up gradients of split blocks over all ranks, and the others over groups."""
        if self.rows is None:
            super().combine_gradients()
            return
        with self.spans.span("all_reduce"):
            sum_gradients(self.rows.parameters, dist.group.WORLD)
            if self.groups > 1:
                sum_gradients(self.whole, self.over_groups)

    def details(self) -> dict[str, Any]:
        if self.rows is None or self.grid is None:
            return super().details()
        return {
            **super().details(),
            "grid": [axis.group.size for axis in self.grid.axes],
            "split_blocks": self.rows.split_blocks,
            "ends_with": self.rows.ends_with,
        }


class WeightSplitExecutor(SplitExecutor):
    """Weights of every layer: each rank has its own filters, or its own input channels."""

    shards: WeightShards | None = None

    def split(self, network: nn.Sequential, traced: list[BlockTrace]) -> None:
        by = cast(SplitStrategy, self.plan.strategy).by
        assert by != "rows"
        self.shards = split_weights(network, traced, self.within, by)

    def state_dict(self) -> dict[str, Any]:
        """Whole weights under the names of the plain network, and this rank's optimiser state.

        All ranks of a group call this together.
        """
        network: dict[str, Tensor] = {}
        modules = self.module.named_modules(remove_duplicate=False)
        splits = {name: module for name, module in modules if isinstance(module, WeightSplit)}
        for name, value in self.module.state_dict().items():
            layer = name.rpartition(".")[0]
            if layer not in splits:
                network[name] = value
            elif f"{layer}.weight" not in network:
                whole = splits[layer].whole_state()
                network.update((f"{layer}.{key}", tensor) for key, tensor in whole.items())
        return {"network": network, "optimizer": self.optimizer.state_dict()}

    def details(self) -> dict[str, Any]:
        if self.shards is None:
            return super().details()
        return {
            **super().details(),
            "split_layers": len(self.shards.split_layers),
            "whole_layers": self.shards.whole_layers,
        }
