"""The baseline: one device, no communication."""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.strategy import Process, Strategy, data_parallel_placement

__all__ = ["Sequential"]


class Sequential(Strategy):
    """Plain training on one device: what every speed-up is measured against."""

    name: ClassVar[str] = "sequential"
    label: ClassVar[str] = "Sequential"
    family: ClassVar[str] = "baseline"
    executor: ClassVar[str] = "ddlbench.strategies.sequential.executor:SequentialExecutor"

    def supports(self, cell: Cell) -> str | None:
        """One device only."""
        if cell.devices == 1:
            return None
        return Reason("one_device_only", "sequential training uses one device; write 1x1")

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """A single process."""
        return data_parallel_placement(cell)
