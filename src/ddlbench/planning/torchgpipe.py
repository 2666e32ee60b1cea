"""What the strategies that torchgpipe runs share: one process drives all devices of one node.

::

    blocks     | a | b | c | d | e |       the plan deals them only with balance ``profile``;
    devices    |---0---|---1---|-2-|       torchgpipe itself profiles for ``time`` and ``size``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.partition import balance
from ddlbench.planning.pipeline_stages import check_enough, measured_chain, measured_files
from ddlbench.planning.strategy import DeviceKind, Process, Strategy

__all__ = ["BALANCE_OPTION", "TorchGPipe"]

BALANCE_OPTION: dict[str, Any] = {
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
    options: ClassVar[dict[str, dict[str, Any]]] = {"balance": BALANCE_OPTION}

    def supports(self, cell: Cell) -> str | None:
        """One node, and a part of the network for each device."""
        if cell.nodes > 1:
            return (
                f"torchgpipe drives the devices of one node and cannot span {cell.nodes}; write 1xD"
            )
        rule = self.option_values(cell)["balance"]
        parts = str(rule).split("+")
        if parts[0].isdigit() and len(parts) != cell.devices:
            return f"balance {rule} has {len(parts)} parts for {cell.devices} devices"
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
