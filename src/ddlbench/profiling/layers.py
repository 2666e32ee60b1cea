"""Bytes and times of blocks and leaf operations, and their rows in profile.json.

Of each leaf operation its time alone, its output, and what autograd saves of it are measured. An
operation is timed forward and backward on the input that it had in the block. A block that is one
operation was timed as a block already. A module that is called twice is two operations. Work
without a module (the sum of a residual block, a function of torch.nn.functional) counts in the
block's time and in no leaf's.

To count bytes, the network runs one block at a time, so that only one block and one graph are on
the device::

    x0 -> [block 0] -> x1 | detach | -> [block 1] -> x2 | detach | -> ...
             '- saved: conv input x0, ...   '- x1 again: one storage, counted once

This is done at two batch sizes: the difference is what grows with the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count as count_from
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.status import Status
from ddlbench.networks import build
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.inspection import tensors_of
from ddlbench.networks.operations import tensors_in
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling.blocks import (
    Block,
    blocks_of,
    hooked,
    leaf_modules,
    next_input,
    ready_block_by_block,
    tensor_entries,
    time_blocks,
    time_halves,
    time_one_by_one,
)
from ddlbench.profiling.timers import SHARES, Marks, Part, PassTimer, Samples, marks_on, passes
from ddlbench.runtime.rank_report import classify


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
    pairs = zip(tensors_in(recorded), tensors_in((arguments, keywords)), strict=True)
    wanted = [new for old, new in pairs if old.requires_grad]
    wanted += [p for p in call.module.parameters() if p.requires_grad]
    begin = marks.mark()
    with _arithmetic(block):
        outputs = call.module(*arguments, **keywords)
    forward = (begin, marks.mark())
    results = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
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
        self._fixed = set(map(_key, tensors_of(self.block.plain)))

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
        leaf.output_bytes = sum(tensor.nbytes for tensor in tensors_in(output))

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
    tensors = tensors_in(value)
    return tuple(tensors[0].shape[1:]) if len(tensors) == 1 else ()


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


_ENOUGH_PASSES = 3
_MOST_PASSES = 30


def measure_layers(
    needs: ProfileNeeds,
    device: torch.device,
    ready: list[tuple[str, float]],
    largest_batch: float,
    notes: list[str],
) -> dict[str, Any]:
    """Measures all blocks, leaves and tensors of a profile.

    Args:
        needs: what to measure.
        device: where.
        ready: when gradients were ready in whole steps; empty if no whole step ran.
        largest_batch: largest batch size at which the whole network fits; 0 if none does.
        notes: gets a sentence about everything that could not be measured.

    Returns:
        ``layers``, ``blocks``, ``tensors``, ``block_totals_s`` (batch size -> forward and
        backward seconds of all blocks), ``stretch`` (wall over processor seconds) and
        ``layers_spent_s``.
    """
    cell, spec = needs.cell, DATASETS[needs.cell.dataset]
    network = build(cell.network, spec, cell.seed)
    if largest_batch:
        network = network.to(device)
    blocks = blocks_of(network, cell.precision, device, resident=largest_batch > 0)
    begin = time.perf_counter()
    sizes = network_bytes(blocks, partial(made_up_inputs, spec))
    times = _Times(needs, blocks, device, largest_batch, notes)
    if not ready:
        inputs = made_up_inputs(spec, 2)
        ready = ready_block_by_block(blocks, inputs, marks_on(device, cell.threads_per_device))
        notes.append(
            "when gradients are ready was found block by block, from the last to the first"
        )
    if not largest_batch:
        notes.append("the network does not fit on the device: its blocks were moved in and out")
    traced = time.perf_counter()
    of_blocks = times.of_blocks()
    blocked = time.perf_counter()
    of_halves = times.of_halves()
    halved = time.perf_counter()
    of_leaves = times.of_leaves()
    return {
        "layers": _leaf_rows(blocks, sizes, of_blocks, of_leaves),
        "blocks": _block_rows(blocks, sizes, of_blocks, of_halves),
        "tensors": tensor_entries(network, ready),
        "block_totals_s": {str(b): of_blocks.total_s(b) for b in needs.layer_batches},
        "stretch": {"blocks": of_blocks.stretch, "leaves": of_leaves.stretch},
        "layers_spent_s": {
            "bytes": traced - begin,
            "blocks": blocked - traced,
            "halves": halved - blocked,
            "leaves": time.perf_counter() - halved,
        },
    }


@dataclass(frozen=True)
class _Times:
    """Times the pieces of a network at the batch sizes of a profile; see :func:`measure_layers`."""

    needs: ProfileNeeds
    blocks: list[Block]
    device: torch.device
    largest_batch: float
    notes: list[str]

    def of_blocks(self) -> Samples:
        budget_s, batches = self.needs.budget_s, self.needs.layer_batches
        share_s = SHARES["blocks"] * budget_s / len(batches)

        def count(pass_s: float) -> int:
            fewest = passes(budget_s / 4, pass_s, 1, _ENOUGH_PASSES)
            return passes(share_s - pass_s, pass_s, fewest, _MOST_PASSES)

        def time_them(inputs: Tensor, timer: PassTimer) -> None:
            fits = len(inputs) <= self.largest_batch
            if fits and _fitting(partial(time_blocks, self.blocks, inputs, timer)):
                return
            if self.largest_batch:
                self.notes.append(
                    f"at batch size {len(inputs)} each block was timed alone: out of memory"
                )
            time_one_by_one(self.blocks, inputs, timer)

        return self._while_they_fit("blocks", batches, count, time_them)

    def of_halves(self) -> Samples:
        # For a half, torch searches the graph of its block, which may take a CPU longer than the
        # half takes a GPU. The shares of halves are medians, so a few batch sizes will do.
        pieces = "halves of backward passes"
        fitting = tuple(size for size in self.needs.layer_batches if size <= self.largest_batch)
        share_s = SHARES["halves"] * self.needs.budget_s
        count = partial(_filling, share_s / max(len(fitting), 1))
        time_them = self._in_time(pieces, fitting, share_s, partial(time_halves, self.blocks))
        return self._while_they_fit(pieces, fitting, count, time_them)

    def of_leaves(self) -> Samples:
        pieces, batches = "leaf operations", self.needs.layer_batches
        inner = sum(not block.is_leaf for block in self.blocks)
        if inner == 0:
            return Samples()
        share_s = SHARES["leaves"] * self.needs.budget_s
        count = partial(_filling, share_s / len(batches) / inner)
        time_them = self._in_time(
            f"{pieces} inside blocks", batches, share_s, partial(time_leaves, self.blocks)
        )
        return self._while_they_fit(pieces, batches, count, time_them)

    def _in_time(
        self,
        pieces: str,
        batch_sizes: tuple[int, ...],
        share_s: float,
        time_them: Callable[[Tensor, PassTimer], None],
    ) -> Callable[[Tensor, PassTimer], None]:
        """Times ``pieces`` at two batch sizes, and at larger ones until ``share_s`` is spent."""
        begin = time.perf_counter()

        def in_time(inputs: Tensor, timer: PassTimer) -> None:
            late = time.perf_counter() - begin > share_s
            if late and len(inputs) > batch_sizes[1 % len(batch_sizes)]:
                self.notes.append(
                    f"{pieces} were not timed at batch size {len(inputs)}: the time budget was "
                    "spent"
                )
            else:
                time_them(inputs, timer)

        return in_time

    def _while_they_fit(
        self,
        pieces: str,
        batch_sizes: tuple[int, ...],
        count: Callable[[float], int],
        time_them: Callable[[Tensor, PassTimer], None],
    ) -> Samples:
        """At ascending batch sizes, up to the first that runs out of memory."""
        cell = self.needs.cell
        new_marks = partial(marks_on, self.device, cell.threads_per_device)
        timer = PassTimer(new_marks, count, Samples())

        def time_at(batch_size: int) -> None:
            time_them(made_up_inputs(DATASETS[cell.dataset], batch_size, self.device), timer)

        for batch_size in batch_sizes:
            if not _fitting(partial(time_at, batch_size)):
                self.notes.append(
                    f"{pieces} were not timed at batch size {batch_size} or more: out of memory"
                )
                break
        return timer.samples


def _filling(share_s: float, pass_s: float) -> int:
    """Passes that fill a share of the budget, with the one that warmed up."""
    return passes(share_s - pass_s, pass_s, 1, _MOST_PASSES)


def _fitting(action: Callable[[], None]) -> bool:
    try:
        action()
    except (RuntimeError, MemoryError) as error:
        if classify(error)[0] != Status.OUT_OF_MEMORY:
            raise
        return False
    return True


def _block_rows(
    blocks: list[Block], sizes: NetworkBytes, samples: Samples, halves: Samples
) -> list[dict[str, Any]]:
    return [
        {
            "block": block.index,
            "name": block.name,
            "parameter_bytes": sum(p.nbytes for p in block.plain.parameters()),
            "buffer_bytes": sum(b.nbytes for b in block.plain.buffers()),
            "input_bytes_per_sample": inputs,
            "output_bytes_per_sample": outputs,
            "saved_bytes_per_sample": saved,
            "forward": samples.timings(block.index, "forward"),
            "backward": samples.timings(block.index, "backward"),
            "input_half": halves.timings(block.index, "forward"),
            "weight_half": halves.timings(block.index, "backward"),
        }
        for block, (inputs, outputs, saved) in zip(blocks, sizes.blocks, strict=True)
    ]


def _leaf_rows(
    blocks: list[Block], sizes: NetworkBytes, of_blocks: Samples, of_leaves: Samples
) -> list[dict[str, Any]]:
    rows = []
    for block, leaves in zip(blocks, sizes.leaves, strict=True):
        for leaf in leaves:
            samples, piece = (of_blocks, block.index) if block.is_leaf else (of_leaves, leaf.name)
            rows.append(
                {
                    "name": leaf.name,
                    "block": block.index,
                    "block_name": block.name,
                    "kind": type(leaf.module).__name__,
                    "parameter_bytes": leaf.parameter_bytes,
                    "output_bytes_per_sample": leaf.output_bytes,
                    "saved_bytes_per_sample": leaf.saved_bytes,
                    "shape": _shape(leaf),
                    "forward": samples.timings(piece, "forward"),
                    "backward": samples.timings(piece, "backward"),
                }
            )
    return rows


def _shape(leaf: LeafBytes) -> dict[str, Any]:
    """Extents of one sample and of the window, for models of split layers."""
    kernel, stride = (getattr(leaf.module, name, 1) for name in ("kernel_size", "stride"))
    return {
        "input": list(leaf.input_shape),
        "output": list(leaf.output_shape),
        "kernel": _first(kernel),
        "stride": _first(stride),
    }


def _first(extent: int | tuple[int, ...]) -> int:
    return int(extent[0] if isinstance(extent, tuple) else extent)
