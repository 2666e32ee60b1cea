"""Columns of the tables: a name, a kind, a unit and a meaning, as ``columns.yaml`` has them.

``docs/results.md`` is made from them (``make tables``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddlbench.common.schema import read_yaml

Kind = Literal["text", "integer", "number", "flag", "flag or unknown"]
NOTE_BREAK = " | "


@dataclass(frozen=True)
class Column:
    """One column. An unknown field is empty; a plain flag is never unknown."""

    name: str
    kind: Kind
    unit: str
    description: str


_DECLARED = read_yaml(Path(__file__).with_suffix(".yaml"))


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
