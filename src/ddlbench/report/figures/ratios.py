"""Ratios of two trees of results, a row per configuration, the worst first.

::

                     faster | same |  slower
    ddp 1x2                 |      |   |--o--|    1.10
    gpipe 1x2               |  |-o-|--|           1.04
    sequential 1x1          |-o-|  |              0.99
    horovod 1x2             failed: out of memory
"""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from ddlbench.common.screen import shortened
from ddlbench.report.bars import label_rows, write_in_row
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.regression_texts import percent, remarks, verdicts
from ddlbench.report.regressions import Compared, Comparison, Verdict
from ddlbench.report.style import GREY, text_width_mm

_ROW_MM = 4.5
_MOST_ROWS = 50
_WIDEST = 3.0  # ratio at which the axis ends at the latest, on both sides
_LONGEST_NAME = 60
_LONGEST_REASON = 70
_BAND = "#EEEEEE"
_COLOURS = {
    Verdict.SLOWER: "#B2182B",
    Verdict.FAILED: "#B2182B",
    Verdict.MISSING: "#B2182B",
    Verdict.CANNOT_TELL: GREY,
    Verdict.SAME: "#000000",
    Verdict.FASTER: "#2166AC",
}


def draw(comparison: Comparison) -> tuple[Figure, pd.DataFrame]:
    """Ratios B/A with their intervals over the margin, and the reason where there is none."""
    shown = comparison.rows[:_MOST_ROWS]
    labels = [shortened(row.name, _LONGEST_NAME) for row in shown]
    left = max(map(text_width_mm, labels), default=0.0) + 5
    right = max(text_width_mm(_beside(row)) for row in shown) + 4
    height = _ROW_MM * len(shown) + 2
    page = lay_out(
        f"B against A: {verdicts(comparison)}",
        [
            (Line2D([], [], linestyle="-", marker="o", color="black"), "ratio, 95 % interval"),
            (Patch(color=_BAND), f"margin of {percent(comparison.margin)}"),
        ],
        [Section("", [Panel(comparison.common)], height=height)],
        footer=_footer(comparison),
        size=PanelSize(70, 0, left=left, between=left, right=right, max_width=100),
    )
    ((axes,),) = page.axes
    label_rows(axes, labels)
    axes.set_xscale("log")
    axes.set_xlim(*_ends(comparison))
    axes.axvspan(1 / (1 + comparison.margin), 1 + comparison.margin, color=_BAND, zorder=0)
    axes.axvline(1, color=GREY, linewidth=0.6)
    _ticks(axes)
    axes.set_xlabel("Time of a sample, B / A" if comparison.per_sample else "Step, B / A")
    for place, row in enumerate(shown):
        _row(axes, place, row, 1 + 2 / page.width_mm)
    rows = [
        {
            "configuration": row.first.cell.id.removesuffix("/rep0"),
            **{name: getattr(row.ratio, name, None) for name in ("ratio", "low", "high")},
            "verdict": str(row.verdict),
            "reason": row.reason,
        }
        for row in shown
    ]
    return page.figure, pd.DataFrame(rows)


def _beside(row: Compared) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio.ratio:.3f} "
    return f"{ratio}{row.verdict}"


def _ends(comparison: Comparison) -> tuple[float, float]:
    """Ends of the axis: all intervals, and as much again as the margin on both sides."""
    ends = [end for row in comparison.rows if row.ratio for end in (row.ratio.low, row.ratio.high)]
    ends = [min(max(end, 1 / _WIDEST), _WIDEST) for end in ends]
    least = 2 * math.log1p(comparison.margin)
    room = max([least, *(abs(math.log(end)) for end in ends if end > 0)]) * 1.05
    return math.exp(-room), math.exp(room)


def _ticks(axes: Axes) -> None:
    """At 1, and in equal steps on both sides."""
    low, high = axes.get_xlim()
    step = next((step for step in _STEPS if (high - 1) / step < _MOST_TICKS), _STEPS[-1])
    count = int((high - 1) / step)
    ticks = [1 + step * place for place in range(-count, count + 1)]
    axes.set_xticks([tick for tick in ticks if low <= tick])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_MOST_TICKS = 5


def _row(axes: Axes, place: int, row: Compared, right: float) -> None:
    colour = _COLOURS.get(row.verdict, GREY)
    write_in_row(axes, place, right, _beside(row), color=colour)
    if row.ratio is None:
        text = shortened(row.reason, _LONGEST_REASON)
        write_in_row(axes, place, 0.02, text, color=colour)
        return
    low, high = axes.get_xlim()
    ends = [min(max(end, low), high) for end in (row.ratio.low, row.ratio.high)]
    axes.plot(ends, [place] * 2, "-", color=colour, linewidth=1.2)
    marker = "<" if row.ratio.ratio < low else ">" if row.ratio.ratio > high else "o"
    end = min(max(row.ratio.ratio, low), high)
    axes.plot([end], [place], marker, color=colour, markersize=3, clip_on=False)


def _footer(comparison: Comparison) -> list[str]:
    more = len(comparison.rows) - _MOST_ROWS
    hidden = [f"{more} configurations more are not drawn."] if more > 0 else []
    low, high = _ends(comparison)
    ratios = [row.ratio.ratio for row in comparison.rows[:_MOST_ROWS] if row.ratio]
    if any(not low <= ratio <= high for ratio in ratios):
        hidden.append("Triangles at the edges: the ratio, written beside, lies beyond.")
    names = f"A: {comparison.first.name}. B: {comparison.second.name}."
    # Reasons stand in their rows.
    return [names, *hidden, *remarks(comparison, with_reasons=False)]
