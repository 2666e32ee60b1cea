"""Axes in the unit that their longest value asks for."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ddlbench.experiment.units import TIMES, Unit, unit_for

__all__ = ["seconds_axis", "ticks_in"]


def seconds_axis(axes: Axes, top_s: float, label: str, headroom: float) -> None:
    """From zero to ``headroom`` times ``top_s``, labelled in the unit that suits.

    An axis without a bar (``top_s`` not above zero) has no ticks.
    """
    if not (math.isfinite(top_s) and top_s > 0):
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    unit = unit_for(top_s, TIMES)
    axes.set_ylim(0, headroom * top_s)
    ticks_in(unit, axes.yaxis, label, 5)


def ticks_in(unit: Unit, axis: Axis, label: str, most: int) -> None:
    """Write an axis in a unit, with at most so many intervals between round numbers.

    Args:
        unit: what the ticks are told in.
        axis: in the base of ``unit``.
        label: what it shows; the unit is put behind it.
        most: intervals.
    """
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{unit.of(value):,g}"))
    axis.set_label_text(f"{label} ({unit.name})")
    axis.labelpad = 1
