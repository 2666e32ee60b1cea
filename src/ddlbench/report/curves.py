"""The engine of figures of lines: axes, samples, whiskers and dashes, and lines over training.

::

      |   I--__          a line per strategy and variant, whiskers at its points
      |  I     I--       logarithmic axes have ticks at what was measured
      |__|_____|___|_
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, Formatter, FuncFormatter, LogLocator, NullLocator

from ddlbench.planning.labels import strategy_label
from ddlbench.report.footer import STALE
from ddlbench.report.labels import strategy_look
from ddlbench.report.style import plain
from ddlbench.report.tables import rows_of

DASHES: tuple[Any, ...] = (
    "-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)),
    (0, (9, 2)), (0, (5, 1.5, 1, 1.5, 1, 1.5)), (0, (2, 4)), (0, (9, 2, 3, 2)),
)  # fmt: skip
"""Of the lines of one strategy, or of batches; more than any figure has of one."""


def places(names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The place of each strategy and line among the lines of that strategy."""
    place_of: dict[tuple[str, str], int] = {}
    for name in names:
        place_of.setdefault(name, sum(strategy == name[0] for strategy, _ in place_of))
    return place_of


def sample(strategy: str, **style: Any) -> Line2D:
    """A legend's sample of a strategy's line."""
    look = strategy_look(strategy)
    return Line2D([], [], **{"color": look.colour, "marker": look.marker, **style})


def whisker(
    axes: Axes, x: float, ends: Sequence[float], colour: str, width: float = 0.7, **style: Any
) -> bool:
    """Draw an interval at an x, where both ends are known; returns whether they are."""
    known = all(map(math.isfinite, ends))
    if known:
        axes.plot([x, x], ends, color=colour, linewidth=width, **style)
    return known


def ticks_at(
    axis: Axis, where: Sequence[float], form: Callable[[float, Any], str] | Formatter = plain
) -> None:
    """Ticks of an axis at these values only."""
    axis.set_major_locator(FixedLocator(where))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(form if isinstance(form, Formatter) else FuncFormatter(form))


def log_limits(values: pd.Series, below: float, above: float) -> tuple[float, float]:
    """Ends of a logarithmic axis: so many times below and above what is above zero."""
    known = values[values > 0]
    return (float(known.min()) / below, float(known.max()) * above) if len(known) else (0.1, 10.0)


def log_y(axes: Axes, limits: tuple[float, float], most: int) -> None:
    """Make the y axis logarithmic, with at most so many ticks at plain numbers."""
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    narrow = math.log10(limits[1] / limits[0]) < 1.5
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if narrow else (1,), numticks=most))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(plain)


def by_link(shown: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """For each fabric a heading and its rows; one device is beside every fabric.

    A row's ``fabric`` is that of its panel. With a single fabric the heading is empty.
    """
    alone = shown["nodes"] * shown["devices_per_node"] == 1
    fabrics = list(dict.fromkeys(shown.loc[~alone, "fabric"])) or list(shown["fabric"].unique())
    if len(fabrics) == 1:
        return [("", shown)]
    return [
        (f"fabric {link}", shown[alone | (shown["fabric"] == link)].assign(fabric=link))
        for link in fabrics
    ]


def mark_end(axes: Axes, end: tuple[float, float], right_pt: float) -> None:
    """Say at its end that a line is stale."""
    axes.annotate(
        STALE, end, xytext=(right_pt, 0), textcoords="offset points", va="center",
        gid="point-mark",
    )  # fmt: skip


class Lines:
    """The lines of all panels of a figure, each with its strategy's colour and marker.

    A line is a strategy and what tells its lines apart: the variant, and the geometry where
    parallel cells have several.

    Args:
        shown: rows of all panels, with a column ``variant``.
    """

    def __init__(self, shown: pd.DataFrame) -> None:
        parallel = shown["devices_per_node"] * shown["nodes"] > 1
        self._several = shown.loc[parallel, "geometry"].nunique() > 1
        self._places = places(map(self._key, rows_of(shown)))

    def look(self, row: Any) -> dict[str, Any]:
        """Arguments of matplotlib's ``plot`` for a row's line."""
        return self._look(self._key(row))

    def legend(self) -> list[tuple[Line2D, str]]:
        return [(Line2D([], [], **self._look(key)), strategy_label(*key)) for key in self._places]

    def _key(self, row: Any) -> tuple[str, str]:
        parallel = row.nodes * row.devices_per_node > 1
        geometry = row.geometry if self._several and parallel else ""
        return str(row.strategy), ", ".join(filter(None, (geometry, row.variant)))

    def _look(self, key: tuple[str, str]) -> dict[str, Any]:
        look = strategy_look(key[0])
        return {
            "color": look.colour,
            "linewidth": 0.9,
            "linestyle": DASHES[self._places[key] % len(DASHES)],
            "marker": look.marker,
            "markersize": 3.2,
        }
