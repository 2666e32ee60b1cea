"""Measures each leaf operation of a block: its time alone, its output, what autograd saves of it.

An operation is timed forward and backward on the input that it had in the block. A block that is
one operation was timed as a block already. A module that is called twice is two operations. Work
without a module (the sum of a residual block, a function of torch.nn.functional) counts in the
block's time and in no leaf's.

To count bytes, the network runs one block at a time, so that only one block and one graph are on
the device::

    x0 -> [block 0] -> x1 | detach | -> [block 1] -> x2 | detach | -> ...
             '- saved: conv input x0, ...   '- x1 again: one storage, counted once

This is done at two batch sizes: the difference is what grows with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count as count_from
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map

from ddlbench.profiling.blocks import Block, hooked, leaf_modules, next_input
from ddlbench.profiling.timers import Marks, Part, PassTimer


@dataclass(frozen=True)
class Call:
    """One call of a leaf module, with copies of its arguments."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def time_leaves(blocks: Sequence[Block], inputs: Tensor, timer: PassTimer) -> None:
    """Times the leaves of every block of several; pieces are the leaves' names."""
    for block in blocks:
        with block.on_device() as device:
            inputs = next_input(inputs, device)
            with recorded(block) as calls:
                outputs = block.forward(inputs)
            following = next_input(outputs)
            del outputs
            if not block.is_leaf:
                timer.time(partial(_run_all, calls, block), len(inputs))
            inputs = following


def _run_all(calls: Sequence[Call], block: Block, marks: Marks) -> dict[Hashable, Part]:
    return {call.name: _run(call, block, marks) for call in calls}


def _call_names(name: str) -> Iterator[str]:
    """Names of the calls of one module: ``name``, ``name#2``, ``name#3``, ..."""
    yield name
    for number in count_from(2):
        yield f"{name}#{number}"


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@contextmanager
def recorded(block: Block) -> Iterator[list[Call]]:
    """Records the calls of a block's leaves while it runs, in order."""
    calls: list[Call] = []

    def hook_of(name: str) -> Callable[..., None]:
        names = _call_names(name)

        def hook(module: nn.Module, arguments: Any, keywords: Any) -> None:
            calls.append(Call(next(names), module, _copied(arguments), _copied(keywords)))

        return hook

    handles = [
        module.register_forward_pre_hook(hook_of(name), with_kwargs=True)
        for name, module in leaf_modules(block)
    ]
    with hooked(handles):
        yield calls


def _run(call: Call, block: Block, marks: Marks) -> Part:
    # Copies are made outside the spans, as an operation may overwrite its input.
    recorded = (call.arguments, call.keywords)
    arguments, keywords = tree_map(_fresh, recorded)
    pairs = zip(_tensors(recorded), _tensors((arguments, keywords)), strict=True)
    wanted = [new for old, new in pairs if old.requires_grad]
    wanted += [p for p in call.module.parameters() if p.requires_grad]
    begin = marks.mark()
    with _arithmetic(block):
        outputs = call.module(*arguments, **keywords)
    forward = (begin, marks.mark())
    results = [tensor for tensor in _tensors(outputs) if tensor.requires_grad]
    if not results or not wanted:
        return Part(forward, None)
    gradients = [torch.randn_like(result) for result in results]
    begin = marks.mark()
    torch.autograd.grad(results, wanted, gradients, allow_unused=True)
    return Part(forward, (begin, marks.mark()))


def _fresh(value: Any) -> Any:
    # For autograd, a clone is the output of an earlier operation.
    return value.clone() if isinstance(value, Tensor) else value


def _copied(values: Any) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tree_map(copy, values)


def _arithmetic(block: Block) -> AbstractContextManager[Any]:
    if block.autocast:
        return torch.autocast(block.device.type, dtype=torch.bfloat16)
    return nullcontext()


_BATCH_SIZES = (2, 4)  # one image alone is too few for batch normalisation of a single pixel


@dataclass
class LeafBytes:
    """Bytes of one call of a leaf module.

    Args:
        name: of the module in the flat network; further calls get ``#2``, ``#3``.
        module: the leaf.
        parameter_bytes: of its parameters, with the first call only.
        output_bytes, saved_bytes: per sample.
        input_shape, output_shape: of one sample; empty unless it is a single tensor.
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
    """Bytes per sample; an entry of ``blocks`` is ``(input, output, saved)``."""

    leaves: list[list[LeafBytes]]
    blocks: list[tuple[float, float, float]]


def network_bytes(blocks: Sequence[Block], inputs_of: Callable[[int], Tensor]) -> NetworkBytes:
    """Traces the network at two batch sizes, and takes the slope.

    ``inputs_of`` makes inputs of a batch size.
    """
    small, large = (_trace(blocks, inputs_of(batch)) for batch in _BATCH_SIZES)
    more = _BATCH_SIZES[1] - _BATCH_SIZES[0]

    def slope(few: float, many: float) -> float:
        return max(many - few, 0.0) / more

    for few_leaves, many_leaves in zip(small.leaves, large.leaves, strict=True):
        for few, many in zip(few_leaves, many_leaves, strict=True):
            many.output_bytes = slope(few.output_bytes, many.output_bytes)
            many.saved_bytes = slope(few.saved_bytes, many.saved_bytes)
    large.blocks = [
        (slope(few[0], many[0]), slope(few[1], many[1]), slope(few[2], many[2]))
        for few, many in zip(small.blocks, large.blocks, strict=True)
    ]
    return large


def _trace(blocks: Sequence[Block], inputs: Tensor) -> NetworkBytes:
    traced = NetworkBytes([], [])
    seen_parameters: set[int] = set()
    boundary: set[int] = set()  # the input's storage, if an earlier block has saved it
    for block in blocks:
        with block.on_device() as device:
            inputs = inputs.to(device)
            recorder = _Recorder(block, seen_parameters, boundary)
            with recorder.listening():
                outputs = block.forward(inputs)
            traced.leaves.append(recorder.leaves)
            traced.blocks.append((inputs.nbytes, outputs.nbytes, recorder.saved_bytes))
            boundary = {_key(outputs)} & recorder.saved
            inputs = next_input(outputs)
            del outputs, recorder
    return traced


@dataclass
class _Recorder:
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
        with hooked(handles), saved_tensors_hooks(self._pack, lambda packed: packed):
            yield

    def _enter(self, name: str) -> Any:
        names = _call_names(name)

        def hook(module: nn.Module, _arguments: Any) -> None:
            unseen = [p for p in module.parameters() if id(p) not in self.seen_parameters]
            self.seen_parameters.update(id(p) for p in unseen)
            leaf = LeafBytes(next(names), module, sum(p.nbytes for p in unseen))
            self._running.append(leaf)
            self.leaves.append(leaf)

        return hook

    def _leave(self, _module: nn.Module, arguments: Any, output: Any) -> None:
        leaf = self._running.pop()
        leaf.input_shape, leaf.output_shape = _sample_shape(arguments), _sample_shape(output)
        leaf.output_bytes = sum(tensor.nbytes for tensor in _tensors(output))

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
    """Shape of a single tensor without the batch dimension; empty for none or several."""
    tensors = _tensors(value)
    return tuple(tensors[0].shape[1:]) if len(tensors) == 1 else ()


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
