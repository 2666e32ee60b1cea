"""plan.json: who runs where, and how; what run and predict both read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.experiment.atomic import digest_of
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS, plan_file
from ddlbench.planning.strategy import Process, strategy_of

__all__ = ["Plan", "make_plan", "plan_at"]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """A cell's processes and what its strategy fixes beside them."""

    cell: Cell
    processes: tuple[Process, ...]
    details: dict[str, Any]

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return len(self.processes)

    def on_node(self, node: int) -> tuple[Process, ...]:
        """The processes of one node."""
        return tuple(process for process in self.processes if process.node == node)

    def to_dict(self) -> dict[str, Any]:
        """The form that plan.json holds."""
        return {
            "schema_version": SCHEMA_VERSION,
            "cell": self.cell.to_dict(),
            "processes": [process.to_dict() for process in self.processes],
            "details": self.details,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Read the form that :meth:`to_dict` writes."""
        return cls(
            cell=Cell.from_dict(values["cell"]),
            processes=tuple(Process.from_dict(entry) for entry in values["processes"]),
            details=dict(values["details"]),
        )

    @property
    def digest(self) -> str:
        """Digest that results name their plan by."""
        return digest_of(self.to_dict())


def make_plan(cell: Cell, site: str | None = None) -> Plan:
    """The plan of a cell that its strategy supports.

    Args:
        cell: the cell.
        site: where it runs; a plan that is made from the site's measurements needs it.

    Raises:
        ConfigError: the plan is made from measurements that are not there.
    """
    return Plan(cell, *strategy_of(cell.strategy).plan(cell, site))


def plan_at(cell: Cell, site: str, results_root: Path = RESULTS) -> Plan:
    """The plan that a cell ran with at a site, else the one that it would run with.

    Args:
        cell: the cell.
        site: where.
        results_root: the folder that holds ``<site>/cells``.

    Raises:
        ConfigError: it did not run, and its plan is made from measurements that are not there.
    """
    path = results_root / plan_file(site, cell.id).relative_to(RESULTS)
    return _read_plan(path, cell) or make_plan(cell, site)


def _read_plan(path: Path, cell: Cell) -> Plan | None:
    """A readable plan of this very cell, else None."""
    try:
        values = json.loads(path.read_bytes())
        plan = Plan.from_dict(values)
    except (OSError, ValueError, KeyError, TypeError):  # ConfigError and JSONDecodeError, too
        return None
    known = values.get("schema_version") == SCHEMA_VERSION
    return plan if known and plan.cell == cell else None
