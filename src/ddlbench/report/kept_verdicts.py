"""The verdicts that this repository keeps, ``docs/papers/claims.csv``: a row a claim and bed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.project import project_root
from ddlbench.common.screen import two_digits

_NEEDED = ("experiment", "claim", "verdict", "bed", "lacks", "rests_on", "cases", "share", "value")


@dataclass(frozen=True)
class KeptVerdict:
    """What the kept studies say of a claim.

    Args:
        figure: of the paper, such as ddlbench/fig4.
        claim: in our words.
        verdict: on it.
        bed: what it was tested on; empty if on nothing.
        numbers: cases that are true and the median of what was tested, or what the bed lacks.
    """

    figure: str
    claim: str
    verdict: str
    bed: str
    numbers: str


def kept_verdicts(path: Path | None = None) -> list[KeptVerdict]:
    """The verdicts on the kept studies, in the order of the ledger; none where no file is.

    Args:
        path: another table than the repository's.

    Raises:
        ConfigError: the table cannot be read or lacks a column.
    """
    path = path or project_root() / "docs" / "papers" / "claims.csv"
    if not path.is_file():
        return []
    try:
        rows = pd.read_csv(path)
    except ValueError as error:  # pandas' own, and of text that is no UTF-8
        raise ConfigError(
            f"{path}: no table of verdicts: {str(error).partition(chr(10))[0]}; make it anew: "
            "python validation/claims.py"
        ) from None
    if missing := [name for name in _NEEDED if name not in rows]:
        raise ConfigError(
            f"{path}: no column {missing[0]!r}; make it anew: python validation/claims.py"
        )
    return [
        KeptVerdict(
            str(row["experiment"]),
            str(row["claim"]),
            str(row["verdict"]),
            _text(row, "bed"),
            _numbers(row),
        )
        for row in rows.to_dict("records")
    ]


def _text(row: Mapping[Any, Any], name: str) -> str:
    return "" if pd.isna(row[name]) else str(row[name])


def _numbers(row: Mapping[Any, Any]) -> str:
    if lacks := _text(row, "lacks"):
        return f"lacks {lacks}"
    cases, share, value = (float(row[name]) for name in ("cases", "share", "value"))
    if not cases > 0:
        return ""
    true = "" if math.isnan(share) else f"{round(share * cases)} of "
    median = "" if math.isnan(value) else f", median {two_digits(value)}"
    rests = _text(row, "rests_on")
    return f"{true}{cases:g}{median}{f'; {rests}' if rests else ''}"
