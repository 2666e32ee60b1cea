"""One point of a line or dot figure: pale where it is stale, marks above it, or words instead."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from ddlbench.report.colours import StrategyLook, shade
from ddlbench.report.footer import NOISY, STALE
from ddlbench.report.style import GREY, MIN_PT

__all__ = ["PALE", "draw_point", "write_instead"]

PALE = 0.75


def draw_point(
    axes: Axes, at: tuple[float, float], look: StrategyLook, row: Any, size: float | None = None
) -> None:
    """Draw ``row``, which has the summary's ``stale`` and ``noisy``, at (x, y)."""
    x, y = at
    axes.plot(
        [x], [y], linestyle="none", marker=look.marker, markersize=size, color=look.colour,
        markerfacecolor=shade(look.colour, PALE if row.stale else 0.0), zorder=3, gid="point",
    )  # fmt: skip
    text = (STALE if row.stale else "") + (NOISY if row.noisy else "")
    if text:
        axes.annotate(
            text, (x, y), xytext=(2.5, 1.5), textcoords="offset points", ha="left", va="bottom",
            fontsize=MIN_PT, gid="point-mark",
        )  # fmt: skip


def write_instead(axes: Axes, x: float, words: str, gid: str = "mark") -> None:
    """Words in the place of a point that is not there, upright above the x axis."""
    axes.text(
        x, 0.03, words, transform=axes.get_xaxis_transform(), rotation=90,
        ha="center", va="bottom", fontsize=MIN_PT, color=GREY, gid=gid,
    )  # fmt: skip
