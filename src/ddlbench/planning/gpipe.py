"""GPipe as torchgpipe runs it: one process drives all devices of one node.

::

    device 0  F0 F1 F2 F3          B3 B2 B1 B0
    device 1     F0 F1 F2 F3    B3 B2 B1 B0         4 micro-batches, 2 partitions
              ------------- time ------------->     the triangles are the bubble
"""

from __future__ import annotations

from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.torchgpipe import BALANCE_OPTION, TorchGPipe

__all__ = ["GPipe"]


class GPipe(TorchGPipe):
    """Synchronous pipeline with micro-batches and recomputation (Huang et al. 2019)."""

    name: ClassVar[str] = "gpipe"
    label: ClassVar[str] = "GPipe"
    family: ClassVar[str] = "pipeline"
    executor: ClassVar[str] = "ddlbench.strategies.gpipe:GPipeExecutor"
    options: ClassVar[dict[str, dict[str, Any]]] = {
        "chunks": {
            "type": "integer",
            "minimum": 1,
            "default": 4,
            "description": "Micro-batches that a mini-batch is cut into.",
        },
        "checkpoint": {
            "enum": ["except_last", "always", "never"],
            "default": "except_last",
            "description": "For which micro-batches activations are recomputed.",
        },
        "balance": BALANCE_OPTION,
    }

    def supports(self, cell: Cell) -> str | None:
        """One node, and a mini-batch that the micro-batches divide."""
        chunks = int(self.option_values(cell)["chunks"])
        if cell.batch_size % chunks:
            return (
                f"a mini-batch of {cell.batch_size} does not divide into {chunks} micro-batches; "
                f"make batch_size a multiple of {chunks}"
            )
        return super().supports(cell)

    def ideal_speedup(self, cell: Cell) -> float:
        """P m / (m + p - 1) (Huang et al. 2019, section 2); recomputation is not taken off."""
        chunks = int(self.option_values(cell)["chunks"])
        return cell.devices * chunks / (chunks + cell.devices - 1)
