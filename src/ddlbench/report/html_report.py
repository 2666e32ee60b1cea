"""The HTML report: one file that shows the tables and figures of an experiment, offline too.

::

    tables/*.csv    figures/*.png, *.pdf, *.csv  ->  report.html     pictures in it, numbers linked

It shows what these files hold and computes nothing. Equal files give equal bytes. Other pages
of the same look are made here, too.

Sections are in the order in which a reader asks. One declares what it shows, and is left out if it
has nothing to show. A new section is a line of :data:`SECTIONS`::

    PageSection("Slow links", "slow-links", tables=(slow_links,), figures=("links",))
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ddlbench.common.document import write_text
from ddlbench.common.quantities import counted
from ddlbench.experiment.paths import (
    RESULTS,
    advice_file,
    figures_dir,
    html_report_file,
    prediction_figures_dir,
    tables_dir,
)
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.footer import commits_of, days_of
from ddlbench.report.page_tables import (
    PageInputs,
    PageTable,
    advice_text,
    advised,
    configurations,
    facts,
    files,
    plot_data,
    plot_script,
    reasons,
    speedups,
    waiting_for_data,
)
from ddlbench.report.registry import (
    FIGURES,
    FigureEntry,
    FigureKind,
    ReportFigure,
    figures_for,
    names_of,
    prediction_figures_for,
)
from ddlbench.report.slow_ranks import evidence, slow_of
from ddlbench.report.tables import read_tables

# What is no table: a macro of html_report.html of this name shows the value.
TEXTS: Mapping[str, Callable[[PageInputs], Any]] = {
    "advice": advice_text,
    "waiting": waiting_for_data,
    "plot": lambda _: True,
    "reasons": reasons,
    "facts": facts,
    "files": files,
    "slow": lambda inputs: inputs.slow,
}


@dataclass(frozen=True)
class PageSection:
    """One section.

    Args:
        title: at most eight words.
        anchor: of its address, as ``#speed-up``.
        texts: keys of :data:`TEXTS`, shown first.
        tables: functions that make a table, or None where there is nothing to show.
        figures: names in the registry of figures; of a strategy's figure, without the strategy.
        rest_of: kinds of figures, all of which are shown that no section names.
        folded: shown when the reader opens it.
    """

    title: str
    anchor: str
    texts: tuple[str, ...] = ()
    tables: tuple[Callable[[PageInputs], PageTable | None], ...] = ()
    figures: tuple[str, ...] = ()
    rest_of: tuple[FigureKind, ...] = ()
    folded: bool = False


SECTIONS = (
    PageSection("What to train with", "advice", texts=("advice",), tables=(advised,)),
    PageSection("Speed-up", "speed-up", tables=(speedups,), figures=("speedup",)),
    PageSection("Ranking of strategies", "choice", figures=("choice",)),
    PageSection("Scaling and pipelines", "scaling", figures=("scaling", "pipelines")),
    PageSection("Time", "time", texts=("waiting",), figures=("steps",)),
    PageSection(
        "Memory, traffic, utilisation",
        "memory-traffic-utilisation",
        figures=("memory", "traffic", "utilisation"),
    ),
    PageSection("Timelines", "timelines", figures=("timelines",)),
    PageSection("Slow ranks and nodes", "slow-ranks", texts=("slow",)),
    PageSection("Loss and accuracy", "learning", figures=("loss", "time_to_accuracy")),
    PageSection("Slower links", "links", figures=("latency", "bandwidth", "packet_loss")),
    PageSection("Further figures", "further", rest_of=("experiment",)),
    PageSection("Every configuration", "cells", texts=("plot",), tables=(configurations,)),
    PageSection("Without a measurement", "without-measurement", texts=("reasons",)),
    PageSection(
        "How good are the predictions?",
        "predictions",
        figures=("accuracy", "oracle", "conditions", "gpipe_step", "micro_batches"),
        rest_of=("prediction", "strategy"),
        folded=True,
    ),
    PageSection("What was measured", "measured", texts=("facts",), folded=True),
    PageSection("Files", "files", texts=("files",), folded=True),
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
    """The figures of an experiment by section, with addresses from the page's ``folder``."""

    def __init__(
        self, folder: Path, experiment: str, site: str, rows: Sequence[MatrixRow], results: Path
    ) -> None:
        self._folder = folder
        self._measured = figures_for(rows)
        self._figures_dir = results / figures_dir(site, experiment).relative_to(RESULTS)
        beside = results / prediction_figures_dir(site, experiment).relative_to(RESULTS)
        advice = results / advice_file(site, experiment).relative_to(RESULTS)
        of_advice = names_of("choice") if advice.is_file() else []
        self._groups: dict[str, tuple[Path, list[ReportFigure]]] = {
            name: (self._figures_dir, [ReportFigure(name, FIGURES[name])]) for name in of_advice
        }
        self._groups |= {name: (self._figures_dir, [each]) for name, each in self._measured.items()}
        of_predictions = names_of("prediction", "strategy")
        for figure in prediction_figures_for(rows).values():
            name = next(n for n in of_predictions if FIGURES[n] == figure.entry)
            self._groups.setdefault(name, (beside, []))[1].append(figure)

    def of(self, section: PageSection) -> Iterator[Captioned]:
        """The figures of a section that are drawn."""
        named = {name for each in SECTIONS for name in each.figures}
        rest = [name for kind in section.rest_of for name in names_of(kind) if name not in named]
        for name in (*section.figures, *rest):
            if name in self._groups and (shown := self._captioned(*self._groups[name])):
                yield shown

    def lacking(self) -> list[str]:
        """Names of the figures that the matrix has and the folder has not."""
        return [
            name for name in self._measured if not (self._figures_dir / f"{name}.png").is_file()
        ]

    def _captioned(self, place: Path, figures: Sequence[ReportFigure]) -> Captioned | None:
        paths = {figure.name: place / f"{figure.name}.png" for figure in figures}
        large = [
            name
            for name, path in paths.items()
            if path.is_file() and path.stat().st_size > _MOST_BYTES
        ]
        shown = [
            self._picture(paths[each.name], each) for each in figures if each.name not in large
        ]
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
        return quote(path.relative_to(self._folder).as_posix())


