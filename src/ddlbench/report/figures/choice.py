"""A choice: what was predicted of each candidate, what was measured, and which one won.

::

    DDP        |------ predicted, 90 % ------|
                      |-o-|  measured                      <- recommended
    Horovod        |------ predicted, 90 % ------|
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlbench.experiment.units import HOURS, TIMES, unit_for
from ddlbench.report.labels import dataset_label, network_label, strategy_label
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import GREY, strategy_look, text_width_mm, ticks_in

_ROW_MM = 5.0
_APART = 0.2  # of a row, from its middle
_COLUMNS = ["strategy", "low_s", "high_s", "basis", "recommended"]


def draw(choice: Mapping[str, Any]) -> tuple[Figure, pd.DataFrame]:
    """One row a candidate, the fastest above.

    Args:
        choice: the content of choice.json.
    """
    measured: Mapping[str, Any] = choice["measured"]
    known: Mapping[str, Any] = {**choice["predicted"], **measured}
    names = sorted(known, key=lambda name: known[name][0] * known[name][1])
    labels = [strategy_label(name) for name in names]
    left = max(map(text_width_mm, labels)) + 5
    page = lay_out(
        "Which strategy is the fastest?",
        [(_line("-"), "predicted, 90 %"), (_line("o"), "measured, 90 %")],
        [Section("", [Panel(_title(choice))], height=_ROW_MM * len(names) + 2)],
        footer=_footer(choice),
        size=PanelSize(60, 0, left=left, between=left, max_width=110),
    )
    ((axes,),) = page.axes
    unit = unit_for(max(high for _, high in known.values()), TIMES)
    for place, name in enumerate(names):
        _row(axes, place, choice, name)
    axes.set_yticks(range(len(names)), labels)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(left=0)
    if choice["recommended"] in names:
        axes.get_yticklabels()[names.index(choice["recommended"])].set_fontweight("bold")
    ticks_in(unit, axes.xaxis, "Step", 6)
    rows = [
        (name, *known[name], "measured" if name in measured else "predicted",
         name == choice["recommended"])
        for name in names
    ]  # fmt: skip
    return page.figure, pd.DataFrame(rows, columns=_COLUMNS)


def _row(axes: Axes, place: int, choice: Mapping[str, Any], name: str) -> None:
    predicted = choice["predicted"].get(name)
    if predicted is not None:
        axes.plot(predicted, [place - _APART] * 2, "-", color=GREY, linewidth=2)
    if name in choice["measured"]:
        low_s, high_s = choice["measured"][name]
        colour = strategy_look(name).colour
        axes.plot([low_s, high_s], [place + _APART] * 2, "-", color=colour, linewidth=1)
        axes.plot([(low_s * high_s) ** 0.5], [place + _APART], "o", color=colour)


def _line(style: str) -> Artist:
    return Line2D([], [], linestyle="-", marker="o" if style == "o" else "", color=GREY)


def _title(choice: Mapping[str, Any]) -> str:
    case = choice["case"]
    geometry = f"{case['nodes']}x{case['devices_per_node']}"
    return (
        f"{network_label(case['network'])}, {dataset_label(case['dataset'])}, {geometry}, "
        f"{case['batch_size']} samples a step"
    )


def _footer(choice: Mapping[str, Any]) -> list[str]:
    chosen = choice["recommended"]
    said = f"Recommended: {strategy_label(chosen)}" if chosen else "Nothing can run"
    if choice["fastest"] is not None:
        said += f", a chance of {choice['fastest']:.0%} to be the fastest"
    spent = f"{HOURS.of(choice['device_s']):.2g} device-hours"
    if choice["device_s_all"]:
        spent += f" of {HOURS.of(choice['device_s_all']):.2g} for all candidates"
    return [f"{said}. {spent}. Stopped: {choice['stopped']}. Site {choice['site']}."]
