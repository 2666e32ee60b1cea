"""Tables as CSV files: fixed columns, empty for unknown, written whole or not at all."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.atomic import write_text
from ddlbench.report.columns import MEASUREMENTS, STEPS, SUMMARY, Column, Kind

__all__ = [
    "NOTE_BREAK",
    "Tables",
    "conform",
    "frame_of",
    "read_table",
    "read_tables",
    "rows_of",
    "table_text",
    "write_table",
]

NOTE_BREAK = " | "


@dataclass(frozen=True)
class Tables:
    """The three tables of one experiment."""

    measurements: pd.DataFrame
    summary: pd.DataFrame
    steps: pd.DataFrame


def conform(frame: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """``frame`` with exactly ``columns``, in their order and of their kinds."""
    typed = {
        column.name: _typed(frame.get(column.name, None), column.kind, frame) for column in columns
    }
    return pd.DataFrame(typed, columns=[column.name for column in columns])


def frame_of(records: Iterable[dict[str, Any]], columns: Sequence[Column]) -> pd.DataFrame:
    """Make a conforming table from one mapping a row; a missing key is unknown."""
    rows = list(records)
    names = [column.name for column in columns]
    by_name = {name: pd.Series([row.get(name) for row in rows], dtype=object) for name in names}
    return conform(pd.DataFrame(by_name), columns)


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table atomically; equal tables give equal bytes."""
    write_text(path, table_text(frame))


def table_text(frame: pd.DataFrame) -> str:
    """The CSV of a table, as its file holds it."""
    return str(frame.to_csv(index=False, na_rep="", lineterminator="\n", quoting=csv.QUOTE_MINIMAL))


def read_table(path: Path, columns: Sequence[Column]) -> pd.DataFrame:
    """Read back what :func:`write_table` wrote, number for number."""
    return conform(pd.read_csv(path, dtype=str, keep_default_na=False), columns)


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows as named tuples, without the stubs' union of all scalars."""
    yield from frame.itertuples()


def read_tables(folder: Path) -> Tables:
    """Read the tables that lie in ``folder``."""
    return Tables(
        measurements=read_table(folder / "measurements.csv", MEASUREMENTS),
        summary=read_table(folder / "summary.csv", SUMMARY),
        steps=read_table(folder / "steps.csv", STEPS),
    )


def _typed(values: pd.Series | None, kind: Kind, frame: pd.DataFrame) -> pd.Series:
    if values is None:
        values = pd.Series([None] * len(frame), index=frame.index, dtype=object)
    known = values.astype(object).where(values.notna() & (values.astype(object) != ""), None)
    if kind == "text":
        return pd.Series([_text(v) for v in known], index=frame.index, dtype=object)
    if kind == "integer":
        return pd.Series(
            [pd.NA if v is None else int(v) for v in known], index=frame.index, dtype="Int64"
        )
    if kind == "number":
        return pd.Series(
            [float("nan") if v is None else float(v) for v in known],
            index=frame.index,
            dtype="float64",
        )
    return pd.Series([_flag(v) for v in known], index=frame.index, dtype=bool)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _flag(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "1.0")
