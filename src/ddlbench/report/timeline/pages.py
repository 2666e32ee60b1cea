"""Whole figures of timelines, and the table of what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from ddlbench.report.bars import patch
from ddlbench.report.colours import KINDS, DatasetLook, kind_look
from ddlbench.report.layout import Panel as PagePanel
from ddlbench.report.layout import PanelSize, Section, lay_out
from ddlbench.report.style import text_width_mm
from ddlbench.report.timeline.box import Row
from ddlbench.report.timeline.draw import Panel, draw_window, panels_of, window_height_mm
from ddlbench.report.timeline.windows import Window

__all__ = ["COLUMNS", "Shown", "draw_page"]

COLUMNS = [
    "cell_id", "window", "panel", "row", "place", "stage", "kind", "mini_batch", "micro_batch",
    "start_s", "end_s",
]  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """One window of a page.

    Args:
        heading: what is written above it.
        window: its boxes.
        rows: the devices.
        cell_id: of the cell; empty for a schedule alone, which has no measured panel.
        not_planned: why there are no planned boxes.
        in_seconds: times are seconds; else a forward pass takes 1.
    """

    heading: str
    window: Window
    rows: Sequence[Row]
    cell_id: str = ""
    not_planned: str = ""
    in_seconds: bool = True

    @property
    def panels(self) -> list[Panel]:
        """Planned, and measured where there is a cell."""
        return panels_of(self.window, self.not_planned, of_cell=bool(self.cell_id))


def draw_page(
    title: str, shown: Sequence[Shown], footer: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """Windows under each other, and a table with all their boxes.

    In the table, seconds are from the left end of a window's time axis.
    """
    sections = [
        Section(one.heading, [PagePanel("")], window_height_mm(one.panels, len(one.rows)))
        for one in shown
    ]
    labels = [row.label for one in shown for row in one.rows]
    page = lay_out(
        title,
        _legend(shown),
        sections,
        footer=footer,
        size=PanelSize(
            min_width=100.0,
            height=10.0,
            left=max(map(text_width_mm, labels), default=0.0) + 2.5,
            between=0.0,
            right=4.0,
            bottom=lambda _: 7.5,
            max_columns=1,
        ),
        share_y=False,
    )
    for one, (axes,) in zip(shown, page.axes, strict=True):
        draw_window(
            axes,
            one.window,
            one.panels,
            one.rows,
            width_mm=page.width_mm,
            in_seconds=one.in_seconds,
        )
    records = [record for one in shown for record in _records(one)]
    return page.figure, pd.DataFrame(records, columns=COLUMNS).astype({"micro_batch": "Int64"})


def _legend(shown: Sequence[Shown]) -> list[tuple[Artist, str]]:
    """The kinds that are seen, in one order everywhere."""
    seen = {
        box.kind for one in shown for panel in one.panels if panel.part for box in panel.part.boxes
    }
    kinds = [*(kind for kind in KINDS if kind in seen), *sorted(seen - set(KINDS))]
    looks = [kind_look(kind) for kind in kinds]
    return [
        (patch(look.colour, DatasetLook(0.6 if look.hatch else 0.0, look.hatch)), look.label)
        for look in looks
    ]


def _records(one: Shown) -> list[dict[str, object]]:
    return [
        {
            "cell_id": one.cell_id,
            "window": one.window.title,
            "panel": panel.name,
            "row": box.row,
            "place": one.rows[box.row].label,
            "stage": box.stage,
            "kind": box.kind,
            "mini_batch": box.mini_batch,
            "micro_batch": box.micro_batch,
            "start_s": box.start_s - panel.part.start_s,
            "end_s": box.end_s - panel.part.start_s,
        }
        for panel in one.panels
        if panel.part is not None
        for box in panel.part.boxes
    ]
