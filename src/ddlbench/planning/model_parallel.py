"""Model parallelism: the network cut into partitions, one micro-batch, no recomputation.

::

    device 0  F-----                B-----
    device 1         F-----  B-----            one device works at a time
"""

from __future__ import annotations

from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.gpipe import (
    BALANCE_OPTION,
    single_process_placement,
    torchgpipe_limits,
    torchgpipe_on_cpu,
)
from ddlbench.planning.strategy import DeviceKind, Process, Strategy

__all__ = ["ModelParallel"]


class ModelParallel(Strategy):
    """torchgpipe with ``chunks=1, checkpoint='never'``."""

    name: ClassVar[str] = "model-parallel"
    label: ClassVar[str] = "Model parallel"
    family: ClassVar[str] = "model"
    executor: ClassVar[str] = "ddlbench.strategies.model_parallel:ModelParallelExecutor"
    requires: ClassVar[tuple[str, ...]] = ("torchgpipe",)
    options: ClassVar[dict[str, dict[str, Any]]] = {"balance": BALANCE_OPTION}

    def supports(self, cell: Cell) -> str | None:
        """One node."""
        return torchgpipe_limits(cell, self.option_values(cell)["balance"])

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process with every device of the node."""
        return single_process_placement(cell)

    def note(self, device_kind: DeviceKind) -> str | None:
        """On CPU there is nothing to overlap."""
        return torchgpipe_on_cpu(device_kind)
