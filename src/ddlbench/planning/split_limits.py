"""How far the built-in networks can be split, so that a login node can say so without torch.

``split_limits.csv`` holds, for each network and dataset, the layer with the fewest rows (along
height, width and depth, up to the head), filters and input channels. ``make tables`` writes it
anew.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason

__all__ = ["COLUMNS", "DIMENSIONS", "too_few", "why_too_many"]

COLUMNS = ("network", "dataset", "split", "count", "layer")
DIMENSIONS = {"width": -1, "height": -2, "depth": -3}
_NOUNS = {
    "height": "rows",
    "width": "columns",
    "depth": "planes",
    "filter": "filters",
    "channel": "input channels",
}


def too_few(layer: str, split: str, count: int, devices: int) -> Reason:
    """Why a layer cannot be split so far, and what to write.

    Args:
        layer: its name.
        split: "height", "width", "depth", "filter" or "channel".
        count: of its rows, filters or channels.
        devices: that share them.
    """
    earlier = ", or end the split before it (until: auto)" if split in DIMENSIONS else ""
    return Reason(
        "too_few_to_split",
        f"layer {layer} has {count} {_NOUNS[split]}, too few for {devices} devices; "
        f"use {count} at most{earlier}",
    )


def why_too_many(cell: Cell, split: str, devices: int) -> str | None:
    """Why the cell's network cannot be split over so many devices; None where it may."""
    count, layer = _table().get((cell.network, cell.dataset, split), (devices, ""))
    return too_few(layer, split, count, devices) if count < devices else None


@cache
def _table() -> dict[tuple[str, str, str], tuple[int, str]]:
    with Path(__file__).with_name("split_limits.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["network"], row["dataset"], row["split"]): (int(row["count"]), row["layer"])
            for row in csv.DictReader(file)
        }
