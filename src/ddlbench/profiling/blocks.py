"""Times a network block by block: both passes, both halves of the backward pass, ready gradients.

Only marks stand between blocks::

    forward    x0 -F0-> x1 -F1-> x2 -F2-> y            caches and allocator are
    backward       <-B0-   <-B1-   <-B2-  gradient     as in training

    backward   |-- loss --|-- last block --| ...             |-- first block --|
    ready                         w9  b9      w8 b8  ...                   w0

The first block computes no gradient of its input, as in training. If the activations of the whole
network do not fit, each block runs forward and backward alone, on a random gradient.

Zero-bubble schedules run the halves of a backward pass apart::

    forward    x ----------------> y
    backward   dx <--|input half|-- dy        gradients at the operations with weights are kept
               dw <--|weight half|--'         from these, the gradients of the weights

To time halves, each block runs alone on a random gradient, through the functions that torch's
pipeline runtime calls (``torch.distributed.pipelining._backward``, torch 2.13). What it costs to
split a pass is part of the halves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.hooks import RemovableHandle

from ddlbench.common.errors import ConfigError
from ddlbench.profiling.timers import Marks, Part, PassTimer, Span
from ddlbench.strategies.training import Autocast, with_precision


@dataclass(frozen=True)
class Block:
    """One child of the flat network.

    Args:
        index, name: in the network.
        plain: the child itself; parameters and leaves are named after it.
        module: the child with the arithmetic of the cell; this is what runs.
        device: where it computes.
        resident: whether it stays on the device between passes.
    """

    index: int
    name: str
    plain: nn.Module
    module: nn.Module
    device: torch.device
    resident: bool

    @contextmanager
    def on_device(self) -> Iterator[torch.device]:
        """Moves the block to its device; moves it back at the end unless it is resident."""
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
            ConfigError: the block changes its input, so the network cannot be cut before it.
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
        return isinstance(self.module, Autocast)

    @property
    def is_leaf(self) -> bool:
        return next(self.plain.children(), None) is None


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
    """Modules without children, with their names in the network."""
    return [
        (f"{block.name}.{name}" if name else block.name, module)
        for name, module in block.plain.named_modules()
        if next(module.children(), None) is None
    ]


def next_input(outputs: Tensor, device: torch.device | None = None) -> Tensor:
    """A block's output as the next block's input: detached, with the same need for a gradient."""
    entering = outputs.detach().to(device or outputs.device)
    return entering.requires_grad_(outputs.requires_grad)


def clear_gradients(module: nn.Module) -> None:
    """Drops all gradients, as the optimiser does before every step."""
    for parameter in module.parameters():
        parameter.grad = None


def cut_step(blocks: Sequence[Block], inputs: Tensor, marks: Marks) -> tuple[list[Part], Tensor]:
    """One forward and backward pass over a network on the device; also returns the output.

    The output's gradient is random. Parameters keep the gradients of this pass.
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
    return list(map(Part, forward, reversed(backward))), result


def alone(block: Block, inputs: Tensor, marks: Marks) -> tuple[Part, Tensor]:
    """One block forward and backward on a random gradient; also returns the next block's input."""
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


def time_blocks(blocks: Sequence[Block], inputs: Tensor, timer: PassTimer) -> None:
    """Times cut steps, each without gradients before; pieces are the blocks' indices."""

    def cut(marks: Marks) -> dict[Hashable, Part]:
        _clear(blocks)
        return dict(enumerate(cut_step(blocks, inputs, marks)[0]))

    timer.time(cut, len(inputs))
    _clear(blocks)


def time_one_by_one(blocks: Sequence[Block], inputs: Tensor, timer: PassTimer) -> None:
    """As :func:`time_blocks`, one block at a time, for a network that is too large for the device.

    The timer counts with the seconds of one block times the number of blocks.
    """

    def count(block_s: float) -> int:
        return timer.count(block_s * len(blocks))

    for block in blocks:
        with block.on_device() as device:
            alone_timer = replace(timer, count=count)
            inputs = _time_alone(block, next_input(inputs, device), alone_timer)


