"""A y axis of seconds, in the unit that its highest bar asks for."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

__all__ = ["seconds_axis"]


def seconds_axis(axes: Axes, top_s: float, label: str, headroom: float) -> None:
    """From zero to ``headroom`` times ``top_s``, labelled in s, ms or µs.

    An axis without a bar (``top_s`` not above zero) has no ticks.
    """
    if not (math.isfinite(top_s) and top_s > 0):
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    unit, name = next((u for u in units if top_s >= u[0]), units[-1])
    axes.set_ylim(0, headroom * top_s)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:,g}"))
    axes.set_ylabel(f"{label} ({name})", labelpad=1)
