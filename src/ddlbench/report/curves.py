"""What figures over training share: a line for each strategy and variant, panels for each link."""

from __future__ import annotations

from typing import Any

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split
import pandas as pd
from matplotlib.lines import Line2D

from ddlbench.planning.labels import strategy_label
from ddlbench.report.style import strategy_look
from ddlbench.report.tables import rows_of

# More than any figure has lines of one strategy, as two equal ones could not be told apart.
_STYLES: tuple[Any, ...] = (
    "-", (0, (4, 1.5)), (0, (1.5, 1)), (0, (5, 1, 1, 1)),
    (0, (9, 2)), (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1)), (0, (9, 2, 4, 2)),
)  # fmt: skip


def by_link(shown: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """For each fabric a heading and its rows; one device is beside every fabric.

    A row's ``fabric`` is that of its panel. With a single fabric the heading is empty.
    """
    alone = shown["nodes"] * shown["devices_per_node"] == 1
    fabrics = list(dict.fromkeys(shown.loc[~alone, "fabric"])) or list(shown["fabric"].unique())
    if len(fabrics) == 1:
        return [("", shown)]
    return [
        (f"fabric {one}", shown[alone | (shown["fabric"] == one)].assign(fabric=one))
        for one in fabrics
    ]


class Lines:
    """The lines of all panels of a figure.

    A line is a strategy and what tells its lines apart: the variant, and the geometry where
    parallel cells have several.

    Args:
        shown: rows of all panels, with a column ``variant``.
        marked: lines have their strategy's marker.
    """

    def __init__(self, shown: pd.DataFrame, marked: bool = False) -> None:
        parallel = shown["devices_per_node"] * shown["nodes"] > 1
        self._several = shown.loc[parallel, "geometry"].nunique() > 1
        self._marked = marked
        self._places: dict[tuple[str, str], int] = {}  # among the lines of a strategy
        for row in rows_of(shown):
            key = self._key(row)
            before = sum(strategy == key[0] for strategy, _ in self._places)
            self._places.setdefault(key, before)

    def look(self, row: Any) -> dict[str, Any]:
        """Arguments of matplotlib's ``plot`` for a row's line."""
        return self._look(self._key(row))

    def legend(self) -> list[tuple[Line2D, str]]:
        """Handle and label of each line."""
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
            "linestyle": _STYLES[self._places[key] % len(_STYLES)],
            **({"marker": look.marker, "markersize": 3.2} if self._marked else {}),
        }
