"""What one stage computes, and which torch schedule drives the stages of a process.

``torch.distributed.pipelining`` asks more of a stage's boundary than a block of a network keeps,
so :class:`StageModule` sees to it::

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
    """Passes a tensor on; its gradient is laid out so that it can be sent."""

    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor) -> Tensor:
        """The same values."""
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        """The same gradient."""
        return gradient.contiguous()


class StageModule(nn.Module):
    """The blocks of one stage.

    * A tensor that is not contiguous cannot be sent: neither the activation after a transpose nor
      the gradient of a mean, which is one number seen many times.
    * Zero-bubble schedules detach an output in place, which a view (``nn.Flatten``'s) refuses.
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
    """A stage whose passes are timed and noted.

    Between passes a process receives, sends and waits for both; torch does these together, so they
    are one kind of span, ``wait``. Torch's own work on the schedule is in it, too.

    Attributes:
        spans: gets every pass.
        passes: of the step under way, of all stages of the process, in the order they ran in.
    """

    spans: SpanRecorder
    passes: list[Action]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **named: Any) -> Any:
        """Torch's, timed."""
        with self._passing("forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **named)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> Any:
        """Torch's, timed; without the weights' share in zero-bubble schedules."""
        kind: Kind = "backward" if full_backward else "backward_input"
        with self._passing(kind, bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **named: Any) -> Any:
        """Torch's, timed."""
        with self._passing("backward_weight", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **named)

    @contextmanager
    def _passing(self, kind: Kind, micro_batch: int) -> Iterator[None]:
        """Time a pass; its span is ``forward 3.2``: micro-batch 3 of the replica on stage 2."""
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

    With unknown ones torch runs a forward pass of made-up values to find them, and batch norm
    would keep their statistics. What is received always requires a gradient, also from a stage
    without weights: zero-bubble schedules find the weights of a stage by way of its input.
    """
    received = inputs.tensor("meta").requires_grad_(index > 0)
    given = outputs.tensor("meta").requires_grad_()
    stage = WatchedStage(
        StageModule(blocks),
        index,
        count,
        device,
        input_args=(received,),
        output_args=(given,),
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
    """The schedule of torch that ``name`` of ours stands for; gradients are summed, not scaled."""
    if name in _SINGLE:
        (stage,) = stages
        return _SINGLE[name](stage, micro_batches, loss_function, scale_grads=False)
    return _SEVERAL[name](list(stages), micro_batches, loss_function, scale_grads=False)
