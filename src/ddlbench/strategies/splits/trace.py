"""Traces a network: the shapes that its layers see, and operations that forbid a split into rows.

The network runs once on fake tensors (no data), and hooks note the shapes of its layers, which are
modules without children. Between layers, as at an addition or concatenation, each operation is
checked: a split activation allows only those that treat every position alike. The split ends at the
network's *head*, the first block that reads all positions at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddlbench.strategies.pipelining.cutting import TensorForm, run_blocks
from ddlbench.strategies.tensor_parallel.pairs import ELEMENT_WISE

# Layers that treat every position alike, so that they need no exchange of rows.
POINTWISE = (
    *(getattr(nn, name) for name in sorted(ELEMENT_WISE)),
    nn.PReLU,  # its weights are of channels, which are whole
    nn.Sequential,  # a layer only where it is empty, as the shortcut of some residual blocks
)

# Ranks with different rows would draw different numbers of random numbers.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Shapes of a layer's input and output."""

_HARMLESS = ("alias", "clone", "detach", "_to_copy", "lift_fresh", "empty_like", "ones_like")


@dataclass
class BlockTrace:
    """One block of the network.

    Args:
        name: of the block.
        shapes: of the block's input and output.
        layers: shapes of every call of each layer, by the layer's name in the network, in the
            order of the first calls; without calls that have not one tensor in and out.
        mixing: the first operation between layers that does not treat every position alike; else
            "".
    """

    name: str
    shapes: Shapes = ((), ())
    layers: dict[str, list[Shapes]] = field(default_factory=dict)
    mixing: str = ""


def trace(network: nn.Sequential, sample: TensorForm, device: torch.device) -> list[BlockTrace]:
    """Trace the network, which is not changed."""
    traced: list[BlockTrace] = []

    def run(double: nn.Sequential, name: str, inputs: Tensor) -> Tensor:
        block, block_trace = double.get_submodule(name), BlockTrace(name)
        with _tracing(double, block, block_trace):
            outputs: Tensor = block(inputs)
        block_trace.shapes = tuple(inputs.shape), tuple(outputs.shape)
        traced.append(block_trace)
        return outputs

    run_blocks(network, sample, device, run, forget=traced.clear)
    return traced


@contextmanager
def _tracing(network: nn.Sequential, block: nn.Module, block_trace: BlockTrace) -> Iterator[None]:
    operations = _Operations(block_trace)

    def enter(_module: nn.Module, _inputs: Any) -> None:
        operations.depth += 1

    hooks = []
    own = set(block.modules())
    for name, layer in network.named_modules():
        if layer not in own or list(layer.children()):
            continue

        def leave(_layer: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            operations.depth -= 1
            calls = block_trace.layers.setdefault(name, [])
            if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
                calls.append((tuple(inputs[0].shape), tuple(output.shape)))

        hooks.append(layer.register_forward_pre_hook(enter))
        hooks.append(layer.register_forward_hook(leave))
    try:
        with operations:
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Operations(TorchDispatchMode):
    """Notes the first operation between layers that mixes positions."""

    def __init__(self, block_trace: BlockTrace) -> None:
        super().__init__()
        self.block_trace = block_trace
        self.depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.depth == 0 and not self.block_trace.mixing and _mixes(func, args, kwargs):
            self.block_trace.mixing = str(func)
        return func(*args, **kwargs)


def _mixes(func: Any, args: Any, kwargs: Any) -> bool:
    name = func.overloadpacket.__name__
    if name == "cat":  # along channels, positions stay in place
        return (args[1] if len(args) > 1 else kwargs.get("dim", 0)) != 1
    # "prim" asks for a tensor's device or type, as autocast does.
    known = func.namespace == "prim" or name in _HARMLESS
    return not known and torch.Tag.pointwise not in func.tags


def replace_layers(network: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    """Replace every key of ``replaced`` by its value, wherever it occurs; keep its mode."""
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replaced:
                parent._modules[name] = replaced[child].train(child.training)


MEANS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_MAXIMA = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_HEADS = (nn.Linear, nn.Flatten, *MEANS, *_MAXIMA)


def head_of(network: nn.Sequential, traced: Sequence[BlockTrace]) -> int:
    """Index of the head; the number of blocks without one.

    It is the first linear, flattening or adaptive-pooling block, or the first whose output has
    another number of dimensions than its input.
    """
    for index, block in enumerate(traced):
        inputs, outputs = block.shapes
        layer = innermost(network._modules[block.name])
        if isinstance(layer, _HEADS) or len(outputs) != len(inputs):
            return index
    return len(traced)


def innermost(block: nn.Module | None) -> nn.Module | None:
    """The layer inside wrappers, as of autocast, that contain nothing else."""
    while block is not None and len(children := list(block.children())) == 1:
        block = children[0]
    return block
