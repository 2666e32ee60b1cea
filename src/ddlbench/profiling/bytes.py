"""What each leaf operation puts out, and what autograd keeps of it for the backward pass.

The network runs block after block, so that no more than one block is on the device and no more
than one block's graph is alive::

    x0 -> [block 0] -> x1 | detach | -> [block 1] -> x2 | detach | -> ...
             '- saved: conv input x0, ...   '- x1 again: one storage, counted once

Twice, at two batch sizes: the difference is what grows with the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from ddlbench.profiling.pieces import Block, leaf_modules, next_input

__all__ = ["LeafBytes", "NetworkBytes", "network_bytes"]

_BATCH_SIZES = (2, 4)  # one image alone is too few for batch normalisation of a single pixel


@dataclass
class LeafBytes:
    """One call of a leaf module; a module that is called twice is two operations.

    Args:
        name: of the module in the flat network; further calls get ``#2``, ``#3``.
        module: the leaf.
        parameter_bytes: of its parameters, with the first call only.
        output_bytes, saved_bytes: per sample.
        input_shape, output_shape: of one sample; empty where it takes or gives no single tensor.
    """

    name: str
    module: nn.Module
    parameter_bytes: int
    output_bytes: float = 0.0
    saved_bytes: float = 0.0
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()


@dataclass
class NetworkBytes:
    """Bytes per sample; blocks are ``(input, output, saved)``."""

    leaves: list[list[LeafBytes]]
    blocks: list[tuple[float, float, float]]


def network_bytes(blocks: Sequence[Block], shape: Sequence[int]) -> NetworkBytes:
    """Trace the network at two batch sizes.

    Args:
        blocks: the network's.
        shape: of one image, (C, H, W).
    """
    small, large = (_trace(blocks, (batch, *shape)) for batch in _BATCH_SIZES)
    more = _BATCH_SIZES[1] - _BATCH_SIZES[0]

    def slope(few: float, many: float) -> float:
        return max(many - few, 0.0) / more

    for few_leaves, many_leaves in zip(small.leaves, large.leaves, strict=True):
        for few, many in zip(few_leaves, many_leaves, strict=True):
            many.output_bytes = slope(few.output_bytes, many.output_bytes)
            many.saved_bytes = slope(few.saved_bytes, many.saved_bytes)
    pairs = zip(small.blocks, large.blocks, strict=True)
    large.blocks = [
        (slope(few[0], many[0]), slope(few[1], many[1]), slope(few[2], many[2]))
        for few, many in pairs
    ]
    return large


def _trace(blocks: Sequence[Block], shape: Sequence[int]) -> NetworkBytes:
    found = NetworkBytes([], [])
    seen_parameters: set[int] = set()
    inputs: Any = torch.randn(shape)
    boundary: set[int] = set()  # the input's storage, if an earlier block has saved it
    for block in blocks:
        with block.on_device() as device:
            inputs = inputs.to(device)
            recorder = _Recorder(block, seen_parameters, boundary)
            with recorder.listening():
                outputs = block.forward(inputs)
            found.leaves.append(recorder.leaves)
            found.blocks.append((_nbytes(inputs), _nbytes(outputs), recorder.saved_bytes))
            boundary = {_key(outputs)} & recorder.saved
            inputs = next_input(outputs)
            del outputs, recorder
    return found


@dataclass
class _Recorder:
    """Listens to one forward pass of one block."""

    block: Block
    seen_parameters: set[int]
    saved: set[int]
    leaves: list[LeafBytes] = field(default_factory=list)
    saved_bytes: float = 0.0

    def __post_init__(self) -> None:
        self._running: list[LeafBytes] = []
        self._alive: list[Tensor] = []  # so that no storage's address is used again
        self._fixed = {_key(t) for t in self.block.fixed_tensors()}

    @contextmanager
    def listening(self) -> Iterator[None]:
        handles = []
        for name, leaf in leaf_modules(self.block):
            handles.append(leaf.register_forward_pre_hook(self._enter(name)))
            handles.append(leaf.register_forward_hook(self._leave))
        try:
            with saved_tensors_hooks(self._pack, lambda packed: packed):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Any:
        calls = 0

        def hook(module: nn.Module, _arguments: Any) -> None:
            nonlocal calls
            calls += 1
            own = [p for p in module.parameters() if id(p) not in self.seen_parameters]
            self.seen_parameters.update(id(p) for p in own)
            self._running.append(
                LeafBytes(name if calls == 1 else f"{name}#{calls}", module, _total(own))
            )
            self.leaves.append(self._running[-1])

        return hook

    def _leave(self, _module: nn.Module, arguments: Any, output: Any) -> None:
        leaf = self._running.pop()
        leaf.input_shape, leaf.output_shape = _sample_shape(arguments), _sample_shape(output)
        leaf.output_bytes = sum(_nbytes(t) for t in tree_leaves(output) if isinstance(t, Tensor))

    def _pack(self, tensor: Tensor) -> Tensor:
        key = _key(tensor)
        if key not in self.saved and key not in self._fixed:
            self.saved.add(key)
            self._alive.append(tensor)
            size = tensor.untyped_storage().nbytes()
            self.saved_bytes += size
            if self._running:
                self._running[-1].saved_bytes += size
        return tensor


def _sample_shape(value: Any) -> tuple[int, ...]:
    """Shape of the only tensor without its first dimension, the batch."""
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return tuple(tensors[0].shape[1:]) if len(tensors) == 1 else ()


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _total(tensors: Sequence[Tensor]) -> int:
    return sum(_nbytes(tensor) for tensor in tensors)
