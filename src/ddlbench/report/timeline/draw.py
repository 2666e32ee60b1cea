"""One window of a timeline: planned above, measured below, over one time axis.

::

    planned: 2 steps in 31.2 ms; devices compute 73 % of the time
    node 0 · device 0 · stage 0   | 0 | 1 |       | 0 | 1 |u|   :
    node 0 · device 1 · stage 1       | 0 | 1 | 0 | 1 |u|       :    end of these steps
    measured: 2 steps in 40.9 ms; devices compute 55 % of the time
    node 0 · device 0 · stage 0   | 0 | 1 |           | 0 |  | 1 |u|
    node 0 · device 1 · stage 1         | 0 | 1 | 0 |   | 1 |u|
                                  0      10       20       30        Time (ms)

Vertically, axes are in millimetres from their top, so that a row is as high in every window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from ddlbench.experiment.units import TIMES, Unit, unit_for
from ddlbench.report.seconds_axis import ticks_in
from ddlbench.report.style import MIN_PT
from ddlbench.report.timeline.block import Block, row_heights_mm
from ddlbench.report.timeline.box import Row
from ddlbench.report.timeline.windows import Part, Window

__all__ = ["NOT_RECORDED", "Panel", "draw_window", "duration_text", "panels_of", "window_height_mm"]

NOT_RECORDED = "the cell has recorded no spans"
_HEAD_MM = 4.6
_BETWEEN_MM = 1.6


class Panel(NamedTuple):
    """One half of a window: its name, what it shows, or why it shows nothing."""

    name: str
    part: Part | None
    why_not: str


def panels_of(window: Window, not_planned: str, of_cell: bool) -> list[Panel]:
    """The panels of a window from top to bottom.

    Args:
        window: what is drawn.
        not_planned: why there are no planned boxes.
        of_cell: measured boxes are asked for, so a panel says where there are none.
    """
    panels = [Panel("planned", window.planned, not_planned)]
    if of_cell:
        panels.append(Panel("measured", window.measured, NOT_RECORDED))
    return panels


def window_height_mm(panels: Sequence[Panel], rows: int) -> float:
    """How high the axes of a window are."""
    blocks = sum(_panel_height_mm(panel, rows) for panel in panels)
    return blocks + _BETWEEN_MM * (len(panels) - 1)


def draw_window(
    axes: Axes,
    window: Window,
    panels: Sequence[Panel],
    rows: Sequence[Row],
    *,
    width_mm: float,
    in_seconds: bool,
) -> None:
    """Fill axes that are as high as :func:`window_height_mm` says.

    Args:
        axes: to draw into.
        window: what is drawn.
        panels: of :func:`panels_of`.
        rows: the devices.
        width_mm: of the axes.
        in_seconds: times are seconds; else a forward pass takes 1.
    """
    length_s = window.length_s or 1.0
    axes.set_xlim(0, length_s)
    axes.set_ylim(window_height_mm(panels, len(rows)), 0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for panel in panels:
        text = _heading(panel, window, in_seconds)
        heading = axes.text(0, top + _HEAD_MM / 2, text, va="center", fontsize=MIN_PT, gid="panel")
        heading.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        if panel.part is not None:
            block = Block(axes, rows, panel.part, top + _HEAD_MM, width_mm / length_s)
            block.draw(length_s)
            ticks += [(block.centre(index), row.label) for index, row in enumerate(rows)]
        top += _panel_height_mm(panel, len(rows)) + _BETWEEN_MM
    axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="y", length=0)
    if ticks:
        _scale(axes, length_s, in_seconds)
    else:
        axes.set_xticks([])


def duration_text(seconds: float) -> str:
    """``31.2 ms``."""
    return unit_for(seconds, TIMES).text(seconds)


def _panel_height_mm(panel: Panel, rows: int) -> float:
    return _HEAD_MM + (0.0 if panel.part is None else sum(row_heights_mm(rows, panel.part)))


def _heading(panel: Panel, window: Window, in_seconds: bool) -> str:
    if panel.part is None:
        return f"not {panel.name}: {panel.why_not}"
    noun = "step" if window.steps else "mini-batch"
    if window.count > 1:
        noun = "steps" if window.steps else "mini-batches"
    length_s = panel.part.length_s
    took = duration_text(length_s) if in_seconds else f"{length_s:g} forward passes"
    share = panel.part.computing
    return f"{panel.name}: {window.count} {noun} in {took}; devices compute {share:.0%} of the time"


def _scale(axes: Axes, length_s: float, in_seconds: bool) -> None:
    unit = unit_for(length_s, TIMES) if in_seconds else Unit("forward passes", 1.0)
    ticks_in(unit, axes.xaxis, "Time", 8)
