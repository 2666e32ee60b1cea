"""A training step cut at every boundary between blocks, each part timed.

::

    forward    x0 -F0-> x1 -F1-> x2 -F2-> y            marks between, nothing else:
    backward       <-B0-   <-B1-   <-B2-  gradient     caches and allocator are as in training

The first block computes no gradient of its input, as in training. Where the activations of the
whole network do not fit, each block goes forward and backward alone, on a random gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlbench.profiling.clock import Marks
from ddlbench.profiling.pieces import Block, clear_gradients, next_input
from ddlbench.profiling.samples import Samples, Span

__all__ = ["Part", "alone", "cut_step", "time_blocks", "time_one_by_one"]


@dataclass(frozen=True)
class Part:
    """Where in the marks a block went forward and backward; None: no gradient passes it."""

    forward: Span
    backward: Span | None


def cut_step(blocks: Sequence[Block], inputs: Tensor, marks: Marks) -> tuple[list[Part], Tensor]:
    """One pass over the whole network, which is on the device; also returns its output.

    Parameters are left with their gradients, those of a random gradient of the output.
    """
    tape: list[tuple[Tensor, Tensor]] = []
    forward: list[Span] = []
    for block in blocks:
        begin = marks.mark()
        outputs = block.forward(inputs)
        forward.append((begin, marks.mark()))
        tape.append((inputs, outputs))
        inputs = next_input(outputs)
    result = outputs.detach()
    gradient: Tensor | None = torch.randn_like(result) / len(result)
    backward: list[Span | None] = []
    while tape:  # what is done is freed, as in a backward pass without cuts
        inputs, outputs = tape.pop()
        backward.append(_backward(inputs, outputs, gradient, marks))
        gradient = inputs.grad
    return [Part(*spans) for spans in zip(forward, reversed(backward), strict=True)], result


def alone(block: Block, inputs: Tensor, marks: Marks) -> tuple[Part, Tensor]:
    """One block forward and backward, on a random gradient; also the next block's input."""
    clear_gradients(block.module)
    inputs.grad = None
    begin = marks.mark()
    outputs = block.forward(inputs)
    forward = (begin, marks.mark())
    backward = _backward(inputs, outputs, torch.randn_like(outputs), marks)
    return Part(forward, backward), next_input(outputs)


def _backward(
    inputs: Tensor, outputs: Tensor, gradient: Tensor | None, marks: Marks
) -> Span | None:
    if not outputs.requires_grad or gradient is None:
        return None
    begin = marks.mark()
    torch.autograd.backward(outputs, gradient)
    return begin, marks.mark()


def time_blocks(
    blocks: Sequence[Block],
    inputs: Tensor,
    new_marks: Callable[[], Marks],
    count: Callable[[float], int],
    samples: Samples,
) -> None:
    """Warm up, then time as many cut steps as ``count`` says of the seconds of one.

    Args:
        blocks: on the device.
        inputs: (N, C, H, W) on the device; N is the batch size that is entered.
        new_marks: makes marks.
        count: seconds of a pass to number of passes.
        samples: gets the seconds, by the block's index.
    """
    marks = new_marks()
    begin = marks.mark()
    _clear(blocks)
    cut_step(blocks, inputs, marks)
    end = marks.mark()
    marks.finish()
    number = count(marks.wall_s(begin, end))
    marks, passes = new_marks(), []
    for _ in range(number):
        _clear(blocks)
        passes.append(cut_step(blocks, inputs, marks)[0])
    marks.finish()
    for parts in passes:
        for block, part in zip(blocks, parts, strict=True):
            samples.add(block.index, "forward", len(inputs), marks, part.forward)
            samples.add(block.index, "backward", len(inputs), marks, part.backward)
    _clear(blocks)


def time_one_by_one(
    blocks: Sequence[Block],
    inputs: Tensor,
    new_marks: Callable[[], Marks],
    count: Callable[[float], int],
    samples: Samples,
) -> None:
    """The same for a network too large for the device, a block at a time.

    ``count`` is asked of each block as if all blocks took as long.
    """
    batch_size = len(inputs)
    for block in blocks:
        with block.on_device() as device:
            inputs = inputs.detach().to(device).requires_grad_(inputs.requires_grad)
            warm_s = _alone_s(block, inputs, new_marks())
            marks = new_marks()
            number = count(warm_s * len(blocks))
            done = [alone(block, inputs, marks) for _ in range(number)]
            marks.finish()
            for part, _ in done:
                samples.add(block.index, "forward", batch_size, marks, part.forward)
                samples.add(block.index, "backward", batch_size, marks, part.backward)
            inputs = done[-1][1]


def _alone_s(block: Block, inputs: Tensor, marks: Marks) -> float:
    begin = marks.mark()
    alone(block, inputs, marks)
    end = marks.mark()
    marks.finish()
    return marks.wall_s(begin, end)


def _clear(blocks: Sequence[Block]) -> None:
    for block in blocks:
        clear_gradients(block.module)
