"""What figures over training share: a line for each strategy and variant, panels for each link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from ddlbench.report.labels import strategy_label
from ddlbench.report.style import strategy_look
from ddlbench.report.tables import rows_of

_STYLES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.5, 1)), (0, (5, 1, 1, 1)))

Line = tuple[str, str]
"""A strategy, and what tells its lines apart."""


def by_link(shown: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Rows of each fabric, and what a heading says of it; one device is beside every fabric.

    With one fabric alone the heading says nothing.
    """
    alone = shown["nodes"] * shown["devices_per_node"] == 1
    fabrics = list(dict.fromkeys(shown.loc[~alone, "fabric"])) or list(shown["fabric"].unique())
    if len(fabrics) == 1:
        return [("", shown)]
    return [(f"fabric {one}", shown[alone | (shown["fabric"] == one)]) for one in fabrics]


def lines_of(shown: pd.DataFrame) -> list[Line]:
    """The lines of all panels, each once; a geometry's name where parallel cells have several."""
    return list(dict.fromkeys(line_of(row, shown) for row in rows_of(shown)))


def line_of(row: Any, shown: pd.DataFrame) -> Line:
    """The line of a row of ``shown``, which has a column ``variant``."""
    parallel = shown["devices_per_node"] * shown["nodes"] > 1
    several = shown.loc[parallel, "geometry"].nunique() > 1
    geometry = row.geometry if several and row.nodes * row.devices_per_node > 1 else ""
    return str(row.strategy), ", ".join(filter(None, (geometry, row.variant)))


def look_of(line: Line, lines: Sequence[Line], marked: bool = False) -> dict[str, Any]:
    """Colour of the strategy, its marker if ``marked``; the line's style tells its variants apart.

    Arguments of matplotlib's ``plot``.
    """
    look = strategy_look(line[0])
    place = [other for other in lines if other[0] == line[0]].index(line)
    return {
        "color": look.colour,
        "linewidth": 0.9,
        "linestyle": _STYLES[place % len(_STYLES)],
        **({"marker": look.marker, "markersize": 3.2} if marked else {}),
    }


def legend_of(lines: Sequence[Line], marked: bool = False) -> list[tuple[Line2D, str]]:
    """Handles and labels of all lines."""
    return [
        (Line2D([], [], **look_of(line, lines, marked)), strategy_label(*line)) for line in lines
    ]
