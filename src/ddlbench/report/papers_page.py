"""The page of all published figures: ours beside the printed values, the claims, how to make it.

One HTML file that needs no network::

    config/papers/*/*.yaml   results of figures   comparison.py   docs/papers/claims.csv
             |                      |                  |                 |
             '----------------------+-- papers.html ---+-----------------'

Results of a published figure are kept in the repository, or measured in this checkout::

    docs/papers/ddlbench-fig4/{cells.csv, speedup.csv, speedup.png}                    kept
    results/<site>/ddlbench-fig4-laptop/{tables/measurements.csv, figures/speedup.*}   measured here

What was measured here is shown if it is newer than what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError, first_line
from ddlbench.experiment.config import LAPTOP, Paper, PaperFile
from ddlbench.experiment.paths import RESULTS, project_root
from ddlbench.report.html_report import Png, html_page, read_png
from ddlbench.report.summary import summarise
from ddlbench.report.tables import MEASUREMENTS, read_table

_CELLS = "cells.csv"
TEXT = "printed.txt"  # of a command that draws nothing


@dataclass(frozen=True)
class FigureResults:
    """One folder with a figure's pictures and tables.

    Args:
        folder: that holds them.
        site: where its cells were measured; empty of what the repository keeps.
        draws: names of its figures and tables, in the order to show them.
    """

    folder: Path
    site: str
    draws: tuple[str, ...]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell, as :data:`~ddlbench.report.tables.MEASUREMENTS`; may be empty.

        Raises:
            ConfigError: the table cannot be read, or lacks the base of a cell.
        """
        path = self.folder / "tables" / "measurements.csv" if self.site else self.folder / _CELLS
        if not path.is_file():
            return pd.DataFrame(columns=[column.name for column in MEASUREMENTS])
        cells = read_table(path, MEASUREMENTS)
        lost = cells[cells["speedup"].notna() & ~cells["base_cell_id"].isin(cells["cell_id"])]
        if len(lost):
            raise ConfigError(
                f"{path}: no row of the base of {lost['cell_id'].iloc[0]}; make the table anew: "
                "ddlbench report"
            )
        return cells

    @cached_property
    def configurations(self) -> pd.DataFrame:
        parts = [summarise(cells) for _, cells in self.cells.groupby("site", sort=False)]
        return pd.concat(parts, ignore_index=True) if parts else summarise(self.cells)

    @property
    def measured_at(self) -> pd.Timestamp | None:
        """When the last of its cells ended; None without cells, as of the picture of a schedule."""
        times = pd.to_datetime(self.cells["created"], utc=True, errors="coerce").dropna()
        return times.max() if len(times) else None

    def pictures(self) -> list[Path]:
        """Its pictures: those that it should draw first, and those that lie beside them."""
        drawn = [path for name in self.draws for path in self._files(f"{name}.png")]
        beside = [] if self.site else sorted(self.folder.glob("*.png"))
        return list(dict.fromkeys([*drawn, *beside]))

    def tables(self) -> list[Path]:
        """The tables among what it draws, which have no picture."""
        drawn = {path.stem for path in self.pictures()}
        names = [name for name in self.draws if name not in drawn]
        return [path for name in names for path in self._files(f"{name}.csv")]

    def table(self, name: str) -> pd.DataFrame | None:
        """The numbers that a figure of this name shows; None where there is no such table.

        Raises:
            ConfigError: it cannot be read.
        """
        return next((read_numbers(path) for path in self._files(f"{name}.csv")), None)

    def text(self) -> str:
        return "\n".join(path.read_text("utf-8") for path in self._files(TEXT))

    def _files(self, name: str) -> Iterator[Path]:
        places = ("figures", "figures/predictions", "tables") if self.site else ("",)
        yield from (path for place in places if (path := self.folder / place / name).is_file())


def read_numbers(path: Path) -> pd.DataFrame:
    """The table beside a figure.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return pd.read_csv(path)
    except ValueError as error:  # pandas' own, and of text that is no UTF-8
        raise ConfigError(
            f"{path}: no table: {first_line(error)}; delete it, or draw its figure anew"
        ) from None


def kept_results(file: PaperFile) -> FigureResults:
    """What the repository keeps of a figure; its folder may be missing."""
    paper = file.paper
    names = (paper.printed.stem,) if paper.table else paper.draws
    return FigureResults(project_root() / paper.kept, "", names)


def shown_results(file: PaperFile, sites: Sequence[str]) -> list[FigureResults]:
    """What to show of a figure: newer results of these sites, or else what is kept."""
    kept = kept_results(file)
    before = kept.measured_at
    newer = [
        here
        for here in _measured_here(file, sites)
        if (measured := here.measured_at) is not None and (before is None or measured > before)
    ]
    return newer or [kept]


def _measured_here(file: PaperFile, sites: Sequence[str]) -> Iterator[FigureResults]:
    experiment = str(file.values.get("experiment", ""))
    for site in sites if experiment else ():
        for name in (experiment, f"{experiment}-{LAPTOP}"):
            here = FigureResults(RESULTS / site / name, site, file.paper.draws)
            if here.pictures() or here.tables():
                yield here


_FIRST_ROWS = 60  # of a table


@dataclass(frozen=True)
class Shown:
    """One of our pictures, and where it comes from."""

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
    """One of our tables as a CSV file, and where it comes from."""

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
        paper: of the figure's file.
        command: makes it; empty if nothing does.
        why_not: why it has no picture of its own; empty if it has or will have one.
        pictures, tables: ours, as far as they are there.
        text: what its command prints, where it draws nothing.
        beside: the printed values beside ours.
        claims: verdicts on its claims: claim, verdict, bed, numbers.
    """

    paper: Paper
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
    return tuple(
        Shown(path, _caption(path, results)) for results in shown for path in results.pictures()
    )


def published_pictures(root: Path, names: Sequence[str]) -> tuple[Shown, ...]:
    """Kept pictures of published values alone, by their paths in the project's folder."""
    there = (root / name for name in names)
    return tuple(Shown(path, f"published: {path.stem}") for path in there if path.is_file())


def tables_of(shown: Sequence[FigureResults]) -> tuple[ShownTable, ...]:
    """The tables of these folders that have no picture."""
    return tuple(
        ShownTable(path, _caption(path, results)) for results in shown for path in results.tables()
    )


def _caption(path: Path, results: FigureResults) -> str:
    when = results.measured_at
    day = "" if when is None else f" on {when.date().isoformat()}"
    if results.site:
        return f"{path.stem}: measured here{day}, site {results.site}"
    return f"{path.stem}: kept in the repository{f', measured{day}' if day else ''}"


def write_page(exhibits: Sequence[Exhibit], out: Path, facts: Mapping[str, Any]) -> Path:
    """Write the page; ``facts`` are the ``days`` and ``version`` of its head."""
    shown = sum(exhibit.is_there for exhibit in exhibits)
    write_text(out, html_page("papers_page.html", exhibits=exhibits, shown=shown, facts=facts))
    return out
