"""Tables about the built-in networks, by which a login node plans without torch.

``block_table.csv`` holds one row a block: floating-point operations of its forward pass
(convolutions and matrix products) and output bytes, both of one sample, and the bytes of its
weights. With it a login node cuts a network into stages.

``split_limits.csv`` holds, for each network and dataset, the layer with the fewest rows (along
height, width and depth, up to the head), filters and input channels. With it a login node knows
how far a network can be split.

``transformer_shapes.csv`` holds layers and widths of each transformer, for models that know
transformers by these numbers. ``make tables`` writes all three.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason

BLOCK_COLUMNS = ("network", "dataset", "block", "operations", "parameter_bytes", "output_bytes")


@dataclass(frozen=True)
class BlockCost:
    """Operations of a block's forward pass, and its output, for one sample; bytes of float32."""

    operations: int
    parameter_bytes: int
    output_bytes: int


def block_costs(cell: Cell) -> tuple[BlockCost, ...] | None:
    """The blocks of the cell's network, in order; None if it is not a built-in one."""
    return _block_table().get((cell.network, cell.dataset))


@cache
def _block_table() -> dict[tuple[str, str], tuple[BlockCost, ...]]:
    blocks: defaultdict[tuple[str, str], tuple[BlockCost, ...]] = defaultdict(tuple)
    for row in _rows("block_table.csv"):
        costs = (int(row[name]) for name in BLOCK_COLUMNS[3:])
        blocks[row["network"], row["dataset"]] += (BlockCost(*costs),)
    return dict(blocks)


def _rows(table: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(table).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def transformer_shape(network: str, dataset: str) -> dict[str, int] | None:
    """``layers``, ``hidden_size``, ...; None if the network is no built-in transformer."""
    return _shape_table().get((network, dataset))


@cache
def _shape_table() -> dict[tuple[str, str], dict[str, int]]:
    return {
        (row["network"], row["dataset"]): {
            name: int(row[name]) for name in row if name not in ("network", "dataset")
        }
        for row in _rows("transformer_shapes.csv")
    }


LIMIT_COLUMNS = ("network", "dataset", "split", "count", "layer")
DIMENSIONS = {"width": -1, "height": -2, "depth": -3}
_NOUNS = {
    "height": "rows",
    "width": "columns",
    "depth": "planes",
    "filter": "filters",
    "channel": "input channels",
}


def too_few(layer: str, split: str, count: int, devices: int) -> Reason:
    """Why a layer with ``count`` rows, filters or channels cannot be split over so many devices.

    ``split`` is "height", "width", "depth", "filter" or "channel".
    """
    earlier = ", or end the split before it (until: auto)" if split in DIMENSIONS else ""
    return Reason(
        "too_few_to_split",
        f"layer {layer} has {count} {_NOUNS[split]}, too few for {devices} devices; "
        f"use {count} at most{earlier}",
    )


def why_too_many(cell: Cell, split: str, devices: int) -> str | None:
    """Why the cell's network cannot be split over so many devices; None if it can."""
    count, layer = _limit_table().get((cell.network, cell.dataset, split), (devices, ""))
    return too_few(layer, split, count, devices) if count < devices else None


@cache
def _limit_table() -> dict[tuple[str, str, str], tuple[int, str]]:
    return {
        (row["network"], row["dataset"], row["split"]): (int(row["count"]), row["layer"])
        for row in _rows("split_limits.csv")
    }
