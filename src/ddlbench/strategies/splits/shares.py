"""A device's share of a profile's layers, by rows, filters or channels, and its peak memory.

These are the rules of :mod:`.convert`, for the shapes in a profile. Rows end at the head, or at a
block that the cell names, or with ``until: auto`` before the first block in which a device would
have no row. Memory is::

    rows       weights whole | what autograd saves of own rows, halos in copies of their own
               after backward: gradients of the split blocks once more, flattened for the all-reduce
    filters    weights / p   | activations whole; the gradient of an input once more while it is
    channels   weights / p   | added up (filters) or gathered (channels)
                             | channels: a copy of the own channels of every input
    groups     gradients of what they have in common once more, after those of rows

Saved bytes are those of the profile, which knows in-place activations and shared storages. It
counts a storage once, at the layer that first saves it; a copy with a halo is another storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from ddlbench.common.errors import ConfigError
from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes
from ddlbench.planning.strategy import LayerSplit, rows_share
from ddlbench.planning.workload import FLOAT32_BYTES

if TYPE_CHECKING:
    from ddlbench.experiment.cell import Cell
    from ddlbench.planning.workload import Block, Workload

By = Literal["rows", "filter", "channel"]
_HEADS = ("Linear", "Flatten", "Adaptive")
_WEIGHTED = ("Conv1d", "Conv2d", "Conv3d", "Linear")


def layer_split(
    workload: Workload, by: By, group: int, grid: Mapping[int, int], until: str
) -> LayerSplit:
    """How a group of devices splits a profiled network.

    Raises:
        ConfigError: the profile has no shapes, or ``until`` names no block of it.
    """
    whole = {entry["name"]: 1.0 for entry in workload.layer_entries}
    if by == "rows":
        return LayerSplit(whole, grid, _rows_end(workload, grid, until))
    if group == 1:
        return LayerSplit(whole)
    entries = workload.layer_entries
    first = next((str(entry["name"]) for entry in entries if entry["kind"] in _WEIGHTED), "")
    return LayerSplit(
        {
            entry["name"]: _weight_share(entry, by, group, entry["name"] == first, workload.network)
            for entry in entries
        }
    )


def shape_of(entry: Mapping[str, Any], network: str) -> Mapping[str, Any]:
    """The shape of a layer; ConfigError if the profile is too old to have it."""
    shape: Mapping[str, Any] | None = entry.get("shape")
    if shape is None:
        raise ConfigError(f"the profile of {network} has no shapes of layers; make it again")
    return shape


def _rows_end(workload: Workload, grid: Mapping[int, int], until: str) -> int:
    """Index of the first block that every device computes whole again."""
    blocks = workload.layers_by_block
    names = {index: layers[0]["block_name"] for index, layers in blocks.items()}
    if until not in ("head", "auto", *names.values()):
        raise ConfigError(f"until: {until} names no block of the profile of {workload.network}")
    for index, layers in sorted(blocks.items()):
        shapes = [shape_of(layer, workload.network) for layer in layers]
        named = until == names[index]
        thin = until == "auto" and any(
            len(extents) > -dim and extents[dim] < size  # some device would have no row
            for shape in shapes
            for extents in (shape["input"], shape["output"])
            for dim, size in grid.items()
        )
        if named or thin or any(_is_head(layer) for layer in layers):
            return index
    return len(blocks)


def _weight_share(entry: Mapping[str, Any], by: By, group: int, first: bool, network: str) -> float:
    """Share of a layer's weights on the fullest device; by channels the ``first`` is whole."""
    by_channel = by == "channel"
    if entry["kind"] not in _WEIGHTED or (by_channel and first):
        return 1.0
    extents = shape_of(entry, network)["input" if by_channel else "output"]
    if not extents:
        return 1.0
    features = int(extents[-1 if entry["kind"] == "Linear" else 0])
    return -(-features // group) / features


def _is_head(entry: Mapping[str, Any]) -> bool:
    shape = entry["shape"]
    return str(entry["kind"]).startswith(_HEADS) or len(shape["output"]) != len(shape["input"])


_WINDOWS = ("Conv", "MaxPool", "AvgPool")


def split_bytes(
    workload: Workload, cell: Cell, split: LayerSplit, *, by: By, group: int, replicas: int
) -> tuple[int, ...]:
    """Peak bytes of every rank: those of the fullest; ranks differ by a row or filter at most."""
    end = len(workload.blocks)
    if group == 1:
        blocks = list(workload.blocks)
    elif split.end is not None:
        end = split.end
        blocks = _of_rows(workload, split.grid, end)
    else:
        blocks = _of_weights(workload, split, by == "channel")
    samples = cell.batch_size / replicas
    weights = sum(block.parameter_bytes for block in blocks)
    over_rows = split.end is not None and group > 1
    flattened = _flattened(
        workload, split, blocks, end, over_rows=over_rows, over_groups=replicas > 1
    )
    moment = max(backward_peak_bytes(blocks, samples), weights + flattened)
    always = workload.fixed_memory_bytes + persistent_bytes(blocks, cell.optimizer_states)
    return (round(always + moment),) * cell.devices


def _flattened(
    workload: Workload,
    split: LayerSplit,
    blocks: Sequence[Block],
    end: int,
    *,
    over_rows: bool,
    over_groups: bool,
) -> float:
    """Bytes of the gradients' copies in the buckets of the all-reduces at the end of a step.

    Gradients of rows, before ``end``, are reduced over all devices, then the others over groups.
    A gradient that is larger than a bucket is alone in it and is not copied. ``over_rows`` and
    ``over_groups`` say which all-reduces there are.
    """
    copied = [block.parameter_bytes for block in blocks]
    for entry in workload.layer_entries:
        held_bytes = entry["parameter_bytes"] * split.weight_shares[entry["name"]]
        if held_bytes > workload.bucket_bytes:
            copied[entry["block"]] -= round(held_bytes)
    first = sum(copied[:end]) if over_rows or over_groups else 0
    return max(first, sum(copied[end:]) if over_groups else 0)


def _of_rows(workload: Workload, grid: Mapping[int, int], end: int) -> list[Block]:
    """Blocks before ``end`` with the device's rows, the others whole."""
    layers = workload.layers_by_block
    blocks = []
    for index, block in enumerate(workload.blocks):
        layers_of_block = layers.get(index, [])
        if index >= end:
            blocks.append(_gathered(block, layers_of_block) if index == end else block)
            continue
        entering = share = 1.0
        if layers_of_block:
            shapes = [shape_of(layers_of_block[at], workload.network) for at in (0, -1)]
            entering = rows_share(shapes[0]["input"], grid)
            share = rows_share(shapes[1]["output"], grid)
        whole = sum(float(e["saved_bytes_per_sample"]) for e in layers_of_block)
        split_saved = sum(_saved_rows(entry, grid, workload.network) for entry in layers_of_block)
        saved = split_saved + share * (block.saved_bytes - whole)
        blocks.append(
            replace(
                block,
                saved_bytes=saved,
                input_bytes=block.input_bytes * entering,
                output_bytes=block.output_bytes * share,
            )
        )
    return blocks


def _gathered(block: Block, layers_of_block: Sequence[Mapping[str, Any]]) -> Block:
    """The first whole block: its input is gathered, so no earlier layer has saved it."""
    if not layers_of_block or not str(layers_of_block[0]["kind"]).startswith(_WINDOWS):
        return block
    if float(layers_of_block[0]["saved_bytes_per_sample"]) >= block.input_bytes:
        return block
    return replace(block, saved_bytes=block.saved_bytes + block.input_bytes)


def _saved_rows(entry: Mapping[str, Any], grid: Mapping[int, int], network: str) -> float:
    """Bytes per sample that a layer saves of its rows."""
    shape = shape_of(entry, network)
    saved = float(entry["saved_bytes_per_sample"])
    extents = shape["input"]
    if len(extents) < 2:
        return saved
    share = rows_share(extents, grid)
    if not (str(entry["kind"]).startswith(_WINDOWS) and _is_copied(shape, grid)):
        return saved * share
    whole = float(prod(extents) * FLOAT32_BYTES)
    # A copy of the rows that are read replaces the input, if this layer saved it.
    rest = saved - whole if saved >= whole else saved
    return rest * share + whole * _read_share(shape, grid)


def _is_copied(shape: Mapping[str, Any], grid: Mapping[int, int]) -> bool:
    """Whether some device's outputs read other rows, or fewer, than it has.

    They do unless windows neither overlap nor leave gaps, without padding, and parts end between
    windows.
    """
    kernel, stride = shape["kernel"], shape["stride"]
    return any(
        kernel != stride
        or shape["output"][dim] * stride != shape["input"][dim]
        or (stride > 1 and shape["output"][dim] % size)
        for dim, size in grid.items()
    )


def _read_share(shape: Mapping[str, Any], grid: Mapping[int, int]) -> float:
    """Share of the rows that the outputs of the fullest device read, padding included."""
    share = 1.0
    for dim, size in grid.items():
        outputs = -(-shape["output"][dim] // size)
        share *= ((outputs - 1) * shape["stride"] + shape["kernel"]) / shape["input"][dim]
    return share


def _of_weights(workload: Workload, split: LayerSplit, by_channel: bool) -> list[Block]:
    """Blocks with the device's part of the weights and whole activations."""
    layers, all_shares = workload.layers_by_block, split.weight_shares
    blocks = []
    for index, block in enumerate(workload.blocks):
        layers_of_block = layers.get(index, [])
        shares = [all_shares[entry["name"]] for entry in layers_of_block]
        parameters = sum(
            e["parameter_bytes"] * s for e, s in zip(layers_of_block, shares, strict=True)
        )
        rest = block.parameter_bytes - sum(e["parameter_bytes"] for e in layers_of_block)
        saved = block.saved_bytes
        if by_channel:
            for entry, share in zip(layers_of_block, shares, strict=True):
                if share < 1:
                    saved += _copied_channels(entry, share, workload.network)
        blocks.append(
            replace(
                block,
                parameter_bytes=round(parameters + rest),
                saved_bytes=saved,
                input_bytes=block.input_bytes * (2 if any(s < 1 for s in shares) else 1),
            )
        )
    return blocks


def _copied_channels(entry: Mapping[str, Any], share: float, network: str) -> float:
    """Bytes of the copied channels of the input, less the input if this layer saved it."""
    whole = float(prod(shape_of(entry, network)["input"]) * FLOAT32_BYTES)
    replaced = whole if float(entry["saved_bytes_per_sample"]) >= whole else 0.0
    return share * whole - replaced
