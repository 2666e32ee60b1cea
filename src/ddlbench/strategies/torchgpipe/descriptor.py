"""torchgpipe: one process drives all devices of one node (Kim et al. 2020).

::

    blocks     | a | b | c | d | e |       the plan deals them only with balance ``profile``;
    devices    |---0---|---1---|-2-|       torchgpipe itself profiles for ``time`` and ``size``

    gpipe      device 0  F0 F1 F2 F3          B3 B2 B1 B0
               device 1     F0 F1 F2 F3    B3 B2 B1 B0        4 micro-batches, 2 partitions
                         ------------- time ------------->    the triangles are the bubble

    model-     device 0  F-----                B-----
    parallel   device 1         F-----  B-----                one device works at a time
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.partition import balance
from ddlbench.planning.pipeline_stages import check_enough, measured_chain, measured_files
from ddlbench.planning.strategy import DeviceKind, Process, Strategy

__all__ = ["GPipe", "ModelParallel", "TorchGPipe"]

_BALANCE_OPTION: dict[str, Any] = {
    "type": ["string", "integer"],
    "pattern": r"^(time|size|blocks|profile|[1-9]\d*(\+[1-9]\d*)*)$",
    "minimum": 1,
    "default": "time",
    "description": (
        "How blocks are dealt to devices: 'time' and 'size' let torchgpipe profile the network, "
        "'profile' evens out the times of the site's profile, 'blocks' gives each device as many "
        "blocks, '5+9' says it by hand."
    ),
}


class TorchGPipe(Strategy):
    """Partitions of one process."""

    requires: ClassVar[tuple[str, ...]] = ("torchgpipe",)
    options: ClassVar[dict[str, dict[str, Any]]] = {"balance": _BALANCE_OPTION}

    def supports(self, cell: Cell) -> str | None:
        """One node, and a part of the network for each device."""
        if cell.nodes > 1:
            return Reason(
                "one_node_only",
                f"torchgpipe drives the devices of one node and cannot span {cell.nodes}; "
                "write 1xD",
            )
        rule = self.option_values(cell)["balance"]
        parts = str(rule).split("+")
        if parts[0].isdigit() and len(parts) != cell.devices:
            return Reason(
                "wrong_balance", f"balance {rule} has {len(parts)} parts for {cell.devices} devices"
            )
        return None

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process with every device of the node."""
        return (
            Process(
                rank=0,
                role="driver",
                node=0,
                local_rank=0,
                devices=tuple(range(cell.devices_per_node)),
            ),
        )

    def plan(
        self, cell: Cell, site: str | None = None
    ) -> tuple[tuple[Process, ...], dict[str, Any]]:
        """Options; with balance ``profile`` also ``blocks_per_device``.

        Raises:
            ConfigError: what was measured is missing or wrong.
        """
        processes, details = super().plan(cell, site)
        if details["balance"] == "profile":
            micro_batch = cell.batch_size // int(details.get("chunks", 1))
            chain = measured_chain(cell, site, micro_batch)
            check_enough(cell, len(chain), cell.devices)
            details["blocks_per_device"] = list(balance(chain, cell.devices))
        return processes, details

    def measured_inputs(self, cell: Cell, site: str) -> tuple[Path, ...]:
        """The profile, where it decides the balance."""
        measured = self.option_values(cell)["balance"] == "profile"
        return measured_files(cell, site) if measured else ()

    def note(self, device_kind: DeviceKind) -> str | None:
        """On CPU there is nothing to overlap."""
        if device_kind == "cuda":
            return None
        return "torchgpipe runs its CPU partitions one after the other: no speed-up can show here"


class GPipe(TorchGPipe):
    """Synchronous pipeline with micro-batches and recomputation (Huang et al. 2019)."""

    name: ClassVar[str] = "gpipe"
    label: ClassVar[str] = "GPipe"
    family: ClassVar[str] = "pipeline"
    executor: ClassVar[str] = "ddlbench.strategies.torchgpipe.executor:GPipeExecutor"
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
        "balance": _BALANCE_OPTION,
    }

    def supports(self, cell: Cell) -> str | None:
        """One node, and a mini-batch that the micro-batches divide."""
        chunks = int(self.option_values(cell)["chunks"])
        if cell.batch_size % chunks:
            return Reason(
                "uneven_batch",
                f"a mini-batch of {cell.batch_size} does not divide into {chunks} micro-batches; "
                f"make batch_size a multiple of {chunks}",
            )
        return super().supports(cell)

    def ideal_speedup(self, cell: Cell) -> float:
        """P m / (m + p - 1) (Huang et al. 2019, section 2); recomputation is not taken off."""
        chunks = int(self.option_values(cell)["chunks"])
        return cell.devices * chunks / (chunks + cell.devices - 1)


class ModelParallel(TorchGPipe):
    """torchgpipe with ``chunks=1, checkpoint='never'``."""

    name: ClassVar[str] = "model-parallel"
    label: ClassVar[str] = "Model parallel"
    family: ClassVar[str] = "model"
    executor: ClassVar[str] = "ddlbench.strategies.torchgpipe.executor:ModelParallelExecutor"

    def ideal_speedup(self, cell: Cell) -> float:
        """One device computes at a time."""
        return 1.0
