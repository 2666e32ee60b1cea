"""PyTorch's DistributedDataParallel.

::

    backward  |  layer n ... | ... layer 1 |
    bucket 0     |--- all-reduce ---|               gradients leave in buckets,
    bucket 1            |--- all-reduce ---|        last layers first, while
    update                                 |--|     backward still runs
"""

from __future__ import annotations

from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import (
    Process,
    Strategy,
    data_parallel_placement,
    uneven_shares,
)

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(Strategy):
    """Replicas with bucketed gradient all-reduce overlapped with backward (Li et al. 2020)."""

    name: ClassVar[str] = "ddp"
    label: ClassVar[str] = "DDP"
    family: ClassVar[str] = "data parallel"
    executor: ClassVar[str] = "ddlbench.strategies.ddp:DdpExecutor"
    options: ClassVar[dict[str, dict[str, Any]]] = {
        "bucket_cap_bytes": {
            "type": "integer",
            "minimum": 1,
            "default": 26_214_400,
            "description": "Largest gradient bucket in bytes (torch's own default is 25 MiB).",
        },
    }

    def supports(self, cell: Cell) -> str | None:
        """Any number of nodes and devices; equal shares."""
        return uneven_shares(cell)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process a device."""
        return data_parallel_placement(cell)
