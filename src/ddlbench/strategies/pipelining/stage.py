"""Stages of a pipeline: what their blocks send and cost, and the torch schedule that runs them.

``torch.distributed.pipelining`` sends only contiguous tensors that are no views, which not every
block yields. :class:`StageModule` makes them so::

    activation   receive -> blocks -> no view, contiguous -> send
    gradient     send <- contiguous <- blocks <- receive

In a zero-bubble schedule torch computes the gradient of a stage's input first, and those of its
weights later. It starts the second part where a weight's path meets the path of the input::

    input ---- o ---- o ---- output        B: along the upper path
              /      /                     W: from each o to its weight
             w0     w1

So a weight whose path never meets the input's has no gradient, as after ``detach``. A hook beyond
an ``o`` runs twice. Whether a network has such places, only a trial shows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from ddlbench.common.errors import first_line
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.block_forms import TensorForm
from ddlbench.networks.foreign import seeded
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.inspection import copy_of
from ddlbench.planning.schedules import Action
from ddlbench.planning.schedules.schedule import Kind
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.timing import SpanRecorder

_SINGLE_STAGE: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_MULTI_STAGE: dict[str, Any] = {
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "interleaved-zero-bubble": ScheduleInterleavedZeroBubble,
    "zero-bubble-v": ScheduleZBVZeroBubble,
}


class _ContiguousGradient(torch.autograd.Function):
    """The identity, with a contiguous gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


class StageModule(nn.Module):
    """The blocks of one stage.

    * Only contiguous tensors can be sent. An activation after a transpose is not contiguous, nor is
      the gradient of a mean, which is one number expanded.
    * Zero-bubble schedules detach an output in place, which a view (as of ``nn.Flatten``) forbids.
    """

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, ...) -> (N, ...)."""
        if inputs.requires_grad:
            inputs = _ContiguousGradient.apply(inputs)
        outputs = self.blocks(inputs)
        if outputs._is_view() or not outputs.is_contiguous():
            outputs = outputs.clone(memory_format=torch.contiguous_format)
        return outputs


class WatchedStage(PipelineStage):
    """A stage that times and lists its passes.

    Between passes a process receives, sends and waits for both. Torch does these together, so they
    are one kind of span, ``wait``, which also contains torch's own work on the schedule.
    """

    spans: SpanRecorder
    passes: list[Action]  # of the current step, of all stages of the process, in their order

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **named: Any) -> Any:
        with self._passing("forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **named)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> Any:
        kind: Kind = "backward" if full_backward else "backward_input"
        with self._passing(kind, bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **named: Any) -> Any:
        with self._passing("backward_weight", bwd_chunk_id):
            returned = super().backward_weight_one_chunk(bwd_chunk_id, *args, **named)
            store_expanded_gradients(self.submod)
            return returned

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Torch's first messages to the neighbours, but for those to a stage of this process.

        Up to torch 2.12 a process that has both sends them to itself, which gloo cannot.
        """
        messages = super()._get_init_p2p_neighbors_ops()
        return [message for message in messages if message.group_peer != self.group_rank]

    @contextmanager
    def _passing(self, kind: Kind, micro_batch: int) -> Iterator[None]:
        """Time a pass; ``forward 3.2`` is the span of micro-batch 3 of the replica on stage 2."""
        self.passes.append(Action(kind, self.stage_index, micro_batch))
        with self.spans.span(f"{kind} {micro_batch}.{self.stage_index}"):
            yield


def store_expanded_gradients(module: nn.Module) -> None:
    """Store every element of expanded gradients, as a whole backward pass does.

    The gradient of ``weight.sum()`` is one number expanded. Torch adds the gradient of the next
    micro-batch in place, which needs every element.
    """
    for weight in module.parameters():
        gradient = weight.grad
        if gradient is None or gradient.layout != torch.strided:
            continue
        if any(
            size > 1 and stride == 0
            for size, stride in zip(gradient.shape, gradient.stride(), strict=True)
        ):
            weight.grad = gradient.clone(memory_format=torch.contiguous_format)


def make_stage(
    blocks: nn.Sequential,
    index: int,
    count: int,
    *,
    device: torch.device,
    inputs: TensorForm,
    outputs: TensorForm,
    group: dist.ProcessGroup | None,
    spans: SpanRecorder,
    passes: list[Action],
) -> WatchedStage:
    """A stage whose messages have known forms.

    Otherwise torch finds the forms with a forward pass on made-up values, whose statistics batch
    norm would keep.
    """
    # Zero-bubble schedules find a stage's weights from its input. So a received input requires a
    # gradient, even if no stage before has weights.
    received = inputs.tensor("meta").requires_grad_(index > 0)
    produced = outputs.tensor("meta").requires_grad_()
    stage = WatchedStage(
        StageModule(blocks),
        index,
        count,
        device,
        input_args=(received,),
        output_args=(produced,),
        group=group,
    )
    stage.spans, stage.passes = spans, passes
    return stage


