"""Draws timelines: windows on a page, rows in a window, boxes in a row; and makes their table.

A window has the planned panel above the measured one, over one time axis::

    planned: 2 steps in 31.2 ms; devices compute 73 % of the time
    node 0 · device 0 · stage 0   | 0 | 1 |       | 0 | 1 |u|   :
    node 0 · device 1 · stage 1       | 0 | 1 | 0 | 1 |u|       :    end of these steps
    measured: 2 steps in 40.9 ms; devices compute 55 % of the time
    node 0 · device 0 · stage 0   | 0 | 1 |           | 0 |  | 1 |u|
    node 0 · device 1 · stage 1         | 0 | 1 | 0 |   | 1 |u|
                                  0      10       20       30        Time (ms)

Below the work of its device, a row has lanes for what runs at the same time::

    row      | forward | backward       | update |
    lanes               |-- bucket --|
                              |-- bucket --|

The y axis is in millimetres from the top, so rows have the same height in every window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from ddlbench.common.quantities import TIMES, Unit, unit_for
from ddlbench.common.statistics import grouped
from ddlbench.report.bars import ground as ground_of_text
from ddlbench.report.bars import patch
from ddlbench.report.labels import KINDS, DatasetLook, KindLook, kind_look
from ddlbench.report.layout import Panel as PagePanel
from ddlbench.report.layout import PanelSize, Section, lay_out
from ddlbench.report.style import GREY, shade, text_width_mm, ticks_in
from ddlbench.report.timeline.box import PASSES, WAIT, Box, Part, Row, Window, beside_lanes

Corners = tuple[tuple[float, float], ...]

_ROW_MM = 4.8
_LOW_ROW_MM = 3.5
_LANE_MM = 1.5
_MANY_ROWS = 16
_FILL = 0.84
_WAIT_FILL = 0.16
_EDGED_FROM_MM = 0.6  # a narrower box would be all edge
_HATCHED_WHITE = 0.6
_PALEST = 0.55
_AROUND_MM = 0.9  # beside a number in its box


def row_heights_mm(rows: int, part: Part) -> list[float]:
    """Height of each row with its lanes. Many rows are lower, but high enough for numbers."""
    lanes = [0] * rows
    for box, lane in beside_lanes(part.boxes).items():
        lanes[box.row] = max(lanes[box.row], lane + 1)
    return [_device_mm(rows) + count * _LANE_MM for count in lanes]


def _device_mm(rows: int) -> float:
    return _ROW_MM if rows <= _MANY_ROWS else _LOW_ROW_MM


class Block:
    """Draws the rows of a part below ``top_mm``, in axes whose y is in mm from the top."""

    def __init__(
        self, axes: Axes, rows: Sequence[Row], part: Part, top_mm: float, mm_per_s: float
    ) -> None:
        self._axes, self._rows, self._part = axes, rows, part
        self._mm_per_s, self._device_mm = mm_per_s, _device_mm(len(rows))
        self._tops_mm = [*accumulate(row_heights_mm(len(rows), part), initial=top_mm)]
        self._lanes = beside_lanes(part.boxes)
        self._numbered = _numbered(part.boxes, mm_per_s)

    def centre(self, row: int) -> float:
        """The middle of a row, without its lanes."""
        return self._tops_mm[row] + self._device_mm / 2

    def draw(self, length_s: float) -> None:
        """Draw all boxes, and a dotted line at the end of the part if the axis goes on."""
        part = self._part
        for y in self._tops_mm:
            self._axes.plot([0, length_s], [y, y], color="#dddddd", linewidth=0.4, zorder=1)
        self._draw_boxes(length_s)
        if part.length_s < 0.995 * length_s:
            self._axes.plot(
                [part.length_s] * 2,
                [self._tops_mm[0], self._tops_mm[-1]],
                color=GREY,
                linewidth=0.8,
                linestyle=(0, (1, 1)),
                zorder=4,
                gid="end",
            )

    def _draw_boxes(self, length_s: float) -> None:
        """Draw the boxes of a kind as one collection: thousands of patches take minutes."""
        of_kind: dict[str, list[tuple[Corners, str, float]]] = {}
        for box in self._part.boxes:
            left = max(0.0, box.start_s - self._part.start_s)
            width = min(length_s, box.end_s - self._part.start_s) - left
            if width <= 0:
                continue
            look = kind_look(box.kind)
            y, height = self._place(box)
            top, below, right = y - height / 2, y + height / 2, left + width
            edged = width * self._mm_per_s >= _EDGED_FROM_MM and box.kind != WAIT
            ground = self._ground(box, look)
            corners = ((left, top), (right, top), (right, below), (left, below))
            of_kind.setdefault(box.kind, []).append((corners, ground, 0.5 if edged else 0.0))
            text = str(box.number)
            fits = width * self._mm_per_s > text_width_mm(text) + _AROUND_MM
            if box.kind in self._numbered and fits:
                self._write(text, (left + width / 2, self.centre(box.row)), ground, look)
        for kind, drawn in of_kind.items():
            look = kind_look(kind)
            corners_of_all, grounds, edges = zip(*drawn, strict=True)
            collection = PolyCollection(
                corners_of_all,
                facecolors=grounds,
                edgecolors=look.colour if look.hatch else "white",
                hatch=look.hatch or None,
                linewidths=edges,
                gid=kind,
                zorder=2,
            )
            self._axes.add_collection(collection, autolim=False)

    def _place(self, box: Box) -> tuple[float, float]:
        if box in self._lanes:
            below = self._device_mm + (self._lanes[box] + 0.5) * _LANE_MM
            return self._tops_mm[box.row] + below, _LANE_MM * _FILL
        fill = _WAIT_FILL if box.kind == WAIT else _FILL
        return self.centre(box.row), self._device_mm * fill

    def _ground(self, box: Box, look: KindLook) -> str:
        """A device's later stages are paler; what is hatched is pale."""
        white = _HATCHED_WHITE if look.hatch else 0.0
        stages = self._rows[box.row].stages
        if box.kind in PASSES and len(stages) > 1 and box.stage in stages:
            white = max(white, _PALEST * stages.index(box.stage) / (len(stages) - 1))
        return shade(look.colour, white)

    def _write(self, text: str, where: tuple[float, float], ground: str, look: KindLook) -> None:
        red, green, blue = to_rgb(ground)
        luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # ITU-R BT.709
        drawn = self._axes.text(
            *where,
            text,
            ha="center",
            va="center_baseline",
            color="black" if luminance > 0.45 else "white",
            gid="number",
            zorder=3,
        )
        if look.hatch:
            drawn.set_bbox(ground_of_text(0.3))


