"""Times both halves of a block's backward pass, which zero-bubble schedules run apart.

::

    forward    x ----------------> y
    backward   dx <--|input half|-- dy        gradients at the operations with weights are kept
               dw <--|weight half|--'         from these, the gradients of the weights

Each block runs alone on a random gradient, through the functions that torch's pipeline runtime
calls (``torch.distributed.pipelining._backward``, torch 2.13). What it costs to split a pass is
part of the halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from ddlbench.profiling.blocks import Block, next_input, time_passes
from ddlbench.profiling.timers import Marks, Part, Samples


def time_halves(
    blocks: Sequence[Block],
    inputs: Tensor,
    new_marks: Callable[[], Marks],
    count: Callable[[float], int],
    samples: Samples,
) -> None:
    """Times all blocks; ``samples`` gets input halves as forward, weight halves as backward.

    Args:
        blocks: of a network that is on its device.
        inputs: of the first block.
        new_marks: as in :func:`ddlbench.profiling.blocks.time_passes`.
        count: likewise.
        samples: gets the seconds by the block's index.
    """

    def one_by_one(marks: Marks) -> list[Part]:
        parts, entering = [], inputs
        for block in blocks:
            # As in the runtime, also the input of a stage without weights requires a gradient.
            # Tokens cannot.
            entering = entering.detach().requires_grad_(entering.is_floating_point())
            outputs = block.forward(entering)
            if outputs._is_view():  # its graph is dropped in place, which a view forbids
                outputs = outputs.clone()
            following = next_input(outputs)
            parts.append(halved(block, entering, outputs, torch.randn_like(outputs), marks))
            entering = following
        return parts

    time_passes(blocks, len(inputs), one_by_one, new_marks=new_marks, count=count, samples=samples)


def halved(block: Block, inputs: Tensor, outputs: Tensor, gradient: Tensor, marks: Marks) -> Part:
    """The backward pass of a block in two halves; gradients are left where one pass leaves them."""
    weights = [weight for weight in block.module.parameters() if weight.requires_grad]
    if not inputs.requires_grad:  # of tokens: the runtime, too, then computes all with the weights
        begin = marks.mark()
        torch.autograd.backward(outputs, gradient)
        return Part((begin, begin), (begin, marks.mark()))
    begin = marks.mark()
    _, groups = stage_backward_input([outputs], [gradient], [inputs], iter(weights))
    middle = marks.mark()
    stage_backward_weight(iter(weights), groups)
    return Part((begin, middle), (middle, marks.mark()))
