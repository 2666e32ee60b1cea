"""The summary as a table on the terminal: what a person sees when a run ends."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.experiment.units import MB
from ddlbench.report.footer import interval_words
from ddlbench.report.labels import dataset_label, network_label, strategy_label
from ddlbench.report.marks import mark_without_speedup
from ddlbench.report.tables import read_tables

__all__ = ["summary_table"]


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
