"""The page of a figure: title, legend, sections of equal panels, footer - in millimetres.

::

    Title: the question answered
    [legend]
    section title                       one a geometry, or one a dataset
      panel title    panel title        one a strategy, or one a network
      note           note
      |axes          |axes
    footer: base, intervals, site, date, commit

Texts are measured before anything is placed, so nothing overlaps and small figures stay small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label
from ddlbench.report.style import (
    COLUMN_MM,
    GREY,
    LINE_MM,
    MIN_PT,
    PAGE_MM,
    TITLE_PT,
    new_figure,
    text_width_mm,
    wrapped,
)

_EDGE = 1.5
_HEAD = 4.0
_BETWEEN_ROWS = 2.0
_PANEL_PT = 7.5
_APART = 2.0  # between the titles of two panels
_BOLD = 0.85  # bold letters are so much wider than the regular ones that are measured


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the texts above it, and the data that it shows."""

    title: str
    note: str = ""
    data: Any = None


@dataclass(frozen=True)
class Section:
    """Panels under one heading. ``height`` is that of its axes in mm; None: as on the page."""

    title: str
    panels: Sequence[Panel]
    height: float | None = None


@dataclass(frozen=True)
class PanelSize:
    """Size of the axes and of the space for their labels, in millimetres.

    ``left`` is the space before the first panel of a row, ``between`` that before each other one.
    ``bottom`` may depend on the width of the axes.
    """

    min_width: float
    height: float
    left: float
    between: float
    right: float = 2.0
    bottom: float | Callable[[float], float] = 8.0
    max_width: float = math.inf
    max_columns: int = 99


@dataclass
class Page:
    """A laid-out figure: ``axes[section][panel]``, each ``width_mm`` wide."""

    figure: Figure
    axes: list[list[Axes]]
    width_mm: float
    facets: list[tuple[Axes, Any]] = field(default_factory=list)  # every panel's axes and data
    last_in_row: list[Axes] = field(default_factory=list)
    first_in_row: list[Axes] = field(default_factory=list)

    def label_rows(self, text: str, labelpad: float | None = None) -> None:
        for axes in self.first_in_row:
            axes.set_ylabel(text, labelpad=labelpad)


Sample = Artist | tuple[Artist, ...]
"""What a legend shows before a text; parts of a tuple lie on each other."""


def lay_out(
    title: str,
    legend: Sequence[tuple[Sample, str]],
    sections: Sequence[Section],
    *,
    footer: Sequence[str],
    size: PanelSize,
    share_y: bool = False,
) -> Page:
    """Place the texts and empty axes of a figure; ``share_y`` is within a section."""
    size = _with_titles(size, sections)
    page_mm, columns = _columns(max(len(s.panels) for s in sections), size)
    sides = 2 * _EDGE + size.left + size.right + (columns - 1) * size.between
    width = min((page_mm - sides) / columns, size.max_width)
    inner = page_mm - 2 * _EDGE
    title_lines = wrapped(title, inner * _BOLD, TITLE_PT)
    legend_rows = _legend_rows(legend, inner)
    footer_lines = [line for text in footer for line in wrapped(text, inner - 1)]
    notes = [_notes(section, columns, width) for section in sections]
    height = _EDGE + len(title_lines) * 4.2 + len(legend_rows) * 4.2 + 1
    for section, rows in zip(sections, notes, strict=True):
        height += (_HEAD + 0.5) if section.title else 0
        height += sum(_row_height(section, row, size, width) for row in rows)
    height += 1.5 + len(footer_lines) * LINE_MM + _EDGE

    figure = new_figure(page_mm, height)
    page = Page(figure, [], width)
    cursor = _Cursor(figure, page_mm, height)
    for line in title_lines:
        cursor.text(_EDGE, line, 4.2, gid="title", size=TITLE_PT, weight="bold")
    for entries in legend_rows:
        _draw_legend(cursor, entries)
    cursor.y += 1
    for section, rows in zip(sections, notes, strict=True):
        if section.title:
            cursor.text(_EDGE, section.title, _HEAD + 0.5, gid="section", weight="bold", size=7.5)
        page.axes.append(
            _draw_section(cursor, page, section=section, rows=rows, size=size, share_y=share_y)
        )
    cursor.y = height - _EDGE - len(footer_lines) * LINE_MM
    for line in footer_lines:
        cursor.text(_EDGE, line, LINE_MM, gid="footer", color=GREY)
    return page


def _with_titles(size: PanelSize, sections: Sequence[Section]) -> PanelSize:
    """The size at which no panel's title reaches the title beside it."""
    titles = (text_width_mm(panel.title, _PANEL_PT) for s in sections for panel in s.panels)
    least = max(titles, default=0.0) + _APART - size.between
    return replace(size, min_width=max(size.min_width, least))


def _columns(count: int, size: PanelSize) -> tuple[float, int]:
    """Width of the page, and the least number of columns that needs no further row."""
    sides = 2 * _EDGE + size.left + size.right
    if count == 1 and sides + size.min_width <= COLUMN_MM:
        return COLUMN_MM, 1
    fit = int((PAGE_MM - sides + size.between) / (size.min_width + size.between))
    fit = max(1, min(fit, count, size.max_columns))
    columns = math.ceil(count / math.ceil(count / fit))
    return max(PAGE_MM, sides + size.min_width), columns


