"""What there is of a published figure: kept in the repository, or measured in this checkout.

::

    docs/papers/ddlbench-fig4/{cells.csv, speedup.csv, speedup.png}                    kept
    results/<site>/ddlbench-fig4-laptop/{tables/measurements.csv, figures/speedup.*}   measured here

What was measured here is shown if it is newer than what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.project import project_root
from ddlbench.experiment.paper import LAPTOP, PaperFile
from ddlbench.experiment.paths import RESULTS
from ddlbench.report.columns import MEASUREMENTS
from ddlbench.report.summary import summarise
from ddlbench.report.tables import read_table

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
        """One row a cell, as :data:`~ddlbench.report.columns.MEASUREMENTS`; may be empty.

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
        """One row a configuration and site, as :data:`~ddlbench.report.columns.SUMMARY`."""
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
        """What a command without pictures printed."""
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
            f"{path}: no table: {str(error).partition(chr(10))[0]}; delete it, or draw its figure "
            "anew"
        ) from None


def kept_results(file: PaperFile) -> FigureResults:
    """What the repository keeps of a figure; its folder may be missing."""
    paper = file.paper
    names = (paper.printed.stem,) if paper.table else paper.draws
    return FigureResults(project_root() / paper.kept, "", names)


def shown_results(
    file: PaperFile, sites: Sequence[str], results: Path = RESULTS
) -> list[FigureResults]:
    """What to show of a figure: newer results of these sites, or else what is kept."""
    kept = kept_results(file)
    newer = [here for here in _measured_here(file, sites, results) if _is_newer(here, kept)]
    return newer or [kept]


def _measured_here(file: PaperFile, sites: Sequence[str], results: Path) -> Iterator[FigureResults]:
    experiment = str(file.values.get("experiment", ""))
    for site in sites if experiment else ():
        for name in (experiment, f"{experiment}-{LAPTOP}"):
            here = FigureResults(results / site / name, site, file.paper.draws)
            if here.pictures() or here.tables():
                yield here


def _is_newer(here: FigureResults, kept: FigureResults) -> bool:
    measured, before = here.measured_at, kept.measured_at
    return measured is not None and (before is None or measured > before)
