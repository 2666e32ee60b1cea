"""The figure of an experiment: one cell of each strategy and geometry that has recorded spans."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.experiment.status import Status
from ddlbench.report.footer import Context, footer
from ddlbench.report.tables import Tables, rows_of
from ddlbench.report.timeline.box import InvalidTimeline
from ddlbench.report.timeline.captions import TITLE, measured_where, sentences, shown_windows
from ddlbench.report.timeline.cell import CellTimeline, read_cell
from ddlbench.report.timeline.measured import has_spans
from ddlbench.report.timeline.pages import Shown, draw_page
from ddlbench.report.timeline.windows import Window

__all__ = ["draw", "draw_cell"]

MOST_CELLS = 12
NOTHING = "No cell of the experiment has recorded spans."


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Planned above, measured below, cell by cell in the order of the matrix."""
    cells: list[CellTimeline] = []
    told: list[str] = []
    left_out = 0
    for found in _cells(tables, context):
        if isinstance(found, str):
            told.append(found)
        elif len(cells) < MOST_CELLS:
            cells.append(found)
        else:
            left_out += 1
    if left_out:
        told.append(f"{left_out} more strategies and geometries: ddlbench timeline CELL_FOLDER.")
    if cells:
        told.append(
            "Of each strategy and geometry, the first dataset, network and variant is shown; "
            "ddlbench timeline CELL_FOLDER draws any other."
        )
    shown = [window for cell in cells for window in shown_windows(cell)]
    ids = {cell.cell.id.rpartition("/")[0] for cell in cells}
    summary = tables.summary
    chosen = summary[summary["configuration"].isin(ids)] if ids else summary
    # No number of a table is drawn, so none is marked.
    unmarked = chosen.assign(stale=False, noisy=False)
    lines = footer(unmarked, context, [*(sentences(cells) or [NOTHING]), *told])
    return draw_page(TITLE, shown or [_nothing()], lines)


def draw_cell(cell: CellTimeline) -> tuple[Figure, pd.DataFrame]:
    """One cell: planned above, measured below."""
    lines = [*sentences([cell]), *measured_where(cell.result)]
    return draw_page(TITLE, list(shown_windows(cell)), lines)


def _cells(tables: Tables, context: Context) -> Iterator[CellTimeline | str]:
    """The first cell of each strategy and geometry with spans, or why its files cannot be read."""
    seen: set[tuple[str, str]] = set()
    good = tables.measurements[tables.measurements["status"] == Status.OK]
    for row in rows_of(good):
        key = (str(row.strategy), str(row.geometry))
        folder = context.results / cell_dir(row.site, row.cell_id).relative_to(RESULTS)
        if key in seen or not has_spans(folder):
            continue
        seen.add(key)
        try:
            yield read_cell(folder)
        except InvalidTimeline as error:
            yield f"Not shown: {error}."


def _nothing() -> Shown:
    return Shown("", Window("", 0, 0, True, None, None), (), not_planned="no cell to plan")
