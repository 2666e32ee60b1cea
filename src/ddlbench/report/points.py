"""One measured point of a line or dot figure: pale where it is stale, with its marks above it."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from ddlbench.report.colours import StrategyLook, shade
from ddlbench.report.footer import NOISY, STALE
from ddlbench.report.style import MIN_PT

__all__ = ["PALE", "draw_point"]

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