def _time_alone(block: Block, inputs: Tensor, timer: PassTimer) -> Tensor:
    """Also returns the next block's input."""
    following = inputs

    def run(marks: Marks) -> dict[Hashable, Part]:
        nonlocal following
        part, following = alone(block, inputs, marks)
        return {block.index: part}

    timer.time(run, len(inputs))
    return following


def _clear(blocks: Sequence[Block]) -> None:
    for block in blocks:
        clear_gradients(block.module)


@contextmanager
def hooked(handles: Sequence[RemovableHandle]) -> Iterator[None]:
    """Removes hooks at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class ReadyOrder:
    """Names and marks of parameters as their gradients became ready in one backward pass."""

    names: list[str] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    def clear(self) -> None:
        self.names.clear()
        self.marks.clear()

    def listening(self, network: nn.Module, marks: Marks) -> AbstractContextManager[None]:

        def ready(name: str, _parameter: Tensor) -> None:
            self.names.append(name)
            self.marks.append(marks.mark())

        return hooked(
            [
                parameter.register_post_accumulate_grad_hook(partial(ready, name))
                for name, parameter in network.named_parameters()
                if parameter.requires_grad
            ]
        )

    def fractions(self, marks: Marks, begin: int, end: int) -> list[tuple[str, float]]:
        """Parameters in order, and the share of the backward pass after which each was ready."""
        whole_s = marks.busy_s(begin, end)
        parts = [marks.busy_s(begin, mark) / whole_s if whole_s > 0 else 1.0 for mark in self.marks]
        return [(n, min(max(f, 0.0), 1.0)) for n, f in zip(self.names, parts, strict=True)]


def ready_block_by_block(
    blocks: Sequence[Block], inputs: Tensor, marks: Marks
) -> list[tuple[str, float]]:
    """As :meth:`ReadyOrder.fractions`, where only one block at a time fits on the device."""
    orders, spans = [], []
    for block in blocks:
        order = ReadyOrder()
        with block.on_device() as device, order.listening(block.plain, marks):
            part, inputs = alone(block, next_input(inputs, device), marks)
        marks.finish()
        orders.append(order)
        spans.append(part.backward)
    total_s = sum(marks.busy_s(*span) for span in spans if span is not None)
    over_s, fractions = 0.0, []
    for block, order, span in reversed(list(zip(blocks, orders, spans, strict=True))):
        if span is None:
            continue
        for name, mark in zip(order.names, order.marks, strict=True):
            ready_s = over_s + marks.busy_s(span[0], mark)
            fractions.append((f"{block.name}.{name}", min(ready_s / total_s, 1.0)))
        over_s += marks.busy_s(*span)
    return fractions


def tensor_entries(
    network: nn.Sequential, ready: Sequence[tuple[str, float]]
) -> list[dict[str, Any]]:
    """Entries of profile.json; a tensor without a gradient is left out."""
    parameters = dict(network.named_parameters())
    index = {name: number for number, name in enumerate(network._modules)}
    return [
        {
            "name": name,
            "block": index[name.split(".")[0]],
            "bytes": parameters[name].nbytes,
            "shape": list(parameters[name].shape),
            "ready_fraction": fraction,
        }
        for name, fraction in ready
    ]


def time_halves(blocks: Sequence[Block], inputs: Tensor, timer: PassTimer) -> None:
    """Times halves of backward passes: of inputs as forward, of weights as backward."""

    def one_by_one(marks: Marks) -> dict[Hashable, Part]:
        _clear(blocks)
        parts: dict[Hashable, Part] = {}
        entering = inputs
        for block in blocks:
            # As in the runtime, also the input of a stage without weights requires a gradient.
            # Tokens cannot.
            entering = entering.detach().requires_grad_(entering.is_floating_point())
            outputs = block.forward(entering)
            if outputs._is_view():  # its graph is dropped in place, which a view forbids
                outputs = outputs.clone()
            following = next_input(outputs)
            parts[block.index] = halved(block, entering, outputs, torch.randn_like(outputs), marks)
            entering = following
        return parts

    timer.time(one_by_one, len(inputs))
    _clear(blocks)


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
