"""Tables as CSV files: fixed columns, empty for unknown, written whole or not at all.

A column has a name, a kind, a unit and a meaning, in ``columns.yaml``; ``make tables`` makes
``docs/reference/columns.csv`` of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from ddlbench.common.document import read_once, write_text
from ddlbench.common.errors import ConfigError, first_line
from ddlbench.common.schema import read_yaml

Kind = Literal["text", "integer", "number", "flag", "flag or unknown"]


@dataclass(frozen=True)
class Column:
    """One column. An unknown field is empty; a plain flag is never unknown."""

    name: str
    kind: Kind
    unit: str
    description: str


_DECLARED = read_yaml(Path(__file__).with_name("columns.yaml"))


def _columns(table: str) -> tuple[Column, ...]:
    columns: list[Column] = []
    for name, declared in _DECLARED[table].items():
        if declared is None:
            columns += _columns(name)
        else:
            kind, *unit, meaning = declared
            columns.append(Column(name, kind, "".join(unit), meaning))
    return tuple(columns)


MEASUREMENTS = _columns("measurements")
SUMMARY = _columns("summary")
STEPS = _columns("steps")
VALIDATION = _columns("validation")
CELLS = _columns("cells")
TREE_STEPS = _columns("tree_steps")
RANKS = _columns("ranks")
LINKS = _columns("links")


@dataclass(frozen=True)
class Tables:
    """The tables of one experiment."""

    measurements: pd.DataFrame
    summary: pd.DataFrame
    steps: pd.DataFrame
    validation: pd.DataFrame


def frame_of(records: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> pd.DataFrame:
    """Make a table of a mapping for each row; a missing key is unknown."""
    rows = list(records)
    return _frame(lambda name: [row.get(name) for row in rows], columns)


def read_columns(lines: Iterable[str], columns: Sequence[Column]) -> dict[str, list[Any]]:
    """The fields of these columns, read from the lines of a CSV file that may have others.

    Raises:
        ValueError: a column is missing, a line has too few fields, or one is not of its kind.
    """
    rows = csv.reader(lines)
    header = next(rows, [])
    if missing := {column.name for column in columns} - set(header):
        raise ValueError(f"no column {', '.join(sorted(missing))}")
    fields = list(zip(*rows, strict=True)) or [()] * len(header)
    if len(fields) != len(header):
        raise ValueError(f"{len(fields)} fields below {len(header)} columns")
    columns_read = {}
    for column in columns:
        _, unknown, read = _READERS[column.kind]
        texts = fields[header.index(column.name)]
        columns_read[column.name] = [read(text) if text else unknown for text in texts]
    return columns_read


def read_steps(folder: Path, columns: Sequence[Column]) -> dict[str, list[Any]]:
    """These columns of the ``steps.csv`` of a cell's folder; none if it has no such file.

    Raises:
        ValueError: as :func:`read_columns`, or the file cannot be read.
    """
    try:
        with (folder / "steps.csv").open(encoding="utf-8", newline="") as file:
            return read_columns(file, columns)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OverflowError, OSError, csv.Error) as error:
        raise ValueError(str(error)) from None


def typed_frame(fields: Mapping[str, list[Any]], columns: Sequence[Column]) -> pd.DataFrame:
    """A table of fields that are of their columns' kinds already."""
    return pd.DataFrame(
        {
            column.name: pd.Series(fields[column.name], dtype=_READERS[column.kind][0])
            for column in columns
        }
    )


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table atomically; equal tables give equal bytes."""
    write_text(path, table_text(frame))


def table_text(frame: pd.DataFrame) -> str:
    """The table as CSV."""
    return str(frame.to_csv(index=False, na_rep="", lineterminator="\n", quoting=csv.QUOTE_MINIMAL))


def read_table(path: Path, columns: Sequence[Column]) -> pd.DataFrame:
    """Read a table without loss of precision.

    Raises:
        ConfigError: it cannot be read, or a field is not of its column's kind.
    """
    try:
        return _read(path, tuple(columns)).copy()
    except (OSError, ValueError, ArithmeticError) as error:  # pandas' own are ValueErrors
        raise ConfigError(
            f"{path} cannot be read: {first_line(error)}; make it anew: ddlbench report"
        ) from None


@read_once(12)  # every figure reads the same tables
def _read(path: Path, columns: tuple[Column, ...]) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    unknown = [""] * len(frame)
    return _frame(lambda name: frame.get(name, unknown), columns)


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows as named tuples, typed as ``Any`` because the stubs have a union of all scalars."""
    yield from frame.itertuples()


def read_tables(folder: Path) -> Tables:
    """Read the tables that lie in ``folder``."""
    return Tables(
        measurements=read_table(folder / "measurements.csv", MEASUREMENTS),
        summary=read_table(folder / "summary.csv", SUMMARY),
        steps=read_table(folder / "steps.csv", STEPS),
        validation=read_table(folder / "validation.csv", VALIDATION),
    )


def are_of(folder: Path, cell_ids: Iterable[str]) -> bool:
    """Whether readable tables of exactly these cells lie in ``folder``."""
    column = next(column for column in MEASUREMENTS if column.name == "cell_id")
    try:
        with (folder / "measurements.csv").open(encoding="utf-8", newline="") as file:
            known = read_columns(file, [column])["cell_id"]
    except (OSError, ValueError, csv.Error):
        return False
    return set(known) == set(cell_ids) and (folder / "summary.csv").is_file()


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "1.0")


# Of each kind: the type of the column, the value of an unknown field, and how a field is read.
_READERS: dict[Kind, tuple[Any, Any, Callable[[Any], Any]]] = {
    "text": (object, "", str),
    "integer": ("Int64", pd.NA, int),
    "number": ("float64", math.nan, float),
    "flag": (bool, False, _is_true),
    "flag or unknown": ("boolean", pd.NA, _is_true),
}


def _frame(fields_of: Callable[[str], Iterable[Any]], columns: Sequence[Column]) -> pd.DataFrame:
    """A table of fields that are read as their columns' kinds say."""
    read = {column.name: _fields(fields_of(column.name), column.kind) for column in columns}
    return typed_frame(read, columns)


def _fields(values: Iterable[Any], kind: Kind) -> list[Any]:
    _, unknown, read = _READERS[kind]
    return [unknown if is_unknown(value) else read(value) for value in values]


def is_unknown(value: Any) -> bool:
    """Whether a field holds nothing."""
    return value is pd.NA or value in (None, "") or (isinstance(value, float) and math.isnan(value))
