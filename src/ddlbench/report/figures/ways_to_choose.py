"""What a way to choose costs, and how well it chooses (thesis, Figure 8.1).

::

    right or within the noise          extra time
      |            o K=1  o K=2  x       |  o recommender
      |  o recommender                   |          o K=1
      |_______________________           |______________o K=2__x__
        device time, over running everything (log)
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ddlbench.report.footer import sentence
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import GREY, plain
from ddlbench.report.tables import rows_of

_COLOURS = ("#000000", "#CC79A7", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#7A7A00")
_MARKERS = ("X", "s", "D", "o", "^", "v", "P")
COLUMNS = [
    *("way", "cases", "right", "within_noise", "regret"),
    *("device_share", "short_share", "shared_profile_share"),
]


def ways(choices: pd.DataFrame) -> pd.DataFrame:
    """Each way's means over the cases that it has an answer for.

    Args:
        choices: rows of choices.csv: ``case`` (which begins with dataset and network), ``way``,
            ``best``, ``best_step_s``, ``picked``, ``picked_step_s``, ``within_noise``,
            ``device_s``, the part of it that profiles the network ``profile_s``, and the device
            time of all candidates: for whole epochs ``device_s_everything``, as short cells
            ``device_s_all``.

    Returns:
        ``device_share`` is of whole epochs, ``short_share`` of short cells. In
        ``shared_profile_share``, which is of short cells, too, the cases of a network share its
        profile.
    """
    network = choices["case"].str.split("/").str[:2].str.join("/")
    cases_of_network = choices.groupby(["way", network])["case"].transform("size")
    saved_s = choices["profile_s"] * (1 - 1 / cases_of_network)
    told = choices.assign(
        right=choices["picked"] == choices["best"],
        regret=choices["picked_step_s"] / choices["best_step_s"] - 1,
        device_share=choices["device_s"] / choices["device_s_everything"],
        short_share=choices["device_s"] / choices["device_s_all"],
        shared_profile_share=(choices["device_s"] - saved_s) / choices["device_s_all"],
    )
    means = told.groupby("way", sort=False)[COLUMNS[2:]].mean()
    counts = told.groupby("way", sort=False).size().rename("cases")
    return means.join(counts).reset_index()[COLUMNS]


def draw(choices: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Two panels over device time: how often a way is right, and the extra time of its picks.

    Args:
        choices: as of :func:`ways`.
    """
    shown = ways(choices)
    names = list(shown["way"])
    page = lay_out(
        "How to choose a strategy: device time against accuracy",
        [(_mark(place), name) for place, name in enumerate(names)],
        [Section("", [Panel("Right or within the noise", data=("within_noise", "share of cases")),
                      Panel("Extra time of the choice", data=("regret", "mean over cases"))])],
        footer=[sentence("ways_to_choose", cases=int(shown["cases"].max()))],
        size=PanelSize(min_width=62.0, height=42.0, left=11.0, between=13.0),
    )  # fmt: skip
    for axes, (column, label) in page.facets:
        _fill(axes, shown, column)
        axes.set_ylabel(label, labelpad=1)
    return page.figure, shown


def _fill(axes: Axes, shown: pd.DataFrame, column: str) -> None:
    for place, row in enumerate(rows_of(shown)):
        mark = _mark(place)
        mark.set_data([row.device_share], [getattr(row, column)])
        mark.set_clip_on(False)
        axes.add_line(mark)
    low, high = float(shown["device_share"].min()), float(shown["device_share"].max())
    axes.set_xscale("log")
    axes.set_xlim(low / 1.6, max(high, 1.0) * 1.6)
    top = 1.0 if column == "within_noise" else max(float(shown[column].max()) * 1.15, 0.01)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("Device time over running everything", labelpad=1)
    axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.5)


def _mark(place: int) -> Line2D:
    marker, colour = _MARKERS[place % len(_MARKERS)], _COLOURS[place % len(_COLOURS)]
    return Line2D([], [], linestyle="none", marker=marker, color=colour, markersize=5)
