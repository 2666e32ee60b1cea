"""The page of all published figures: ours beside the printed values, the claims, how to make it.

One HTML file that needs no network::

    config/papers/*/*.yaml   figure_results.py   comparison.py   docs/papers/claims.csv
             |                      |                 |                 |
             '----------------------+-- papers.html --+-----------------'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError
from ddlbench.report.figure_results import FigureResults, read_numbers
from ddlbench.report.page import Png, html_page, read_png

_FIRST_ROWS = 60  # of a table


@dataclass(frozen=True)
class Shown:
    """One of our pictures.

    Args:
        file: its path.
        caption: where it comes from.
    """

    file: Path
    caption: str

    @cached_property
    def png(self) -> Png:
        """The picture itself.

        Raises:
            ConfigError: the file is no picture.
        """
        png = read_png(self.file)
        if png is None:
            raise ConfigError(f"{self.file} is no PNG picture; delete it, or draw it anew")
        return png


@dataclass(frozen=True)
class ShownTable:
    """One of our tables.

    Args:
        file: its CSV file.
        caption: where it comes from.
    """

    file: Path
    caption: str

    @cached_property
    def _table(self) -> pd.DataFrame:
        return read_numbers(self.file).dropna(axis="columns", how="all")

    @property
    def lines(self) -> list[list[str]]:
        """The header and the first rows of all columns whose values differ."""
        table = self._table[[name for name in self._table if name not in self._alike]]
        rows = table.head(_FIRST_ROWS).itertuples(index=False)
        return [
            [_words(name) for name in table.columns],
            *([_cell(value) for value in row] for row in rows),
        ]

    @property
    def left_out(self) -> int:
        """Rows that are not shown."""
        return max(0, len(self._table) - _FIRST_ROWS)

    @property
    def alike(self) -> str:
        """What is the same in all rows, as ``name value``."""
        first = self._table.head(1).to_dict("records")
        return ", ".join(f"{_words(name)} {_cell(first[0][name])}" for name in self._alike)

    @property
    def _alike(self) -> list[str]:
        table = self._table
        return [
            name
            for name in map(str, table)
            if len(table) > 1 and table[name].nunique(dropna=False) == 1
        ]


def _words(column: str) -> str:
    return column.replace("_", " ")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.3g}"
    return str(value)


@dataclass(frozen=True)
class Beside:
    """Printed values beside ours.

    Args:
        pairs: rows of :data:`~ddlbench.report.comparison.COLUMNS` that have a ratio.
        unmeasured, unprinted: how many values have no partner.
    """

    pairs: list[dict[str, str]]
    unmeasured: int
    unprinted: int


def beside_of(compared: pd.DataFrame) -> Beside:
    """What the page shows of a figure's comparison."""
    paired = compared["ratio"].notna()
    printed, measured = compared["published"].notna(), compared["measured"].notna()
    return Beside(
        [
            {str(name): _cell(value) for name, value in row.items()}
            for row in compared[paired].to_dict("records")
        ],
        int((printed & ~paired).sum()),
        int((measured & ~paired).sum()),
    )


@dataclass(frozen=True)
class Exhibit:
    """One published figure.

    Args:
        figure, title, source, question, original, read: of the paper's file.
        command: makes it; empty if nothing does.
        why_not: why it has no picture of its own; empty if it has or will have one.
        pictures, tables: ours, as far as they are there.
        text: what its command prints, where it draws nothing.
        beside: the printed values beside ours.
        claims: verdicts on its claims: claim, verdict, bed, numbers.
    """

    figure: str
    title: str
    source: str
    question: str
    original: str
    read: str
    command: str
    why_not: str
    pictures: tuple[Shown, ...]
    tables: tuple[ShownTable, ...]
    text: str
    beside: Beside
    claims: tuple[tuple[str, str, str, str], ...]

    @property
    def is_there(self) -> bool:
        """Whether anything of ours is shown."""
        return bool(self.pictures or self.tables or self.text)


def pictures_of(shown: Sequence[FigureResults]) -> tuple[Shown, ...]:
    """The pictures of these folders."""
    return tuple(Shown(path, _caption(path, one)) for one in shown for path in one.pictures())


def published_pictures(root: Path, names: Sequence[str]) -> tuple[Shown, ...]:
    """Kept pictures of published values alone.

    Args:
        root: the project's folder.
        names: paths from there.
    """
    there = (root / name for name in names)
    return tuple(Shown(path, f"published: {path.stem}") for path in there if path.is_file())


def tables_of(shown: Sequence[FigureResults]) -> tuple[ShownTable, ...]:
    """The tables of these folders that have no picture."""
    return tuple(ShownTable(path, _caption(path, one)) for one in shown for path in one.tables())


def _caption(path: Path, one: FigureResults) -> str:
    when = one.measured_at
    day = "" if when is None else f" on {when.date().isoformat()}"
    if one.site:
        return f"{path.stem}: measured here{day}, site {one.site}"
    return f"{path.stem}: kept in the repository{f', measured{day}' if day else ''}"


def write_page(exhibits: Sequence[Exhibit], out: Path, told: Mapping[str, Any]) -> Path:
    """Write the page.

    Args:
        exhibits: in their order.
        out: the file.
        told: ``days`` and ``version``, for the head of the page.
    """
    shown = sum(one.is_there for one in exhibits)
    write_text(out, html_page("papers_page.html", exhibits=exhibits, shown=shown, told=told))
    return out