def _numbered(boxes: Sequence[Box], mm_per_s: float) -> set[str]:
    """Kinds of passes most of whose boxes have room for their number: a lone one says nothing."""

    def has_room(box: Box) -> bool:
        room_mm = (box.end_s - box.start_s) * mm_per_s
        return room_mm > text_width_mm(str(box.number)) + _AROUND_MM

    rooms = grouped((box.kind, has_room(box)) for box in boxes if box.kind in PASSES)
    return {kind for kind, each in rooms.items() if 2 * sum(each) > len(each)}


NOT_RECORDED = "the cell has recorded no spans"
_HEAD_MM = 4.6
_BETWEEN_MM = 1.6


class Panel(NamedTuple):
    """The planned or the measured half of a window; without a part, the reason."""

    name: str
    part: Part | None
    reason: str


@dataclass(frozen=True)
class Shown:
    """One window of a page.

    Args:
        cell_id: empty for a schedule alone, which has no measured panel.
        not_planned: the reason why there are no planned boxes.
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
        panels = [Panel("planned", self.window.planned, self.not_planned)]
        if self.cell_id:
            panels.append(Panel("measured", self.window.measured, NOT_RECORDED))
        return panels

    @property
    def height_mm(self) -> float:
        blocks = sum(_panel_height_mm(panel, len(self.rows)) for panel in self.panels)
        return blocks + _BETWEEN_MM * (len(self.panels) - 1)


def _draw_window(axes: Axes, shown: Shown, width_mm: float) -> None:
    length_s = shown.window.length_s or 1.0
    axes.set_xlim(0, length_s)
    axes.set_ylim(shown.height_mm, 0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for panel in shown.panels:
        text = _heading(panel, shown.window, shown.in_seconds)
        heading = axes.text(0, top + _HEAD_MM / 2, text, va="center", gid="panel")
        heading.set_bbox(ground_of_text(0.5))
        if panel.part is not None:
            block = Block(axes, shown.rows, panel.part, top + _HEAD_MM, width_mm / length_s)
            block.draw(length_s)
            ticks += [(block.centre(index), row.label) for index, row in enumerate(shown.rows)]
        top += _panel_height_mm(panel, len(shown.rows)) + _BETWEEN_MM
    axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="y", length=0)
    if ticks:
        unit = unit_for(length_s, TIMES) if shown.in_seconds else Unit("forward passes", 1.0)
        ticks_in(unit, axes.xaxis, "Time", 8)
    else:
        axes.set_xticks([])


def duration_text(seconds: float) -> str:
    """``31.2 ms``."""
    return unit_for(seconds, TIMES).text(seconds)


def _panel_height_mm(panel: Panel, rows: int) -> float:
    return _HEAD_MM + (0.0 if panel.part is None else sum(row_heights_mm(rows, panel.part)))


def _heading(panel: Panel, window: Window, in_seconds: bool) -> str:
    if panel.part is None:
        return f"not {panel.name}: {panel.reason}"
    noun = "step" if window.steps else "mini-batch"
    if window.count > 1:
        noun = "steps" if window.steps else "mini-batches"
    length_s = panel.part.length_s
    took = duration_text(length_s) if in_seconds else f"{length_s:g} forward passes"
    share = panel.part.computing
    return f"{panel.name}: {window.count} {noun} in {took}; devices compute {share:.0%} of the time"


COLUMNS = [
    "cell_id", "window", "panel", "row", "place", "stage", "kind", "mini_batch", "micro_batch",
    "start_s", "end_s",
]  # fmt: skip


def draw_page(
    title: str, shown: Sequence[Shown], footer: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """Draw windows below each other, and make the table of their boxes.

    Seconds in the table count from the left end of a window's time axis.
    """
    sections = [Section(part.heading, [PagePanel("", data=part)], part.height_mm) for part in shown]
    labels = [row.label for part in shown for row in part.rows]
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
            bottom=7.5,
            max_columns=1,
        ),
    )
    for axes, part in page.facets:
        _draw_window(axes, part, page.width_mm)
    records = [record for part in shown for record in _records(part)]
    return page.figure, pd.DataFrame(records, columns=COLUMNS).astype({"micro_batch": "Int64"})


def _legend(shown: Sequence[Shown]) -> list[tuple[Artist, str]]:
    """The kinds of work on the page, in the order of :data:`KINDS`."""
    seen = {
        box.kind
        for part in shown
        for panel in part.panels
        if panel.part
        for box in panel.part.boxes
    }
    kinds = [*(kind for kind in KINDS if kind in seen), *sorted(seen - set(KINDS))]
    looks = [kind_look(kind) for kind in kinds]
    return [
        (patch(look.colour, DatasetLook(0.6 if look.hatch else 0.0, look.hatch)), look.label)
        for look in looks
    ]


def _records(part: Shown) -> list[dict[str, object]]:
    return [
        {
            "cell_id": part.cell_id,
            "window": part.window.title,
            "panel": panel.name,
            "row": box.row,
            "place": part.rows[box.row].label,
            "stage": box.stage,
            "kind": box.kind,
            "mini_batch": box.mini_batch,
            "micro_batch": box.micro_batch,
            "start_s": box.start_s - panel.part.start_s,
            "end_s": box.end_s - panel.part.start_s,
        }
        for panel in part.panels
        if panel.part is not None
        for box in panel.part.boxes
    ]