def _notes(section: Section, columns: int, width: float) -> list[list[list[str]]]:
    lines = [wrapped(panel.note, width) for panel in section.panels]
    return [lines[start : start + columns] for start in range(0, len(lines), columns)]


def _head_height(section: Section, row: list[list[str]]) -> float:
    titled = any(panel.title for panel in section.panels)
    return (_HEAD if titled else 1.0) + max(map(len, row)) * LINE_MM


def _axes_height(section: Section, size: PanelSize) -> float:
    return size.height if section.height is None else section.height


def _row_height(section: Section, row: list[list[str]], size: PanelSize, width: float) -> float:
    bottom = size.bottom(width) if callable(size.bottom) else size.bottom
    return _head_height(section, row) + _axes_height(section, size) + bottom + _BETWEEN_ROWS


class _Cursor:
    """Writes a page from top to bottom; ``y`` is in millimetres from the top."""

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self.figure, self.width, self.height, self.y = figure, width, height, _EDGE

    def text(
        self,
        x: float,
        text: str,
        line: float,
        *,
        gid: str,
        size: float = MIN_PT,
        weight: str = "normal",
        color: str = "black",
    ) -> None:
        self.figure.text(
            x / self.width, 1 - self.y / self.height, text, ha="left", va="top", gid=gid,
            fontsize=size, fontweight=weight, color=color,
        )  # fmt: skip
        self.y += line

    def axes(self, x: float, top: float, width: float, height: float) -> Axes:
        box = (x / self.width, 1 - (top + height) / self.height)
        return self.figure.add_axes((*box, width / self.width, height / self.height))


def _draw_section(
    cursor: _Cursor,
    page: Page,
    *,
    section: Section,
    rows: list[list[list[str]]],
    size: PanelSize,
    share_y: bool,
) -> list[Axes]:
    drawn: list[Axes] = []
    height = _axes_height(section, size)
    for row in rows:
        head = _head_height(section, row)
        for column, note in enumerate(row):
            x = _EDGE + size.left + column * (page.width_mm + size.between)
            panel = section.panels[len(drawn)]
            axes = cursor.axes(x, cursor.y + head, page.width_mm, height)
            if share_y and drawn:
                axes.sharey(drawn[0])
            if share_y and column:
                axes.tick_params(labelleft=False)
            above = height + head - 0.5
            if panel.title:
                _above(axes, panel.title, above / height, "panel", _PANEL_PT)
                above -= _HEAD - 0.5
            for line in note:
                _above(axes, line, above / height, "note", MIN_PT)
                above -= LINE_MM
            if column == 0:
                page.first_in_row.append(axes)
            if column == len(row) - 1:
                page.last_in_row.append(axes)
            drawn.append(axes)
            page.facets.append((axes, panel.data))
        cursor.y += _row_height(section, row, size, page.width_mm)
    return drawn


def _above(axes: Axes, text: str, y: float, gid: str, size: float) -> None:
    colour, slant = ("black", "normal") if gid == "panel" else (GREY, "italic")
    axes.text(
        0, y, text, transform=axes.transAxes, ha="left", va="top", fontsize=size,
        fontstyle=slant, color=colour, gid=gid,
    )  # fmt: skip


def _legend_rows(
    legend: Sequence[tuple[Sample, str]], width: float
) -> list[list[tuple[Sample, str]]]:
    rows: list[list[tuple[Sample, str]]] = []
    used = width
    for entry in legend:
        need = 9.0 + text_width_mm(entry[1])
        if used + need > width:
            rows.append([])
            used = 0.0
        rows[-1].append(entry)
        used += need
    return rows


def _draw_legend(cursor: _Cursor, entries: list[tuple[Sample, str]]) -> None:
    legend = cursor.figure.legend(
        *zip(*entries, strict=True), loc="upper left", ncols=len(entries), borderpad=0,
        bbox_to_anchor=(_EDGE / cursor.width, 1 - cursor.y / cursor.height), borderaxespad=0,
        columnspacing=1.2, handlelength=1.8, handletextpad=0.5, handleheight=0.9,
    )  # fmt: skip
    legend.set_gid("legend")
    cursor.y += 4.2


def nothing_to_show(
    title: str, reason: str, below: Sequence[str], columns: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """A figure of a title, the reason why it is empty, and a footer; and its table's columns."""
    size = PanelSize(min_width=60.0, height=4.0, left=4.0, between=0.0, bottom=1.0)
    section = Section(reason, [Panel("")])
    page = lay_out(title, [], [section], footer=list(below), size=size)
    page.axes[0][0].set_axis_off()
    return page.figure, pd.DataFrame(columns=list(columns))


def unique(column: pd.Series) -> list[Any]:
    """The values of a column, each once, in the order of their first rows."""
    return list(dict.fromkeys(column))


def network_panels(rows: pd.DataFrame, networks: Sequence[str]) -> list[Panel]:
    """One panel for each of ``networks``; its data are the rows of that network."""
    return [Panel(network_label(n), data=rows[rows["network"] == n]) for n in networks]


def dataset_sections(rows: pd.DataFrame) -> list[Section]:
    """One section for each dataset, with a panel for each network of any dataset."""
    networks = unique(rows["network"])
    return [
        Section(dataset_label(dataset), network_panels(rows[rows["dataset"] == dataset], networks))
        for dataset in in_dataset_order(rows["dataset"])
    ]
