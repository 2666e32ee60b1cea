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
    """

    fault: str
    where: str
    state: str
    ranks_gone_s: float | None
    then: str
    results_lost: int
    measured_twice: int


ROWS: list[Row] = []


def text() -> str:
    """The table as Markdown."""
    lines = [
        "| fault | where | cell then is | all ranks gone after | after the next run "
        "| results lost | measured twice |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        gone = "-" if row.ranks_gone_s is None else f"{row.ranks_gone_s:.1f} s"
        lines.append(
            f"| {row.fault} | {row.where} | {row.state} | {gone} | {row.then} "
            f"| {row.results_lost} | {row.measured_twice} |"
        )
    return "\n".join(lines)


def save(path: Path) -> None:
    """Write the table as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in ROWS)
