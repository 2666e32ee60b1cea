"""The HTML report: one file that shows the tables and figures of an experiment, offline too.

::

    tables/*.csv    figures/*.png, *.pdf, *.csv  ->  report.html     pictures in it, numbers linked

It shows what these files hold and computes nothing. Equal files give equal bytes. Other pages
of the same look are made here, too.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ddlbench.common.document import write_text
from ddlbench.common.schema import read_yaml
from ddlbench.common.screen import Column
from ddlbench.experiment.cell import Cell, short_names
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
from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.choice_tables import not_advised
from ddlbench.report.comparability import NOTE_BREAK
from ddlbench.report.footer import commits_of, days_of, interval_words, is_set, marks
from ddlbench.report.registry import (
    FIGURES,
    FigureEntry,
    ReportFigure,
    figures_for,
    names_of,
    prediction_figures_for,
)
from ddlbench.report.slow_ranks import facts, slow_of
from ddlbench.report.style import variant_labels, workers_label
from ddlbench.report.tables import Tables, read_tables
from ddlbench.report.terminal import advice, answers_at, numbers_of, speedup_table, telling_apart

_HEAD = struct.Struct(">8s8xII")  # signature, length and name of IHDR, width and height
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXELS_EACH = 0.6  # of the page for one of a figure: 180 mm are 850


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


def html_page(template: str, **values: Any) -> str:
    """A template of this folder, filled in; text is escaped.

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
    environment.filters["code"] = _code
    return environment.get_template(template).render(**values)


def _code(text: str) -> Markup:
    """Escaped text whose `commands` are set as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


_FEW_NAMES = 12


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


@dataclass(frozen=True)
class Captioned:
    """Figures that share a caption: its first sentence, then its paragraphs."""

    heading: str
    paragraphs: tuple[Markup, ...]
    pictures: tuple[Picture, ...]


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
    columns, speedups = _shown(*_speedups(read.summary))
    count = len(read.measurements)
    text = html_page(
        "html_report.html",
        title=f"{experiment} on {site.name}, {count} cell{'' if count == 1 else 's'}",
        days=days_of(read.summary),
        site=site,
        commits=commits_of(read.summary),
        measured=_measured(read.summary),
        unfinished=_unfinished(read.measurements),
        facts=_facts(read.summary),
        slow=facts(slow_of(rows, site, results)),
        advice=advice(tables),
        columns=columns,
        speedups=speedups,
        not_advised=not_advised(answers_at(tables), read.summary),
        intervals=interval_words(read.summary, ratio=True),
        marks=marks(read.summary),
        figures=list(_figures(page.parent, experiment, site, rows, results)),
        lacking=_lacking(experiment, site, rows, results),
        summary=_summary(read.summary),
        reasons=_reasons(read, page.parent),
        files=_files(page.parent, tables),
    )
    write_text(page, text)
    return page


def _speedups(summary: pd.DataFrame) -> tuple[list[Column], list[tuple[str, ...]]]:
    return speedup_table(summary.to_dict("records"), telling_apart(summary))


def _shown(
    columns: list[Column], rows: list[tuple[str, ...]]
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Columns that have a text, and what of the rows is in them."""
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    return [columns[at] for at in kept], [tuple(row[at] for at in kept) for row in rows]


def _unfinished(measurements: pd.DataFrame) -> str:
    """How many cells have no result yet; empty where all have one."""
    missing = int((measurements["status"] == Status.NOT_RUN).sum())
    if not missing:
        return ""
    return f"Unfinished: {missing} of {len(measurements)} cells have not run yet."


def _measured(summary: pd.DataFrame) -> str:
    """What was measured, in one sentence."""
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
    most = f"; largest cell: {workers_label(summary['workers'].max())} ({kinds})" if kinds else ""
    return f"{', '.join(counts)}{most}."


_NOT_YET = "not measured yet"


def _facts(summary: pd.DataFrame) -> list[tuple[str, str]]:
    """What was measured, and on what."""

    def different(column: str, label: Any = str) -> str:
        values = dict.fromkeys(label(value) for value in summary[column] if not pd.isna(value))
        return ", ".join(value for value in values if value) or _NOT_YET

    processors = dict.fromkeys(
        one for text in summary["processors"] for one in str(text).split(NOTE_BREAK) if one
    )
    return [
        ("Devices", different("device_kind", lambda kind: str(kind).upper())),
        ("Processors", ", ".join(processors) or _NOT_YET),
        ("Nodes x devices", different("geometry")),
        ("Datasets", different("dataset", dataset_label)),
        ("Networks", different("network", network_label)),
        ("Strategies", different("strategy", strategy_label)),
        ("Samples a step", different("batch_size")),
        ("Settings", different("settings", lambda text: str(text).replace(",", ", "))),
        ("Repeats", different("repeats")),
    ]


