"""Stages of a pipeline, and the torch schedule that runs those of a process.

``torch.distributed.pipelining`` sends only contiguous tensors that are no views, which not every
block yields. :class:`StageModule` makes them so::

    activation   receive -> blocks -> no view, contiguous -> send
    gradient     send <- contiguous <- blocks <- receive
"""

from __future__ import annotations

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

from ddlbench.planning.schedules import Action
from ddlbench.planning.schedules.action import Kind
from ddlbench.strategies.pipelining.cutting import TensorForm
from ddlbench.strategies.timing import SpanRecorder

_SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SEVERAL = {
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
        outputs: Tensor = self.blocks(inputs)
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
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **named)

    @contextmanager
    def _passing(self, kind: Kind, micro_batch: int) -> Iterator[None]:
        """Time a pass; ``forward 3.2`` is the span of micro-batch 3 of the replica on stage 2."""
        self.passes.append(Action(kind, self.stage_index, micro_batch))
        with self.spans.span(f"{kind} {micro_batch}.{self.stage_index}"):
            yield


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
    # Zero-bubble schedules find a stage's weights from its input: so a received one always requires
    # a gradient, also from a stage without weights.
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
    if name in _SINGLE:
        (stage,) = stages
        return _SINGLE[name](stage, micro_batches, loss_function, scale_grads=False)
    return _SEVERAL[name](list(stages), micro_batches, loss_function, scale_grads=False)
