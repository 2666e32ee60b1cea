"""Bytes and times of blocks and leaf operations, and their rows in profile.json."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.status import Status
from ddlbench.networks import build
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling.blocks import (
    Block,
    blocks_of,
    ready_block_by_block,
    tensor_entries,
    time_blocks,
    time_halves,
    time_one_by_one,
)
from ddlbench.profiling.leaves import LeafBytes, NetworkBytes, network_bytes, time_leaves
from ddlbench.profiling.timers import SHARES, PassTimer, Samples, marks_on, passes
from ddlbench.runtime.rank_report import classify

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