def _figures(
    folder: Path, experiment: str, site: Site, rows: Sequence[MatrixRow], results: Path
) -> Iterator[Captioned]:
    """What is advised and the speed-up, then the errors of predictions, then all others.

    The others are in the registry's order.
    """
    measured = list(figures_for(rows).values())
    predicted = list(prediction_figures_for(rows).values())
    whole = [figure for figure in predicted if not figure.strategy]
    own = results / figures_dir(site.name, experiment).relative_to(RESULTS)
    beside = results / prediction_figures_dir(site.name, experiment).relative_to(RESULTS)
    advised = (results / advice_file(site.name, experiment).relative_to(RESULTS)).is_file()
    of_advice = [ReportFigure(name, FIGURES[name]) for name in names_of("choice") if advised]
    groups = [
        *((own, [figure]) for figure in (*of_advice, *measured[:1])),
        *((beside, [figure]) for figure in whole[:1]),
        *((own, [figure]) for figure in measured[1:]),
        *((beside, [figure]) for figure in whole[1:]),
    ]
    for entry in (FIGURES[name] for name in names_of("strategy")):
        groups.append((beside, [figure for figure in predicted if figure.entry == entry]))
    for place, figures in groups:
        pictures = [_picture(place, figure, folder) for figure in figures]
        if there := tuple(picture for picture in pictures if picture is not None):
            entry = figures[0].entry
            yield Captioned(entry.heading or there[0].name, _paragraphs(entry), there)


def _lacking(experiment: str, site: Site, rows: Sequence[MatrixRow], results: Path) -> list[str]:
    """Names of the figures that the matrix has and the folder has not."""
    own = results / figures_dir(site.name, experiment).relative_to(RESULTS)
    return [name for name in figures_for(rows) if not (own / f"{name}.png").is_file()]


def _picture(place: Path, figure: ReportFigure, folder: Path) -> Picture | None:
    """The picture of a figure in a folder; None where there is none, or it is no whole PNG."""
    path = place / f"{figure.name}.png"
    png = read_png(path)
    if png is None:
        return None
    heading = strategy_label(figure.strategy) if figure.strategy else ""
    beside = [file for suffix in (".pdf", ".csv") if (file := path.with_suffix(suffix)).is_file()]
    links = tuple((file.suffix[1:].upper(), _address(file, folder)) for file in beside)
    return Picture(figure.name, heading, png, links)


def _address(path: Path, folder: Path) -> str:
    """Of a file from the page's folder."""
    return quote(path.relative_to(folder).as_posix())


def _paragraphs(entry: FigureEntry) -> tuple[Markup, ...]:
    """What a caption says after its first sentence; ``*word*`` is emphasised."""
    rest = entry.caption.removeprefix(entry.heading).removeprefix(".").strip()
    return tuple(
        Markup(re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", str(escape(text))))
        for text in rest.split("\n\n")
        if text
    )


_SUMMARY = (
    Column("Dataset"), Column("Network"), Column("Strategy"), Column("Geometry"),
    Column("Samples/s", right=True), Column("Speed-up (interval)", right=True),
    Column("Memory", right=True), Column("State"),
)  # fmt: skip


def _summary(summary: pd.DataFrame) -> tuple[Sequence[Column], list[tuple[str, ...]]]:
    """One row a configuration; an empty number has its reason in the last column."""
    return _SUMMARY, [
        (
            dataset_label(str(row["dataset"])),
            network_label(str(row["network"])),
            strategy_label(str(row["strategy"]), variant),
            str(row["geometry"]),
            *(numbers_of(row) if row["status"] == Status.OK else ("", "", "")),
            _state(row),
        )
        for row, variant in zip(summary.to_dict("records"), variant_labels(summary), strict=True)
    ]


def _state(row: Mapping[Hashable, Any]) -> str:
    parts = [str(row["status"]).replace("_", " ")]
    parts += [mark for mark in ("noisy", "stale", "disturbed") if is_set(row[mark])]
    parts += [row["departure"]] if row["departure"] else []
    reason = row["reason"] if row["status"] != Status.NOT_RUN else ""
    return ", ".join(parts) + (f": {reason}" if reason else "")


def _reasons(tables: Tables, folder: Path) -> list[tuple[str, str, str, str]]:
    """State, reason, names of the cells, and address of the first one's log, seen from a folder."""
    shown = tables.measurements
    shown = shown[~shown["status"].isin([Status.OK, Status.NOT_RUN])]
    found = []
    for (status, reason), cells in shown.groupby(["status", "reason"], sort=False):
        names = short_names([Cell.from_id(name) for name in cells["cell_id"]])
        listed = ", ".join(names[:_FEW_NAMES])
        if len(names) > _FEW_NAMES:
            listed += f" and {len(names) - _FEW_NAMES} more"
        log = f"../cells/{cells['cell_id'].iloc[0]}/log.txt"
        log = quote(log) if (folder / log).is_file() else ""
        found.append((str(status).replace("_", " "), str(reason), listed, log))
    return found


def _files(folder: Path, tables: Path) -> list[tuple[str, str, str]]:
    """Path, address and meaning of the tables that are there."""
    meanings = read_yaml(Path(__file__).with_suffix(".yaml"))
    there = [(tables / name, text) for name, text in meanings.items() if (tables / name).is_file()]
    return [(str(file.relative_to(folder)), _address(file, folder), text) for file, text in there]
