"""A network as blocks that run one after the other: a step cut between them, each part timed.

::

    forward    x0 -F0-> x1 -F1-> x2 -F2-> y            marks between, nothing else:
    backward       <-B0-   <-B1-   <-B2-  gradient     caches and allocator are as in training

The first block computes no gradient of its input, as in training. Where the activations of the
whole network do not fit, each block goes forward and backward alone, on a random gradient. When
each parameter's gradient is ready is heard in the same way::

    backward   |-- loss --|-- last block --| ...             |-- first block --|
    ready                         w9  b9      w8 b8  ...                   w0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ddlbench.experiment.errors import ConfigError
from ddlbench.profiling.timers import Marks, Samples, Span
from ddlbench.strategies.training import Autocast, with_precision


@dataclass(frozen=True)
class Block:
    """One child of the flat network.

    Args:
        index, name: in the network.
        plain: the child itself; its parameters and leaves have their names from here.
        module: what runs: the child, with the arithmetic of the cell.
        device: where it computes.
        resident: whether it stays there; else it comes and goes.
    """

    index: int
    name: str
    plain: nn.Module
    module: nn.Module
    device: torch.device
    resident: bool

    @contextmanager
    def on_device(self) -> Iterator[torch.device]:
        """Have the parameters on the device, and take them away where there is no room."""
        self.module.to(self.device)
        try:
            yield self.device
        finally:
            if not self.resident:
                clear_gradients(self.module)
                self.module.to("cpu")

    def forward(self, inputs: Tensor) -> Tensor:
        """The block's output.

        Raises:
            ConfigError: it changes its input, so that the network cannot be cut before it.
        """
        try:
            outputs: Tensor = self.module(inputs)
        except RuntimeError as error:
            if "in-place operation" not in str(error):
                raise
            raise ConfigError(
                f"block {self.name!r} overwrites its input, so the network cannot be cut before "
                "it; write inplace=False in its first operation"
            ) from error
        return outputs

    @property
    def autocast(self) -> bool:
        """Whether it computes in bfloat16."""
        return isinstance(self.module, Autocast)

    @property
    def is_leaf(self) -> bool:
        """Whether it is one operation."""
        return next(self.plain.children(), None) is None

    def fixed_tensors(self) -> Iterator[Tensor]:
        """Parameters and buffers."""
        yield from self.plain.parameters()
        yield from self.plain.buffers()


def blocks_of(
    network: nn.Sequential, precision: str, device: torch.device, resident: bool
) -> list[Block]:
    """The blocks of a plain network, computing in ``precision``."""
    running = with_precision(network, precision, device.type)
    pairs = zip(network._modules.items(), running, strict=True)
    return [
        Block(index, name, plain, module, device, resident)
        for index, ((name, plain), module) in enumerate(pairs)
        if plain is not None
    ]


def leaf_modules(block: Block) -> list[tuple[str, nn.Module]]:
    """Modules without children, by their names in the network."""
    return [
        (f"{block.name}.{name}" if name else block.name, module)
        for name, module in block.plain.named_modules()
        if next(module.children(), None) is None
    ]


def next_input(outputs: Tensor) -> Tensor:
    """A block's output as the next one's input: cut off, but wanting a gradient as before."""
    return outputs.detach().requires_grad_(outputs.requires_grad)


def clear_gradients(module: nn.Module) -> None:
    """As the optimiser does before every step."""
    for parameter in module.parameters():
        parameter.grad = None


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


@dataclass
class ReadyOrder:
    """Names and marks of parameters as their gradients became ready in one backward pass."""

    names: list[str] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    def clear(self) -> None:
        """Forget what was heard: another backward pass begins."""
        self.names.clear()
        self.marks.clear()

    @contextmanager
    def listening(self, network: nn.Module, marks: Marks) -> Iterator[None]:
        """Listen to the next backward pass."""

        def ready(name: str, _parameter: Tensor) -> None:
            self.names.append(name)
            self.marks.append(marks.mark())

        handles = [
            parameter.register_post_accumulate_grad_hook(partial(ready, name))
            for name, parameter in network.named_parameters()
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def fractions(self, marks: Marks, begin: int, end: int) -> list[tuple[str, float]]:
        """(name, part of the backward pass that was over), in order."""
        whole_s = marks.busy_s(begin, end)
        parts = [marks.busy_s(begin, mark) / whole_s if whole_s > 0 else 1.0 for mark in self.marks]
        return [(n, min(max(f, 0.0), 1.0)) for n, f in zip(self.names, parts, strict=True)]


def ready_block_by_block(
    blocks: Sequence[Block], inputs: Tensor, marks: Marks
) -> list[tuple[str, float]]:
    """The same where only one block fits on the device: the last block's gradients come first."""
    orders, spans = [], []
    for block in blocks:
        order = ReadyOrder()
        with block.on_device() as device, order.listening(block.plain, marks):
            inputs = inputs.detach().to(device).requires_grad_(inputs.requires_grad)
            part, inputs = alone(block, inputs, marks)
        marks.finish()
        orders.append(order)
        spans.append(part.backward)
    total_s = sum(marks.busy_s(*span) for span in spans if span is not None)
    over_s, found = 0.0, []
    for block, order, span in reversed(list(zip(blocks, orders, spans, strict=True))):
        if span is None:
            continue
        for name, mark in zip(order.names, order.marks, strict=True):
            ready_s = over_s + marks.busy_s(span[0], mark)
            found.append((f"{block.name}.{name}", min(ready_s / total_s, 1.0)))
        over_s += marks.busy_s(*span)
    return found


def tensor_entries(
    network: nn.Sequential, ready: Sequence[tuple[str, float]]
) -> list[dict[str, Any]]:
    """Entries of profile.json; a tensor whose gradient never came is left out."""
    parameters = dict(network.named_parameters())
    index = {name: number for number, name in enumerate(network._modules)}
    return [
        {
            "name": name,
            "block": index[name.split(".")[0]],
            "bytes": parameters[name].numel() * parameters[name].element_size(),
            "ready_fraction": fraction,
        }
        for name, fraction in ready
    ]
