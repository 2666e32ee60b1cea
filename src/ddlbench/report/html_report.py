"""The HTML report: one file that shows the tables and figures of an experiment, offline too.

::

    tables/*.csv    figures/*.png, *.pdf, *.csv  ->  report.html     pictures in it, numbers linked
                    page_sections.py                                 which, and in which order

It shows what these files hold and computes nothing. Equal files give equal bytes. Other pages
of the same look are made here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ddlbench.common.document import write_text
from ddlbench.experiment.paths import RESULTS, html_report_file, tables_dir
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.footer import commits_of, days_of
from ddlbench.report.page_figures import Captioned, PageFigures
from ddlbench.report.page_plot import plot_data, plot_script
from ddlbench.report.page_sections import SECTIONS, TEXTS, PageSection
from ddlbench.report.page_tables import PageInputs, PageTable
from ddlbench.report.slow_ranks import facts, slow_of
from ddlbench.report.style import workers_label
from ddlbench.report.tables import read_tables


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
    slow = facts(slow_of(rows, site, results))
    inputs = PageInputs(page.parent, tables, read, slow)
    count = len(read.measurements)
    text = html_page(
        "html_report.html",
        title=f"{experiment} on {site.name}, {count} cell{'' if count == 1 else 's'}",
        days=days_of(read.summary),
        site=site,
        commits=commits_of(read.summary),
        measured=_measured(read.summary),
        unfinished=_unfinished(read.measurements),
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
