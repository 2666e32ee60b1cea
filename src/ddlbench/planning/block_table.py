"""What each block of a built-in network costs, so that a login node can cut it without torch.

``block_table.csv`` holds one row a block: floating-point operations of its forward pass
(convolutions and matrix products) and output bytes, both of one sample, and the bytes of its
weights. ``make tables`` writes it anew.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddlbench.experiment.cell import Cell

__all__ = ["COLUMNS", "BlockCost", "block_costs"]

COLUMNS = ("network", "dataset", "block", "operations", "parameter_bytes", "output_bytes")


@dataclass(frozen=True)
class BlockCost:
    """One block.

    Args:
        operations: of the forward pass of one sample.
        parameter_bytes: its weights, in float32.
        output_bytes: what it gives on for one sample, in float32.
    """

    operations: int
    parameter_bytes: int
    output_bytes: int


def block_costs(cell: Cell) -> tuple[BlockCost, ...] | None:
    """The blocks of the cell's network, in order; None where it is not a built-in one."""
    return _table().get((cell.network, cell.dataset))


@cache
def _table() -> dict[tuple[str, str], tuple[BlockCost, ...]]:
    found: dict[tuple[str, str], list[BlockCost]] = {}
    with Path(__file__).with_name("block_table.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            costs = (int(row[name]) for name in COLUMNS[3:])
            found.setdefault((row["network"], row["dataset"]), []).append(BlockCost(*costs))
    return {key: tuple(costs) for key, costs in found.items()}
