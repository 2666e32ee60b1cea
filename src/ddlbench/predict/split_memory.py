"""Peak memory of a device that computes parts of layers: by rows, by filters, by channels.

::

    rows       weights whole | what autograd saves of own rows, halos in copies of their own
               after backward: all gradients once more, flattened for the all-reduce
    filters    weights / p   | activations whole; the gradient of an input once more while it is
    channels   weights / p   | added up (filters) or gathered (channels)
                             | channels: a copy of the own channels of every input

Saved bytes are the profile's, so in-place activations and shared storages count as they are.
Layers keep a storage once, with the layer that first saves it; a copy with a halo is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ddlbench.planning.plan import Plan
from ddlbench.predict.split_layers import (
    ROWS,
    WEIGHTS,
    dealt_share,
    row_grid,
    rows_end,
    shape_of,
)
from ddlbench.predict.workload import Block, Workload

__all__ = ["SPLIT", "split_bytes"]

SPLIT = (*ROWS, *WEIGHTS)
_ITEM_BYTES = 4
_WINDOWS = ("Conv", "MaxPool", "AvgPool")


def split_bytes(
    workload: Workload,
    plan: Plan,
    persistent: Callable[..., float],
    backward_peak: Callable[..., float],
) -> tuple[int, ...]:
    """Peak bytes of every rank; ranks differ by a row or filter at most, the fullest counts.

    Args:
        workload: the profile, with the shapes of its layers.
        plan: of a strategy of :data:`SPLIT`.
        persistent: bytes of weights, buffers and momentum of blocks.
        backward_peak: bytes at the worst moment of one backward pass.

    Raises:
        ConfigError: the profile has no shapes.
    """
    cell = plan.cell
    if int(plan.details["group"]) == 1:
        blocks = list(workload.blocks)
    elif cell.strategy in ROWS:
        blocks = _of_rows(workload, plan)
    else:
        blocks = _of_weights(workload, plan)
    samples = cell.batch_size / int(plan.details["replicas"])
    weights = sum(block.parameter_bytes for block in blocks)
    flat = weights if cell.strategy in ROWS or int(plan.details["replicas"]) > 1 else 0.0
    moment = max(backward_peak(blocks, samples), weights + flat)
    bytes_ = workload.fixed_memory_bytes + persistent(blocks, cell.momentum) + moment
    return (round(bytes_),) * plan.world_size


def _of_rows(workload: Workload, plan: Plan) -> list[Block]:
    """Blocks up to the end with own rows, the others whole."""
    grid, end = row_grid(plan), rows_end(workload, plan)
    layers = _by_block(workload)
    found = []
    for index, block in enumerate(workload.blocks):
        if index >= end:
            found.append(block)
            continue
        own = layers.get(index, [])
        share = _share(shape_of(own[-1], workload.network)["output"], grid) if own else 1.0
        entering = _share(shape_of(own[0], workload.network)["input"], grid) if own else 1.0
        between = block.saved_bytes - sum(float(e["saved_bytes_per_sample"]) for e in own)
        saved = sum(_saved_rows(entry, grid, workload.network) for entry in own) + share * between
        found.append(
            replace(
                block,
                saved_bytes=saved,
                input_bytes=block.input_bytes * entering,
                output_bytes=block.output_bytes * share,
            )
        )
    return found


def _saved_rows(entry: Mapping[str, Any], grid: Mapping[int, int], network: str) -> float:
    """Bytes a sample that a layer saves of its rows."""
    shape = shape_of(entry, network)
    saved = float(entry["saved_bytes_per_sample"])
    given = shape["input"]
    if len(given) < 2:
        return saved
    share = _share(given, grid)
    halo = shape["kernel"] > shape["stride"] and str(entry["kind"]).startswith(_WINDOWS)
    if not halo:
        return saved * share
    whole = float(prod(given) * _ITEM_BYTES)
    # A copy of the own rows with their halo takes the place of the input, if that was saved here.
    rest = saved - whole if saved >= whole else saved
    return rest * share + whole * _with_halo(shape, grid)


def _with_halo(shape: Mapping[str, Any], grid: Mapping[int, int]) -> float:
    """Rows that the outputs of the fullest device read, padding included, as a share."""
    share = 1.0
    for dim, size in grid.items():
        outputs = -(-shape["output"][dim] // size)
        share *= ((outputs - 1) * shape["stride"] + shape["kernel"]) / shape["input"][dim]
    return share


def _share(extents: Sequence[int], grid: Mapping[int, int]) -> float:
    """Of an activation, with the fullest device; 1 where it has no rows."""
    share = 1.0
    for dim, size in grid.items():
        if len(extents) > -dim:
            share *= -(-extents[dim] // size) / extents[dim]
    return share


def _of_weights(workload: Workload, plan: Plan) -> list[Block]:
    """Blocks with their part of the weights; activations stay whole."""
    layers = _by_block(workload)
    first = next((e["name"] for e in workload.layer_entries if e["parameter_bytes"]), "")
    found = []
    for index, block in enumerate(workload.blocks):
        own = layers.get(index, [])
        shares = [dealt_share(e, plan, e["name"] == first, workload.network) for e in own]
        parameters = sum(e["parameter_bytes"] * s for e, s in zip(own, shares, strict=True))
        rest = block.parameter_bytes - sum(e["parameter_bytes"] for e in own)
        saved = block.saved_bytes
        if plan.cell.strategy == "channel":
            for entry, share in zip(own, shares, strict=True):
                if share < 1:
                    saved += _copied_channels(entry, share, workload.network)
        found.append(
            replace(
                block,
                parameter_bytes=round(parameters + rest),
                saved_bytes=saved,
                input_bytes=block.input_bytes * (2 if any(s < 1 for s in shares) else 1),
            )
        )
    return found


def _copied_channels(entry: Mapping[str, Any], share: float, network: str) -> float:
    """Own channels of the input, in the place of the input itself if that was saved here."""
    whole = float(prod(shape_of(entry, network)["input"]) * _ITEM_BYTES)
    replaced = whole if float(entry["saved_bytes_per_sample"]) >= whole else 0.0
    return share * whole - replaced


def _by_block(workload: Workload) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for entry in workload.layer_entries:
        found.setdefault(entry["block"], []).append(entry)
    return found
