"""Horovod: ring all-reduce with tensor fusion (Sergeev and Del Balso 2018).

::

    cycle     |....|....|....|....|      every cycle the ranks agree on what is ready,
    ready      a b   c      d            fuse it up to the threshold, all-reduce it
    all-reduce      |ab |c |   |d |
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

__all__ = ["Horovod"]


class Horovod(Strategy):
    """Real Horovod, started without ssh, mpirun or horovodrun.

    The defaults are Horovod 0.28's own; DDLBench ran 0.19/0.20, whose defaults were
    64 MiB and 5 ms.
    """

    name: ClassVar[str] = "horovod"
    label: ClassVar[str] = "Horovod"
    family: ClassVar[str] = "data parallel"
    executor: ClassVar[str] = "ddlbench.strategies.horovod.executor:HorovodExecutor"
    requires: ClassVar[tuple[str, ...]] = ("horovod",)
    options: ClassVar[dict[str, dict[str, Any]]] = {
        "fusion_threshold_bytes": {
            "type": "integer",
            "minimum": 0,
            "default": 134_217_728,
            "description": "Gradients are fused up to so many bytes; 0 turns fusion off.",
        },
        "cycle_time_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 0.001,
            "description": "Time between two rounds of negotiation, in seconds.",
        },
    }

    def supports(self, cell: Cell) -> str | None:
        """Any number of nodes and devices; equal shares."""
        return uneven_shares(cell)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process a device."""
        return data_parallel_placement(cell)
