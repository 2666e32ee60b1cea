"""Which figures there are, and which an experiment has: known before it runs.

Needs neither results nor a library that draws. A figure is a module with
``draw(tables, context) -> (figure, table)`` and a line in :data:`FIGURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddlbench.planning.matrix import MatrixRow

__all__ = ["FIGURES", "Entry", "figures_for"]

Rows = Sequence[MatrixRow]


@dataclass(frozen=True)
class Entry:
    """One kind of figure.

    Args:
        draw: ``module:function``.
        applicable: whether a matrix has something to show in it.
    """

    draw: str
    applicable: Callable[[Rows], bool]


def _anything_runs(rows: Rows) -> bool:
    return any(row.unsupported is None for row in rows)


def _something_beside_a_base(rows: Rows) -> bool:
    return any(r.cell.strategy != "sequential" and r.base_id is not None for r in rows)


def _several_numbers_of_workers(rows: Rows) -> bool:
    counts = {
        row.cell.devices
        for row in rows
        if row.cell.strategy != "sequential" and row.unsupported is None and row.base_id is not None
    }
    return len(counts) > 1


FIGURES: dict[str, Entry] = {
    "speedup": Entry("ddlbench.report.speedup:draw", _something_beside_a_base),
    "memory": Entry("ddlbench.report.memory:draw", _anything_runs),
    "steps": Entry("ddlbench.report.steps:draw", _anything_runs),
    "scaling": Entry("ddlbench.report.scaling:draw", _several_numbers_of_workers),
}


def figures_for(rows: Rows) -> list[str]:
    """Names of the figures that a matrix has something to show in."""
    return [name for name, entry in FIGURES.items() if entry.applicable(rows)]
