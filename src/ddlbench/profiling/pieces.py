"""A network as blocks that run one after the other, wherever their parameters are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddlbench.experiment.errors import ConfigError
from ddlbench.strategies.training import Autocast, with_precision

__all__ = ["Block", "blocks_of", "clear_gradients", "leaf_modules", "next_input"]


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
