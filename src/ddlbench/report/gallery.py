"""The gallery: each published figure with ours beside it, its claims, and how to make it.

One HTML file that needs no network, and the same as Markdown::

    config/papers/*/*.yaml   results/<site>/<experiment>/figures   claims.yaml
            |                          |                               |
            '------------------- gallery.html, gallery.md -------------'
"""

from __future__ import annotations

import base64
import math
import os
import shlex
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.document import write_text
from ddlbench.experiment.paths import RESULTS
from ddlbench.report.page import html_page

_PIXELS_EACH = 0.6  # of the page for one of a figure: 180 mm are 850


@dataclass(frozen=True)
class Shown:
    """One of our pictures.

    Args:
        file: its path.
        caption: where it comes from.
    """

    file: Path
    caption: str

    @property
    def data(self) -> str:
        """The picture as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.file.read_bytes()).decode()}"

    @property
    def width(self) -> int:
        """Pixels of the page."""
        (pixels,) = struct.unpack(">I", self.file.read_bytes()[16:20])
        return round(pixels * _PIXELS_EACH)


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
        return pd.read_csv(self.file).dropna(axis="columns", how="all")

    @property
    def lines(self) -> list[list[str]]:
        """The header and the rows of all columns whose values differ."""
        table = self._table[[name for name in self._table if name not in self._alike]]
        rows = [[_cell(value) for value in row] for row in table.itertuples(index=False)]
        return [[_words(name) for name in table.columns], *rows]

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
class Exhibit:
    """One published figure.

    Args:
        figure, title, source, question, original, read: of the paper's file.
        command: makes it; empty if nothing does.
        why_not: why it has no picture of its own; empty if it has or will have one.
        pictures, tables: ours, as far as they are there.
        claims: verdicts on its claims: id, claim, verdict, numbers.
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
    claims: tuple[tuple[str, str, str, str], ...]


def pictures_of(
    experiment: str, draws: Sequence[str], sites: Sequence[str], results: Path = RESULTS
) -> tuple[Shown, ...]:
    """The figures of an experiment, at any scale, that are there on the sites.

    Args:
        experiment: its name at full scale.
        draws: names of figures.
        sites: their names.
        results: the folder that holds them.
    """
    places = [
        (path, caption)
        for folder, caption in _folders(experiment, sites, results)
        for name in draws
        for path in (folder / "figures" / f"{name}.png",
                     folder / "figures" / "predictions" / f"{name}.png")
    ]  # fmt: skip
    return tuple(Shown(path, caption) for path, caption in places if path.is_file())


def tables_of(
    experiment: str, draws: Sequence[str], sites: Sequence[str], results: Path = RESULTS
) -> tuple[ShownTable, ...]:
    """The tables among what an experiment draws; arguments as of :func:`pictures_of`."""
    places = [
        (folder / "tables" / f"{name}.csv", f"{name}: {caption}")
        for folder, caption in _folders(experiment, sites, results)
        for name in draws
    ]
    return tuple(ShownTable(path, caption) for path, caption in places if path.is_file())


def _folders(experiment: str, sites: Sequence[str], results: Path) -> Iterator[tuple[Path, str]]:
    for site in sites:
        for folder in (results / site / experiment, results / site / f"{experiment}-laptop"):
            if folder.is_dir():
                yield folder, f"{folder.name} on {site}"


def drawings_of(command: str) -> tuple[Shown, ...]:
    """What a command without cells has drawn into its folder ``--out``, as far as it is there."""
    words = shlex.split(command)
    if "--out" not in words[:-1]:
        return ()
    folder = Path(words[words.index("--out") + 1])
    return tuple(Shown(path, path.stem) for path in sorted(folder.glob("*.png")))


def published_pictures(root: Path, names: Sequence[str]) -> tuple[Shown, ...]:
    """Kept pictures of published values alone, from the project's folder."""
    there = (root / name for name in names)
    return tuple(Shown(path, f"published: {path.stem}") for path in there if path.is_file())


def printed_of(table: Path | None) -> tuple[ShownTable, ...]:
    """A printed table with ours beside it, if it is there."""
    if table is None or not table.is_file():
        return ()
    return (ShownTable(table, "printed, and here"),)


def write_gallery(exhibits: Sequence[Exhibit], out: Path, told: Mapping[str, Any]) -> list[Path]:
    """Write gallery.html and gallery.md into a folder.

    Args:
        exhibits: in their order.
        out: the folder.
        told: ``days``, ``version`` and ``here``, for the head of the page.
    """
    shown = sum(bool(one.pictures or one.tables) for one in exhibits)
    page = html_page("gallery.html", exhibits=exhibits, shown=shown, told=told)
    html, markdown = out / "gallery.html", out / "gallery.md"
    write_text(html, page)
    write_text(markdown, _markdown(exhibits, out))
    return [html, markdown]


def _markdown(exhibits: Sequence[Exhibit], out: Path) -> str:
    lines = ["# Published figures beside ours", ""]
    for one in exhibits:
        lines += [f"## {one.figure}: {one.title}", "", f"{one.question} ({one.source})", ""]
        lines += [f"Original: {one.original}.", "", one.read, ""]
        lines += ["    " + one.command, ""] if one.command else []
        lines += [f"Not drawn: {one.why_not.rstrip('.')}.", ""] if one.why_not else []
        for picture in one.pictures:
            path = _relative(picture.file, out)
            lines += [f"![{picture.caption}]({path})", ""]
        lines += [f"[{table.caption}]({_relative(table.file, out)})\n" for table in one.tables]
        if one.claims:
            lines += ["| claim | verdict | |", "|---|---|---|"]
            lines += [
                f"| {claim} | {verdict} | {numbers} |" for _, claim, verdict, numbers in one.claims
            ]
            lines += [""]
    return "\n".join(lines)


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
