"""Figures of report.html: pictures with their captions, and links to their files."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup, escape

from ddlbench.experiment.paths import (
    RESULTS,
    advice_file,
    figures_dir,
    prediction_figures_dir,
)
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.page_sections import SECTIONS, PageSection
from ddlbench.report.registry import (
    FIGURES,
    FigureEntry,
    ReportFigure,
    figures_for,
    names_of,
    prediction_figures_for,
)

_HEAD = struct.Struct(">8s8xII")  # signature, length and name of IHDR, width and height
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXELS_EACH = 0.6  # of the page for one of a figure: 180 mm are 850
_MOST_BYTES = 2_000_000  # of a picture in the page; a larger one is linked
_TALL_PX = 900  # a taller one is scrolled
_WIDE_PX = 480  # a phone shrinks a wider figure until its letters cannot be read


class Png(NamedTuple):
    """A picture as a data URI, and its size in pixels of the page."""

    data: str
    width: int
    height: int


def read_png(path: Path) -> Png | None:
    """The picture of a file; None where there is none, or it is no whole PNG."""
    try:
        content = path.read_bytes()
        signature, width, height = _HEAD.unpack_from(content)
    except (OSError, struct.error):
        return None
    if signature != _SIGNATURE:
        return None
    data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return Png(data, round(width * _PIXELS_EACH), round(height * _PIXELS_EACH))


@dataclass(frozen=True)
class Picture:
    """One figure in the page.

    Args:
        name: of its files.
        heading: of what it is, where several figures share a caption; else empty.
        png: the picture.
        links: text and address of its PDF and CSV, as far as they are there.
    """

    name: str
    heading: str
    png: Png
    links: tuple[tuple[str, str], ...]

    @property
    def anchor(self) -> str:
        """Of its address, as ``#figure-time-to-accuracy``."""
        return f"figure-{self.name.replace('_', '-')}"

    @property
    def is_wide(self) -> bool:
        """Whether a phone should be able to enlarge it."""
        return self.png.width > _WIDE_PX

    @property
    def is_tall(self) -> bool:
        """Whether the page shows a part of it at first."""
        return self.png.height > _TALL_PX


@dataclass(frozen=True)
class Captioned:
    """Figures that share a caption: its first sentence, then its paragraphs."""

    heading: str
    paragraphs: tuple[Markup, ...]
    pictures: tuple[Picture, ...]
    too_large: tuple[tuple[str, str], ...] = ()  # name and address of pictures that are not in it

    @property
    def is_wide(self) -> bool:
        """Whether it takes the page's width."""
        return any(picture.is_wide for picture in self.pictures)


class PageFigures:
    """The figures of an experiment, by section.

    Args:
        folder: of the page.
        experiment, site: names.
        rows: the matrix, which says which figures belong to it.
        results: the folder that holds ``<site>/cells``.
    """

    def __init__(
        self, folder: Path, experiment: str, site: str, rows: Sequence[MatrixRow], results: Path
    ) -> None:
        self._folder = folder
        self._measured = figures_for(rows)
        self._own = results / figures_dir(site, experiment).relative_to(RESULTS)
        beside = results / prediction_figures_dir(site, experiment).relative_to(RESULTS)
        advice = results / advice_file(site, experiment).relative_to(RESULTS)
        of_advice = names_of("choice") if advice.is_file() else []
        self._groups: dict[str, tuple[Path, list[ReportFigure]]] = {
            name: (self._own, [ReportFigure(name, FIGURES[name])]) for name in of_advice
        }
        self._groups |= {name: (self._own, [one]) for name, one in self._measured.items()}
        for figure in prediction_figures_for(rows).values():
            name = next(n for n, entry in FIGURES.items() if entry == figure.entry)
            self._groups.setdefault(name, (beside, []))[1].append(figure)

    def of(self, section: PageSection) -> Iterator[Captioned]:
        """The figures of a section that are drawn."""
        named = {name for one in SECTIONS for name in one.figures}
        rest = [name for kind in section.rest_of for name in names_of(kind) if name not in named]
        for name in (*section.figures, *rest):
            if name in self._groups and (shown := self._captioned(*self._groups[name])):
                yield shown

    def lacking(self) -> list[str]:
        """Names of the figures that the matrix has and the folder has not."""
        return [name for name in self._measured if not (self._own / f"{name}.png").is_file()]

    def _captioned(self, place: Path, figures: Sequence[ReportFigure]) -> Captioned | None:
        paths = {figure.name: place / f"{figure.name}.png" for figure in figures}
        large = [n for n, path in paths.items() if path.is_file() and _bytes(path) > _MOST_BYTES]
        shown = [self._picture(paths[one.name], one) for one in figures if one.name not in large]
        there = tuple(picture for picture in shown if picture is not None)
        linked = tuple((name, self._address(paths[name])) for name in large)
        if not there and not linked:
            return None
        entry = figures[0].entry
        return Captioned(entry.heading or figures[0].name, _paragraphs(entry), there, linked)

    def _picture(self, path: Path, figure: ReportFigure) -> Picture | None:
        png = read_png(path)
        if png is None:
            return None
        heading = strategy_label(figure.strategy) if figure.strategy else ""
        files = [path.with_suffix(suffix) for suffix in (".pdf", ".csv")]
        links = tuple((f.suffix[1:].upper(), self._address(f)) for f in files if f.is_file())
        return Picture(figure.name, heading, png, links)

    def _address(self, path: Path) -> str:
        """Of a file from the page's folder."""
        return quote(path.relative_to(self._folder).as_posix())


def _bytes(path: Path) -> int:
    return path.stat().st_size


def _paragraphs(entry: FigureEntry) -> tuple[Markup, ...]:
    """What a caption says after its first sentence; ``*word*`` is emphasised."""
    rest = entry.caption.removeprefix(entry.heading).lstrip(".?!").strip()
    return tuple(
        Markup(re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", str(escape(text))))
        for text in rest.split("\n\n")
        if text
    )
