"""Where every cell stands: done, running, failed, not run - and why."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from ddlbench.experiment.paths import cell_dir
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.measurements import collect

__all__ = ["CellState", "states", "states_table"]


@dataclass(frozen=True)
class CellState:
    """One cell.

    Args:
        cell_id: its path below ``results/<site>/cells/``.
        state: ok, out_of_memory, unsupported, timeout, failed, invalid, running or not run.
        reason: why it is not ok; empty when it is.
    """

    cell_id: str
    state: str
    reason: str


def states(experiment: str, site: str, rows: list[MatrixRow]) -> list[CellState]:
    """State of every cell of the matrix, in its order."""
    table = collect(experiment, site, rows)
    found = []
    for record in table.to_dict("records"):
        state, reason = str(record["status"]), str(record["reason"] or "")
        holder = _holder(cell_dir(site, record["cell_id"]) / "lease.json")
        if holder is not None and state not in ("ok", "out_of_memory", "timeout"):
            state, reason = "running", holder
        found.append(CellState(record["cell_id"], state, "" if reason == "nan" else reason))
    return found


def states_table(found: list[CellState]) -> Table:
    """Counts first, then every cell that is neither done nor merely not run yet."""
    counts = Counter(cell.state for cell in found)
    title = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("state", "cell", "why"):
        table.add_column(name, overflow="fold")
    for cell in found:
        if cell.state not in ("ok", "not run"):
            table.add_row(cell.state, cell.cell_id, cell.reason)
    return table


def _holder(lease: Path) -> str | None:
    """Who holds a cell's lease; the job itself, not this command, judges whether it lives."""
    try:
        owner = json.loads(lease.read_text("utf-8"))
        job = f"SLURM job {owner['job_id']}" if owner["job_id"] else f"process {owner['pid']}"
        return f"{job} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
