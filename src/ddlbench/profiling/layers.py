"""Bytes and times of blocks and leaf operations, and their rows in profile.json."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

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
from ddlbench.profiling.timers import SHARES, Samples, marks_on, passes
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
    marks = partial(marks_on, device, cell.threads_per_device)
    if not ready:
        ready = ready_block_by_block(blocks, made_up_inputs(spec, 2), marks())
        notes.append(
            "when gradients are ready was found block by block, from the last to the first"
        )
    if not largest_batch:
        notes.append("the network does not fit on the device: its blocks were moved in and out")
    traced = time.perf_counter()
    of_blocks = _time_blocks(needs, blocks, device, largest_batch, notes)
    blocked = time.perf_counter()
    of_halves = _time_halves(needs, blocks, device, largest_batch, notes)
    halved = time.perf_counter()
    of_leaves = _time_leaves(needs, blocks, device, notes)
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


def _time_blocks(
    needs: ProfileNeeds,
    blocks: list[Block],
    device: torch.device,
    largest_batch: float,
    notes: list[str],
) -> Samples:
    samples = Samples()
    share_s = SHARES["blocks"] * needs.budget_s / len(needs.layer_batches)

    def count(pass_s: float) -> int:
        fewest = passes(needs.budget_s / 4, pass_s, 1, _ENOUGH_PASSES)
        return passes(share_s - pass_s, pass_s, fewest, _MOST_PASSES)

    def time_them(batch_size: int) -> None:
        inputs = _inputs(needs, batch_size, device)
        new_marks = partial(marks_on, device, needs.cell.threads_per_device)
        fits = batch_size <= largest_batch
        if fits and _fitting(lambda: time_blocks(blocks, inputs, new_marks, count, samples)):
            return
        if largest_batch:
            notes.append(f"at batch size {batch_size} each block was timed alone: out of memory")
        time_one_by_one(blocks, inputs, new_marks, count, samples)

    _while_it_fits("blocks", needs.layer_batches, time_them, notes)
    return samples


def _time_halves(
    needs: ProfileNeeds,
    blocks: list[Block],
    device: torch.device,
    largest_batch: float,
    notes: list[str],
) -> Samples:
    samples = Samples()
    fitting = tuple(size for size in needs.layer_batches if size <= largest_batch)
    share_s = SHARES["halves"] * needs.budget_s / max(len(fitting), 1)

    def count(pass_s: float) -> int:
        return passes(share_s - pass_s, pass_s, 1, _MOST_PASSES)

    def time_them(batch_size: int) -> None:
        inputs = _inputs(needs, batch_size, device)
        new_marks = partial(marks_on, device, needs.cell.threads_per_device)
        time_halves(blocks, inputs, new_marks, count, samples)

    _while_it_fits("halves of backward passes", fitting, time_them, notes)
    return samples


def _time_leaves(
    needs: ProfileNeeds, blocks: list[Block], device: torch.device, notes: list[str]
) -> Samples:
    samples = Samples()
    share_s = SHARES["leaves"] * needs.budget_s
    inner = sum(not block.is_leaf for block in blocks)
    if inner == 0:
        return samples
    begin = time.perf_counter()

    def count(pass_s: float) -> int:
        of_block_s = share_s / len(needs.layer_batches) / inner
        return passes(of_block_s - pass_s, pass_s, 1, _MOST_PASSES)

    def time_them(batch_size: int) -> None:
        late = time.perf_counter() - begin > share_s
        if late and batch_size > needs.layer_batches[1 % len(needs.layer_batches)]:
            notes.append(
                f"leaf operations inside blocks were not timed at batch size {batch_size}: "
                "the time budget was spent"
            )
            return
        inputs = _inputs(needs, batch_size, device)
        new_marks = partial(marks_on, device, needs.cell.threads_per_device)
        time_leaves(blocks, inputs, new_marks, count, samples)

    _while_it_fits("leaf operations", needs.layer_batches, time_them, notes)
    return samples


def _while_it_fits(
    pieces: str, batch_sizes: tuple[int, ...], action: Callable[[int], None], notes: list[str]
) -> None:
    """Runs an action at ascending batch sizes, up to the first that runs out of memory."""
    for batch_size in batch_sizes:
        if not _fitting(partial(action, batch_size)):
            notes.append(
                f"{pieces} were not timed at batch size {batch_size} or more: out of memory"
            )
            return


def _fitting(action: Callable[[], None]) -> bool:
    try:
        action()
    except (RuntimeError, MemoryError) as error:
        if classify(error)[0] != Status.OUT_OF_MEMORY:
            raise
        return False
    return True


def _inputs(needs: ProfileNeeds, batch_size: int, device: torch.device) -> torch.Tensor:
    return made_up_inputs(DATASETS[needs.cell.dataset], batch_size, device)


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
