"""Synchronous pipelines on torch.distributed.pipelining, over gloo (CPU) or NCCL (CUDA).

::

    a step   | micro-batches through the stages, by torch's schedule | sum over replicas | update |

A micro-batch's loss is divided by the number of micro-batches on all replicas. So the gradients add
up to those of the whole mini-batch, as in sequential training. Batch norm sees one micro-batch at a
time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ddlbench.common.quantities import counted
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.block_forms import TensorForm, block_forms, sample_form
from ddlbench.planning.schedules import Action, Schedule
from ddlbench.strategies.executor import Executor, MiniBatch, Unsupported, free_blocks
from ddlbench.strategies.pipelining.descriptor import FlushingPipeline, PipeliningDetails
from ddlbench.strategies.pipelining.stage import (
    WatchedStage,
    check_split_backward,
    make_stage,
    torch_schedule,
)
from ddlbench.strategies.process_group import (
    ShardedStateExecutor,
    join_all,
    side_by_side,
    sum_gradients,
)
from ddlbench.strategies.tensor_parallel.executor import split_pairs, whole_layers
from ddlbench.strategies.timing import SpanRecorder

# Spans of the last steps of a run are kept.
_KEPT_STEPS = 20


class PipelineExecutor(Executor):
    """The stages of one process, and torch's schedule that runs them."""

    def place(self, network: nn.Sequential) -> nn.Module:
        """Join the process groups, cut the network and keep this process's blocks."""
        descriptor = cast(FlushingPipeline, self.plan.strategy)
        self.planned: Schedule = descriptor.pipeline_schedule(self.plan.cell)
        details = PipeliningDetails.of(self.plan)
        self.replicas, self.chunks = details.replicas, details.chunks
        self.blocks = [range(first, last) for first, last, _ in details.stages]
        if self.blocks[-1].stop != len(network):
            raise Unsupported(
                f"the plan deals {counted(self.blocks[-1].stop, 'block')} to "
                f"{counted(len(self.blocks), 'stage')}, but "
                f"the network has {len(network)}",
                code="wrong_balance",
            )
        # Tests compare built-in networks with sequential training; no other is known.
        actions = self.planned.computations(self.process.stage)
        splits_backward = any(action.kind == "backward_input" for action in actions)
        if self.context.traits.blocks and splits_backward:
            check_split_backward(network, self.blocks, self.plan.cell, self.context.floating)
        self._join()
        samples = self.plan.cell.batch_size // (self.replicas * self.chunks)
        spec = DATASETS[self.plan.cell.dataset]
        micro_batch = sample_form(spec, samples, self.context.floating)
        place = (self.process.stage,)
        mine = [s for s, ranks in enumerate(self.planned.stage_ranks) if ranks == place]
        self.passes: list[Action] = []
        device = self.context.devices[0]
        # On a GPU an event for each pass would disturb measured steps: record_step records there.
        self.spans = SpanRecorder(device, keep_last=_KEPT_STEPS, enabled=device.type == "cpu")
        self.stages = self._stages(network, mine, micro_batch)
        names = list(network._modules)
        free_blocks(network, {names[number] for stage in mine for number in self.blocks[stage]})
        self.schedule = torch_schedule(self.planned.name, self.stages, self.chunks, self._loss)
        return network

    def compiled_modules(self) -> list[nn.Module]:
        """The blocks of each stage, without what makes their outputs fit for sending."""
        return [stage.submod.get_submodule("blocks") for stage in self.stages]

    def train(self, batch: MiniBatch | None) -> list[Tensor]:
        """Make one optimiser step; the last stage has the mean loss over its replica's samples."""
        inputs = () if batch is None or not self.stages[0].is_first else (batch.inputs,)
        last = any(stage.is_last for stage in self.stages)
        labels = batch.labels if batch is not None and last else None
        losses: list[Tensor] = []
        self.passes.clear()
        self.spans.begin_step(between="wait")
        self.optimizer.zero_grad()
        self.schedule.step(*inputs, target=labels, losses=losses, return_outputs=False)
        self._check_order()
        if self.replicas > 1:
            with self.spans.span("all_reduce"):
                sum_gradients(list(self.module.parameters()), self.replica_group)
        with self.spans.span("update"):
            self.optimizer.step()
        shares = [loss.detach() for loss in losses]
        return [torch.stack(shares).sum() * self.replicas] if last else []

    def prepared(self, blocks: nn.Sequential) -> nn.Sequential:
        """The blocks of a stage, on its device, as the stage runs them."""
        return blocks

    def persistent_tensors(self) -> Iterator[Tensor]:
        yield from super().persistent_tensors()
        # torch keeps a receive buffer for every micro-batch.
        for stage in self.stages:
            for infos in (stage.args_recv_info, stage.grad_recv_info):
                for received in infos.values():
                    # Inputs of the network have none; up to torch 2.12 not even the attribute.
                    buffers = (getattr(entry, "buffer", None) for entry in received)
                    yield from (buffer for buffer in buffers if buffer is not None)

    def _join(self) -> None:
        """Join the groups of all ranks, of this pipeline, and of the replicas of its stages."""
        join_all(self.context, self.process, self.plan.world_size)
        shape = (self.replicas, self.planned.world_size, -1)
        # Of each rank its replica, its place in the pipeline, and its place in the stage's group.
        ranks = torch.arange(self.plan.world_size).reshape(shape)
        pipelines, replicas = ranks.permute(0, 2, 1), ranks.permute(1, 2, 0)
        self.pipeline = side_by_side(pipelines.flatten(0, 1).tolist(), self.context)
        self.replica_group = side_by_side(replicas.flatten(0, 1).tolist(), self.context)
        self.stage_ranks = ranks.flatten(0, 1).tolist()

    def _stages(
        self, network: nn.Sequential, mine: list[int], micro_batch: TensorForm
    ) -> list[WatchedStage]:
        device = self.context.devices[0]
        blocks = list(network.named_children())
        forms = block_forms(network, micro_batch, device)
        made = []
        for index in mine:
            numbers = self.blocks[index]
            stage = nn.Sequential(OrderedDict(blocks[number] for number in numbers)).to(device)
            stage = self.prepared(stage)
            made.append(
                make_stage(
                    stage,
                    index,
                    self.planned.num_stages,
                    device=device,
                    inputs=forms[numbers.start],
                    outputs=forms[numbers.stop],
                    group=self.pipeline,
                    spans=self.spans,
                    passes=self.passes,
                )
            )
        return made

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """A micro-batch's share of the mean loss of the mini-batch."""
        with self.spans.span("loss"):
            return self.loss_function(outputs, labels) / (self.chunks * self.replicas)

    def _check_order(self) -> None:
        """Check that torch ran the planned schedule, which figures draw and predictors replay."""
        planned = self.planned.computations(self.process.stage)
        ran = [(a.kind, a.stage, a.micro_batch) for a in self.passes]
        if ran != [(a.kind, a.stage, a.micro_batch) for a in planned]:
            raise RuntimeError(
                f"torch {torch.__version__} ran schedule {self.planned.name} in another order "
                f"than planned: {' '.join(map(str, self.passes))}"
            )


class DataTensorPipeExecutor(PipelineExecutor, ShardedStateExecutor):
    """A part of one stage for each process; the ranks of a stage send within its passes."""

    def place(self, network: nn.Sequential) -> nn.Module:
        cell = self.plan.cell
        group = len(self.plan.processes) // len({(p.replica, p.stage) for p in self.plan.processes})
        self.whole = whole_layers(network, cell, group, self.context)
        # The ranks of a stage draw the same numbers in the layers that each of them computes.
        torch.manual_seed(cell.seed + self.process.replica)
        return super().place(network)

    def prepared(self, blocks: nn.Sequential) -> nn.Sequential:
        """The blocks with their pairs of linear layers split over the ranks of the stage."""
        group = side_by_side(self.stage_ranks, self.context)
        if len(self.stage_ranks[0]) > 1:
            mesh = DeviceMesh.from_group(group, self.context.devices[0].type)
            split_pairs(blocks, mesh, self.whole)
        return blocks
