"""Each leaf operation of a block: its time alone, what it puts out, what autograd keeps of it.

Times are taken forward and backward, on the input that the operation had in the block. Only blocks
of several operations are taken apart; a block that is one operation was timed as a block. A module
that is called twice is two operations. What a block does without a module (the sum of a residual
block, a function of torch.nn.functional) is in the block's time and in no leaf's.

For the bytes, the network runs block after block, so that no more than one block is on the device
and no more than one block's graph is alive::

    x0 -> [block 0] -> x1 | detach | -> [block 1] -> x2 | detach | -> ...
             '- saved: conv input x0, ...   '- x1 again: one storage, counted once

Twice, at two batch sizes: the difference is what grows with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map

from ddlbench.profiling.blocks import Block, leaf_modules, next_input
from ddlbench.profiling.timers import Marks, Samples, Span


@dataclass(frozen=True)
class Call:
    """One call of a leaf module, with copies of what it was given."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def time_leaves(
    blocks: Sequence[Block],
    inputs: Tensor,
    new_marks: Callable[[], Marks],
    count: Callable[[float, int], int],
    samples: Samples,
) -> None:
    """Go through the blocks; warm their leaves up, then time them.

    Args:
        blocks: of the network.
        inputs: (N, C, H, W); N is the batch size that is entered.
        new_marks: makes marks.
        count: seconds of one pass over a block's leaves, and the block's index, to passes.
        samples: gets the seconds, by the leaf's name.
    """
    batch_size = len(inputs)
    for block in blocks:
        with block.on_device() as device:
            inputs = inputs.detach().to(device).requires_grad_(inputs.requires_grad)
            with recorded(block) as calls:
                outputs = block.forward(inputs)
            following = next_input(outputs)
            del outputs
            if not block.is_leaf:
                number = 1
                for warm in (True, False):
                    marks = new_marks()
                    spans = [[_run(c, block, marks) for c in calls] for _ in range(number)]
                    marks.finish()
                    if warm:
                        number = count(_wall_s(spans, marks), block.index)
                        continue
                    for one_pass in spans:
                        for call, (forward, backward) in zip(calls, one_pass, strict=True):
                            samples.add(call.name, "forward", batch_size, marks, forward)
                            samples.add(call.name, "backward", batch_size, marks, backward)
            inputs = following


@contextmanager
def recorded(block: Block) -> Iterator[list[Call]]:
    """The calls of a block's leaves while it runs, in order."""
    calls: list[Call] = []

    def hook_of(name: str) -> Callable[..., None]:
        times = 0

        def hook(module: nn.Module, arguments: Any, keywords: Any) -> None:
            nonlocal times
            times += 1
            own = name if times == 1 else f"{name}#{times}"
            calls.append(Call(own, module, _copied(arguments), _copied(keywords)))

        return hook

    handles = [
        module.register_forward_pre_hook(hook_of(name), with_kwargs=True)
        for name, module in leaf_modules(block)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _run(call: Call, block: Block, marks: Marks) -> tuple[Span, Span | None]:
    """One pass; copies are made outside the spans, as an operation may overwrite its input."""
    given = [t for t in tree_leaves((call.arguments, call.keywords)) if isinstance(t, Tensor)]
    arguments, keywords = tree_map(_fresh, (call.arguments, call.keywords))
    fresh = [t for t in tree_leaves((arguments, keywords)) if isinstance(t, Tensor)]
    wanted = [new for old, new in zip(given, fresh, strict=True) if old.requires_grad]
    wanted += [p for p in call.module.parameters() if p.requires_grad]
    begin = marks.mark()
    with _arithmetic(block):
        outputs = call.module(*arguments, **keywords)
    forward = (begin, marks.mark())
    results = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    if not results or not wanted:
        return forward, None
    gradients = [torch.randn_like(result) for result in results]
    begin = marks.mark()
    torch.autograd.grad(results, wanted, gradients, allow_unused=True)
    return forward, (begin, marks.mark())


def _fresh(value: Any) -> Any:
    """A copy that autograd sees as made by an earlier operation."""
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


def _wall_s(spans: list[list[tuple[Span, Span | None]]], marks: Marks) -> float:
    pairs = [span for one in spans for pair in one for span in pair if span is not None]
    return sum(marks.wall_s(*span) for span in pairs)


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
