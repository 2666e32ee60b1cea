"""When each parameter's gradient is ready during a backward pass.

::

    backward   |-- loss --|-- last block --| ...             |-- first block --|
    ready                         w9  b9      w8 b8  ...                   w0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from ddlbench.profiling.blocks import alone
from ddlbench.profiling.clock import Marks
from ddlbench.profiling.pieces import Block

__all__ = ["ReadyOrder", "ready_block_by_block", "tensor_entries"]


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
