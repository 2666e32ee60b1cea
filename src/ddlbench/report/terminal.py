"""What a terminal shows of an experiment: where every cell stands, and the summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from ddlbench.experiment.paths import cell_dir
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.experiment.units import MB
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.footer import interval_words
from ddlbench.report.labels import (
    dataset_label,
    mark_without_speedup,
    network_label,
    strategy_label,
)
from ddlbench.report.measurements import collect
from ddlbench.report.tables import read_tables


def summary_table(tables_dir: Path) -> Table:
    """Speed, speed-up and memory of every configuration, or why there is none.

    Args:
        tables_dir: folder of the tables that ``make_tables`` wrote.
    """
    summary = read_tables(tables_dir).summary
    words = interval_words(summary, ratio=True)
    table = Table(
        title="Speed-up over sequential training",
        title_justify="left",
        caption=f"In brackets: {words}." if words else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    for name in ("dataset", "network", "strategy"):
        table.add_column(name, no_wrap=True)
    for name in ("workers", "samples/s", "speed-up", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary.to_dict("records"):
        options = f" ({row['options']})" if row["options"] else ""
        table.add_row(
            dataset_label(row["dataset"]),
            network_label(row["network"]),
            strategy_label(row["strategy"]) + options,
            str(row["workers"]),
            *_numbers(row),
        )
    return table


def _numbers(row: dict[Hashable, Any]) -> list[str]:
    if row["status"] != Status.OK:
        return ["", f"[red]{row['status']}[/red]", ""]
    speedup = "base"
    if row["strategy"] != BASE and pd.isna(row["speedup"]):
        speedup = mark_without_speedup(str(row["notes"]))
    elif row["strategy"] != BASE:
        low, high = _number(row["speedup_low"]), _number(row["speedup_high"])
        speedup = f"{_number(row['speedup'])} ({low}-{high})"
    return [
        _number(row["samples_per_s"], 1),
        speedup,
        _number(MB.of(row["peak_memory_bytes"]), 0),
    ]


def _number(value: Any, digits: int = 2) -> str:
    return "-" if pd.isna(value) else f"{float(value):.{digits}f}"


@dataclass(frozen=True)
class CellState:
    """One cell.

    Args:
        cell_id: its path below ``results/<site>/cells/``.
        state: where it stands.
        reason: why it is not ok; empty when it is.
        code: of the reason; empty when it is ok, or running.
    """

    cell_id: str
    state: Status
    reason: str
    code: str


def states(experiment: str, site: str, rows: list[MatrixRow]) -> list[CellState]:
    """State of every cell of the matrix, in its order."""
    table = collect(experiment, site, rows)
    found = []
    for record in table.to_dict("records"):
        state, reason, code = Status(record["status"]), record["reason"], record["reason_code"]
        holder = _holder(cell_dir(site, record["cell_id"]) / "lease.json")
        # A result called unsupported may be made anew, as what was missing is there now.
        if holder is not None and (not state.is_result or state == Status.UNSUPPORTED):
            state, reason, code = Status.RUNNING, holder, ""
        found.append(CellState(record["cell_id"], state, reason, code))
    return found


def states_table(found: list[CellState]) -> Table:
    """Counts first, by state and reason; then every cell that is neither ok nor merely not run."""
    title = ", ".join(
        f"{count} {state}{_of_these(found, state)}"
        for state, count in Counter(cell.state for cell in found).most_common()
    )
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("state", "code", "cell", "why"):
        table.add_column(name, overflow="fold")
    for cell in found:
        if cell.state not in (Status.OK, Status.NOT_RUN):
            table.add_row(cell.state, cell.code, cell.cell_id, cell.reason)
    return table


def _of_these(found: list[CellState], state: Status) -> str:
    """How many cells of a state have which reason, in brackets; nothing where one says it all."""
    codes = Counter(cell.code for cell in found if cell.state == state)
    if state == Status.NOT_RUN or set(codes) <= {"", str(state)}:
        return ""
    return " (" + ", ".join(f"{count} {code}" for code, count in codes.most_common()) + ")"


def _holder(lease: Path) -> str | None:
    """Who holds a cell's lease; the job itself, not this command, judges whether it lives."""
    try:
        owner = json.loads(lease.read_text("utf-8"))
        job = f"SLURM job {owner['job_id']}" if owner["job_id"] else f"process {owner['pid']}"
        return f"{job} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
