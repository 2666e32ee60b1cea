"""Model parallelism: the network cut into partitions, one micro-batch, no recomputation.

::

    device 0  F-----                B-----
    device 1         F-----  B-----            one device works at a time
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.torchgpipe import TorchGPipe

__all__ = ["ModelParallel"]


class ModelParallel(TorchGPipe):
    """torchgpipe with ``chunks=1, checkpoint='never'``."""

    name: ClassVar[str] = "model-parallel"
    label: ClassVar[str] = "Model parallel"
    family: ClassVar[str] = "model"
    executor: ClassVar[str] = "ddlbench.strategies.model_parallel:ModelParallelExecutor"

    def ideal_speedup(self, cell: Cell) -> float:
        """One device computes at a time."""
        return 1.0
