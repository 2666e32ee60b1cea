"""What one stage computes, and which torch schedule drives the stages of a process.

``torch.distributed.pipelining`` asks more of a stage's boundary than a block of a network keeps,
so :class:`StageModule` sees to it::

    receive -> | gradient made | blocks | no view, contiguous, | -> send
               | contiguous    |        | requires gradient    |
"""

from __future__ import annotations

from collections.abc import Callable
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

from ddlbench.strategies.pipeline_parts.cutting import TensorForm

__all__ = ["StageModule", "make_stage", "torch_schedule"]

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
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """The same gradient; an average's is one number seen many times."""
        return gradient.contiguous()


class StageModule(nn.Module):
    """The blocks of one stage.

    * A gradient or activation that is not contiguous cannot be sent.
    * Zero-bubble schedules detach an output in place, which a view (of ``nn.Flatten``) refuses.
    * They lose a stage's weight gradients where its input requires none, as behind a stage that
      has no weights: so every output requires a gradient.
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
        return outputs if outputs.requires_grad else outputs.detach().requires_grad_()


def make_stage(
    blocks: nn.Sequential,
    index: int,
    count: int,
    *,
    device: torch.device,
    inputs: TensorForm,
    outputs: TensorForm,
    group: dist.ProcessGroup | None,
) -> PipelineStage:
    """A stage whose messages have known forms.

    With unknown ones torch runs a forward pass of made-up values to find them, and batch norm
    would keep their statistics.
    """
    received = inputs.tensor("meta").requires_grad_(index > 0)
    given = outputs.tensor("meta").requires_grad_()
    return PipelineStage(
        StageModule(blocks),
        index,
        count,
        device,
        input_args=(received,),
        output_args=(given,),
        group=group,
    )


def torch_schedule(
    name: str,
    stages: list[PipelineStage],
    micro_batches: int,
    loss_function: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """The schedule of torch that ``name`` of ours stands for; gradients are summed, not scaled."""
    if name in _SINGLE:
        (stage,) = stages
        return _SINGLE[name](stage, micro_batches, loss_function, scale_grads=False)
    return _SEVERAL[name](stages, micro_batches, loss_function, scale_grads=False)
