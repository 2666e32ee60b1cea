"""A search for options: what was predicted of each configuration, and what was measured.

::

    chunks=8 balance=work   |--- predicted, 90 % ---|
                                  |-o-|  measured               <- best
    chunks=4 balance=work    |--- predicted, 90 % ---|
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlbench.common.units import HOURS
from ddlbench.planning.labels import strategy_label
from ddlbench.report.bars import draw_intervals, name_rows
from ddlbench.report.labels import case_title
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.looks import strategy_look
from ddlbench.report.style import GREY, text_width_mm

_ROW_MM = 5.0
_MOST = 24
_COLUMNS = [
    "configuration", "basis", "samples_per_s", "low_samples_per_s", "high_samples_per_s",
    "predicted_samples_per_s", "best",
]  # fmt: skip


def draw(tuning: Mapping[str, Any]) -> tuple[Figure, pd.DataFrame]:
    """One row a configuration, the fastest above; all that were measured, and the likeliest others.

    Args:
        tuning: the content of tuning.json.
    """
    shown = _shown(tuning["configurations"])
    labels = [_label(one) for one in shown]
    left = max(map(text_width_mm, labels), default=0) + 5
    case = tuning["case"]
    colour = strategy_look(case["strategy"]).colour
    page = lay_out(
        f"Options of {strategy_label(case['strategy'])}",
        [
            (Line2D([], [], linestyle="-", color=GREY), "predicted, 90 %"),
            (Line2D([], [], linestyle="-", marker="o", color=colour), "measured, 90 %"),
        ],
        [Section("", [Panel(_title(case))], height=_ROW_MM * max(1, len(shown)) + 2)],
        footer=_footer(tuning),
        size=PanelSize(60, 0, left=left, between=left, max_width=110),
    )
    ((axes,),) = page.axes
    for place, one in enumerate(shown):
        measured = (one["samples_per_s"], one["interval_samples_per_s"])
        predicted = one["predicted_interval_samples_per_s"]
        given = measured if one["basis"] == "measured" else None
        draw_intervals(axes, place, predicted, given, colour)
    name_rows(axes, labels)
    axes.set_xlim(left=0)
    axes.set_xlabel("Samples a second")
    best = tuning["best"]["cell_id"] if tuning["best"] else None
    ids = [one["cell_id"] for one in shown]
    if best in ids:
        axes.get_yticklabels()[ids.index(best)].set_fontweight("bold")
    rows = [
        (label, one["basis"], one["samples_per_s"], *one["interval_samples_per_s"],
         one["predicted_samples_per_s"], one["cell_id"] == best)
        for label, one in zip(labels, shown, strict=True)
    ]  # fmt: skip
    return page.figure, pd.DataFrame(rows, columns=_COLUMNS)


def _shown(configurations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All that were measured, and the fastest others until the figure is full; in their order."""
    measured = [one for one in configurations if one["basis"] == "measured"][:_MOST]
    others = [one for one in configurations if one["basis"] != "measured"]
    kept = {one["cell_id"] for one in (*measured, *others[: _MOST - len(measured)])}
    return [one for one in configurations if one["cell_id"] in kept]


def _label(one: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in one["values"].items())


def _title(case: Mapping[str, Any]) -> str:
    batch = [] if "batch_size" in case["varied"] else [f"{case['batch_size']} samples a step"]
    return case_title(case, *batch)


def _footer(tuning: Mapping[str, Any]) -> list[str]:
    best = tuning["best"]
    said = f"Best: {_label(best)}" if best else "Nothing can run"
    spent = f"{len(tuning['trials'])} cells, {HOURS.of(tuning['device_s']):.2g} device-hours"
    if tuning["device_s_all"]:
        spent += f" of {HOURS.of(tuning['device_s_all']):.2g} for all"
    return [f"{said}. {spent}. Stopped: {tuning['stopped']}. Site {tuning['site']}."]
