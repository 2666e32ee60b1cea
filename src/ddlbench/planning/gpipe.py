"""GPipe as torchgpipe runs it: one process drives all devices of one node.

::

    device 0  F0 F1 F2 F3          B3 B2 B1 B0
    device 1     F0 F1 F2 F3    B3 B2 B1 B0         4 micro-batches, 2 partitions
              ------------- time ------------->     the triangles are the bubble
"""

from __future__ import annotations

from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import DeviceKind, Process, Strategy

__all__ = ["GPipe", "single_process_placement", "torchgpipe_limits", "torchgpipe_on_cpu"]

BALANCE_OPTION: dict[str, Any] = {
    "type": ["string", "integer"],
    "pattern": r"^(time|size|blocks|[1-9]\d*(\+[1-9]\d*)*)$",
    "minimum": 1,
    "default": "time",
    "description": (
        "How blocks are dealt to devices: 'time' and 'size' let torchgpipe profile the network, "
        "'blocks' gives each device as many blocks, '5+9' says it by hand."
    ),
}


class GPipe(Strategy):
    """Synchronous pipeline with micro-batches and recomputation (Huang et al. 2019)."""

    name: ClassVar[str] = "gpipe"
    label: ClassVar[str] = "GPipe"
    family: ClassVar[str] = "pipeline"
    executor: ClassVar[str] = "ddlbench.strategies.gpipe:GPipeExecutor"
    requires: ClassVar[tuple[str, ...]] = ("torchgpipe",)
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
        return torchgpipe_limits(cell, self.option_values(cell)["balance"])

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process with every device of the node."""
        return single_process_placement(cell)

    def note(self, device_kind: DeviceKind) -> str | None:
        """On CPU there is nothing to overlap."""
        return torchgpipe_on_cpu(device_kind)


def torchgpipe_limits(cell: Cell, balance: object) -> str | None:
    """What torchgpipe cannot do with this cell; None when it can."""
    if cell.nodes > 1:
        return f"torchgpipe drives the devices of one node and cannot span {cell.nodes}; write 1xD"
    parts = str(balance).split("+")
    if parts[0].isdigit() and len(parts) != cell.devices:
        return f"balance {balance} has {len(parts)} parts for {cell.devices} devices"
    return None


def single_process_placement(cell: Cell) -> tuple[Process, ...]:
    """One process that drives all devices of one node."""
    return (
        Process(
            rank=0,
            role="driver",
            node=0,
            local_rank=0,
            devices=tuple(range(cell.devices_per_node)),
        ),
    )


def torchgpipe_on_cpu(device_kind: DeviceKind) -> str | None:
    """Why torchgpipe shows no speed-up on CPU."""
    if device_kind == "cuda":
        return None
    return "torchgpipe runs its CPU partitions one after the other: no speed-up can show here"
