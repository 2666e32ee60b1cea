"""Figure 1 of ParaDL: projected and measured iterations, computation and communication stacked.

::

        87   94                accuracy of a projection, in percent
       |/|  |/|  |/|           communication
       |#|  |#|  | |           computation
    published corrected measured        one group a number of devices

A row a network, a column a strategy; every panel has its own scale. Accuracy is ParaDL's, 1 -
|projected - measured| / measured, and not cut off at zero. One drawing serves our own runs
(``oracle_runs.py``) and the published measurements (``oracle_published.py``).
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlbench.report.colours import shade, strategy_look
from ddlbench.report.labels import strategy_label
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.seconds_axis import seconds_axis
from ddlbench.report.style import GREY, MIN_PT
from ddlbench.report.tables import rows_of

__all__ = ["COLUMNS", "MEASURED", "SOURCES", "draw_bars"]

MEASURED = "measured"
SOURCES = ("as-published", "corrected", MEASURED)
COLUMNS = [
    "row", "strategy", "place", "order", "source", "compute_s", "communication_s", "step_s",
    "accuracy", "departs", "mark",
]  # fmt: skip
_LEGEND = {
    "as-published": "projected, as published",
    "corrected": "projected, corrected (in the strategy's colour)",
    MEASURED: "measured",
}
_PLAIN = "#9A9A9A"
_OURS = {
    "data": "ddp",
    "data+filter": "data-filter",
    "data+spatial": "data-spatial",
    "pipeline": "pipe-gpipe",
    "serial": "sequential",
}
_DEPARTS = "!"


def draw_bars(
    title: str, bars: pd.DataFrame, places_label: str, footer: list[str], limit: float
) -> Figure:
    """Draw all bars.

    Args:
        title: of the figure.
        bars: :data:`COLUMNS`. ``row`` heads a row of panels, ``place`` labels a group, ``order``
            sorts groups. Parts that are unknown are NaN: the bar is whole. ``mark`` says why there
            is no bar.
        places_label: what the groups are.
        footer: sentences below.
        limit: share by which runs that are marked depart (``predict/anomalies.py``).
    """
    rows = list(dict.fromkeys(bars["row"]))
    sources = [source for source in SOURCES if source in set(bars["source"])]
    panels = {row: list(dict.fromkeys(bars.loc[bars["row"] == row, "strategy"])) for row in rows}
    groups = bars.groupby(["row", "strategy"])["place"].nunique().max()
    told = (
        f"Above a projection: its accuracy in percent; {_DEPARTS} where the run is over "
        f"{limit:.0%} longer than projected, or the projection than the run."
    )
    page = lay_out(
        title,
        [*((_sample(source), _LEGEND[source]) for source in sources), *_parts(bars)],
        [Section(row, [Panel(_title(name)) for name in panels[row]]) for row in rows],
        footer=[told, *footer],
        size=PanelSize(
            min_width=max(24.0, 2.3 * int(groups) * (len(sources) + 1)),
            height=32.0,
            left=11.0,
            between=10.0,
            right=2.0,
            bottom=lambda _: 8.0,
            max_width=90.0,
            max_columns=5,
        ),
        share_y=False,
    )
    for row, axes_row in zip(rows, page.axes, strict=True):
        for strategy, axes in zip(panels[row], axes_row, strict=True):
            own = bars[(bars["row"] == row) & (bars["strategy"] == strategy)]
            _fill(axes, own, sources, strategy_look(_own_name(strategy)).colour)
            axes.set_xlabel(places_label, labelpad=1)
    return page.figure


def _own_name(strategy: str) -> str:
    name = strategy.partition(",")[0]
    return _OURS.get(name, name)


def _title(strategy: str) -> str:
    """Our strategies by their labels; ParaDL's, which stand for several of ours, in their words."""
    name, comma, rest = strategy.partition(",")
    alone = name in ("data", "pipeline", "serial")
    return f"{name.capitalize() if alone else strategy_label(_own_name(name))}{comma}{rest}"


def _sample(source: str) -> Patch:
    colour = {"as-published": _PLAIN, "corrected": "#4477AA", MEASURED: "#000000"}[source]
    face = "white" if source == MEASURED else colour
    return Patch(facecolor=face, edgecolor=colour, linewidth=0.8)


def _parts(bars: pd.DataFrame) -> list[tuple[Any, str]]:
    if not bars["communication_s"].notna().any():
        return []
    hatched = Patch(facecolor="white", edgecolor=GREY, hatch="//////", linewidth=0.6)
    return [(hatched, "of it communication")]


def _fill(axes: Axes, own: pd.DataFrame, sources: list[str], colour: str) -> None:
    places = list(dict.fromkeys(own.sort_values("order")["place"]))
    pitch = len(sources) + 1
    axes.set_xlim(-0.5, len(places) * pitch - 0.5)
    middles = [place * pitch + (len(sources) - 1) / 2 + 0.5 for place in range(len(places))]
    axes.set_xticks(middles, places)
    axes.tick_params(axis="x", length=0)
    top = float(own["step_s"].max())
    for bar in rows_of(own):
        x = places.index(bar.place) * pitch + sources.index(bar.source) + 0.5
        _draw_bar(axes, x, bar, _PLAIN if bar.source == "as-published" else colour)
        text = str(bar.mark) or _accuracy(bar)
        if text:
            height = float(bar.step_s) if math.isfinite(bar.step_s) else 0.0
            axes.text(
                x, height + 0.02 * (top if math.isfinite(top) else 1.0), text, rotation=90,
                ha="center", va="bottom", fontsize=MIN_PT, gid="mark" if bar.mark else "number",
                color=GREY if bar.mark else "black",
            )  # fmt: skip
    seconds_axis(axes, top, "Iteration", headroom=1.3)


def _draw_bar(axes: Axes, x: float, bar: Any, colour: str) -> None:
    if not math.isfinite(bar.step_s):
        return
    measured = bar.source == MEASURED
    told = math.isfinite(bar.communication_s)
    compute_s = bar.compute_s if told else bar.step_s
    style: dict[str, Any] = {"width": 0.86, "edgecolor": "black" if measured else colour}
    face = "white" if measured else colour
    solid = axes.bar(x, compute_s, facecolor=face, linewidth=0.6, **style)
    solid[0].set_gid("compute")
    if told:
        pale = "white" if measured else shade(colour, 0.65)
        upper = axes.bar(
            x, bar.communication_s, bottom=compute_s, facecolor=pale, hatch="//////",
            linewidth=0.6, **style,
        )  # fmt: skip
        upper[0].set_gid("communication")


def _accuracy(bar: Any) -> str:
    if bar.source == MEASURED or not math.isfinite(bar.accuracy):
        return ""
    return f"{100 * bar.accuracy:.0f}{_DEPARTS if bar.departs else ''}"
