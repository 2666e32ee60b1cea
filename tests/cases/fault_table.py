"""What the fault tests saw: one row a fault, printed at the end and kept where asked for."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        fault: what was done to a running cell.
        where: "SLURM": on two virtual nodes; "local": on this machine.
        state: what the cell was right after it.
        ranks_gone_s: seconds from the fault until no rank of its job ran; None where ranks go on.
        then: what the cell was after the next run of the workflow.
        results_lost: finished results that were gone afterwards.
        measured_twice: cells that were measured to the end more than once.
        shown_after_s: seconds from the fault, or from the start of the run if it was there then,
            until the screen named it; None where nobody waited for that.
    """

    fault: str
    where: str
    state: str
    ranks_gone_s: float | None
    then: str
    results_lost: int
    measured_twice: int
    shown_after_s: float | None = None


ROWS: list[Row] = []


def text() -> str:
    """The table as Markdown."""
    lines = [
        "| fault | where | cell then is | all ranks gone after | after the next run "
        "| results lost | measured twice | on the screen after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        gone, shown = _seconds(row.ranks_gone_s), _seconds(row.shown_after_s)
        lines.append(
            f"| {row.fault} | {row.where} | {row.state} | {gone} | {row.then} "
            f"| {row.results_lost} | {row.measured_twice} | {shown} |"
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def save(path: Path) -> None:
    """Write the table as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in ROWS)