def torch_schedule(
    name: str,
    stages: Sequence[WatchedStage],
    micro_batches: int,
    loss_function: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """Torch's schedule of this name; it sums the gradients of micro-batches."""
    if name in _SINGLE_STAGE:
        (stage,) = stages
        return _SINGLE_STAGE[name](stage, micro_batches, loss_function, scale_grads=False)
    return _MULTI_STAGE[name](list(stages), micro_batches, loss_function, scale_grads=False)


_SAMPLES = 2  # batch norm refuses a single value per channel
_RELATIVE, _OF_THE_LARGEST = 1e-3, 1e-5  # far above the rounding of float32


def check_split_backward(
    network: nn.Sequential,
    stages: Sequence[range],
    cell: Cell,
    floating: torch.dtype = torch.float32,
) -> None:
    """Check all stages but the first, whose backward pass torch does not split.

    Raises:
        Unsupported: the gradients of a stage's weights or input are not those of a whole pass.
    """
    blocks = list(network._modules.items())
    with seeded(0):
        activation = made_up_inputs(DATASETS[cell.dataset], _SAMPLES, "cpu")
        if activation.is_floating_point():
            activation = activation.to(floating)
        for number, stage in enumerate(stages):
            part = nn.Sequential(OrderedDict(blocks[stage.start : stage.stop]))
            if number and (why := _difference(part, activation)) is not None:
                raise Unsupported(
                    f"{cell.strategy} splits backward passes, and on stage {number} {why}; take "
                    "pipe-1f1b, which does not split them",
                    code="split_backward_differs",
                )
            activation = copy_of(part)(activation).detach()


def _difference(blocks: nn.Sequential, inputs: Tensor) -> str | None:
    """What differs, for a sentence; None if nothing does, or a whole pass fails as well."""
    try:
        whole = _gradients(blocks, inputs, _whole_pass)
    except Exception:
        return None
    try:
        split = _gradients(blocks, inputs, _split_pass)
    except Exception as error:
        cause = error.__cause__ or error
        return f"that fails: {first_line(cause).partition('. ')[0].rstrip('.')}"
    for name, gradient in whole.items():
        if not _is_close(gradient, split[name]):
            return f"{name} would get another gradient than from a whole pass"
    return None


def _gradients(
    blocks: nn.Sequential, inputs: Tensor, backward: Callable[[nn.Module, Tensor, Tensor], None]
) -> dict[str, Tensor | None]:
    """Gradients of a copy's weights and input after one pass, with the same random numbers."""
    stage = StageModule(copy_of(blocks)).train()
    with seeded(1):
        received = inputs.detach().clone().requires_grad_()
        outputs = stage(received)
        if outputs.requires_grad:
            backward(stage, received, outputs)
    weights = {name: weight.grad for name, weight in stage.blocks.named_parameters()}
    return {**weights, "its input": received.grad}


def _whole_pass(_stage: nn.Module, _received: Tensor, outputs: Tensor) -> None:
    outputs.backward(_weighting(outputs))


def _split_pass(stage: nn.Module, received: Tensor, outputs: Tensor) -> None:
    _, groups = stage_backward_input(
        [outputs], [_weighting(outputs)], [received], stage.parameters()
    )
    stage_backward_weight(stage.parameters(), groups)


def _weighting(outputs: Tensor) -> Tensor:
    """A gradient of the outputs in which all places differ."""
    return torch.linspace(-1, 1, outputs.numel()).view(outputs.shape).to(outputs.dtype)


def _is_close(gradient: Tensor | None, other: Tensor | None) -> bool:
    """Whether two gradients are the same but for rounding; a missing one is zero."""
    if gradient is None or other is None:
        known = gradient if other is None else other
        return known is None or not known.to_dense().any()
    gradient, other = gradient.to_dense(), other.to_dense()
    absolute = 0.0
    if gradient.numel():
        absolute = _OF_THE_LARGEST * float(gradient.abs().nan_to_num().max())
    return torch.allclose(gradient, other, rtol=_RELATIVE, atol=absolute, equal_nan=True)