def _paragraphs(entry: FigureEntry) -> tuple[Markup, ...]:
    """What a caption says after its first sentence; ``*word*`` is emphasised."""
    rest = entry.caption.removeprefix(entry.heading).lstrip(".?!").strip()
    return tuple(
        Markup(re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", str(escape(text))))
        for text in rest.split("\n\n")
        if text
    )


def html_page(template: str, **values: Any) -> str:
    """A template of this folder, filled in; text is escaped, and ``code`` sets its `commands`.

    Raises:
        UndefinedError: the template asks for a value that is not among ``values``.
    """
    environment = Environment(
        loader=PackageLoader("ddlbench.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = lambda text: Markup(
        re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    )
    return environment.get_template(template).render(**values)


@dataclass(frozen=True)
class ShownSection:
    """A section with what it shows."""

    section: PageSection
    texts: tuple[tuple[str, Any], ...]
    tables: tuple[PageTable, ...]
    figures: tuple[Captioned, ...]


def make_html_report(
    experiment: str, site: Site, rows: Sequence[MatrixRow], results: Path = RESULTS
) -> Path:
    """Write the report of the tables and figures that are there, and return its path.

    Args:
        experiment: its name.
        site: where it was measured.
        rows: the matrix, which says which figures belong to it.
        results: the folder that holds ``<site>/cells``.
    """
    page = results / html_report_file(site.name, experiment).relative_to(RESULTS)
    tables = results / tables_dir(site.name, experiment).relative_to(RESULTS)
    read = read_tables(tables)
    figures = PageFigures(page.parent, experiment, site.name, rows, results)
    slow = [(f"{row.name}, {row.when}", evidence(row)) for row in slow_of(rows, site, results)]
    inputs = PageInputs(page.parent, tables, read, slow)
    count, missing = len(read.measurements), (read.measurements["status"] == Status.NOT_RUN).sum()
    unfinished = (
        f"Unfinished: {missing} of {counted(count, 'cell')} not run yet." if missing else ""
    )
    text = html_page(
        "html_report.html",
        title=f"{experiment} on {site.name}, {counted(count, 'cell')}",
        days=days_of(read.summary),
        site=site,
        commits=commits_of(read.summary),
        measured=_measured(read.summary),
        unfinished=unfinished,
        sections=list(_sections(inputs, figures)),
        lacking=figures.lacking(),
        plot=plot_data(read.summary),
        script=plot_script(),
    )
    write_text(page, text)
    return page


def _sections(inputs: PageInputs, figures: PageFigures) -> Iterator[ShownSection]:
    """The sections that have something to show."""
    for section in SECTIONS:
        values = ((name, TEXTS[name](inputs)) for name in section.texts)
        texts = tuple((name, value) for name, value in values if value)
        tables = tuple(table for make in section.tables if (table := make(inputs)) is not None)
        drawn = tuple(figures.of(section))
        if texts or tables or drawn:
            yield ShownSection(section, texts, tables, drawn)


def _measured(summary: pd.DataFrame) -> str:
    counts = [
        f"{count} {singular if count == 1 else plural}"
        for name, singular, plural in (
            ("strategy", "strategy", "strategies"),
            ("network", "network", "networks"),
            ("dataset", "dataset", "datasets"),
        )
        for count in [summary[name].nunique()]
    ]
    kinds = " and ".join(dict.fromkeys(kind.upper() for kind in summary["device_kind"] if kind))
    workers = counted(summary["workers"].max(), "worker")
    most = f"; largest cell: {workers} ({kinds})" if kinds else ""
    return f"{', '.join(counts)}{most}."
