"""The transformer oracle: predicted against measured steps, errors by cut, and strong scaling.

::

    predicted |        . /        error |  |#|          GPU-seconds |  / parallel overhead
              |    ../'                 |  |#| |#|       a step     | /_____ bubble
              | ./'                     |__|#|_|#|__                |_______ products
                 measured                  1   2  tensor               64 ... 4,096 GPUs
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddlbench.predict.constants import Array
from ddlbench.predict.transformer.training_runs import TrainingRuns
from ddlbench.report.curves import ticks_at
from ddlbench.report.footer import sentence
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import GREY

_KINDS = {
    "data alone": ("#3C89C9", "o"),
    "tensor": ("#CC79A7", "s"),
    "pipeline": ("#E8854A", "^"),
    "tensor and pipeline": ("#4DBB9D", "D"),
}
_MANY_VALUES = 8
_MANY_NODES = 20  # devices; runs on one node have fewer
_BAR = "#BBD7EE"


def draw_runs(runs: TrainingRuns, predicted_s: Array, where: str) -> tuple[Figure, pd.DataFrame]:
    """Predicted against measured steps, on one node and on many; one mark per run.

    Runs are predicted with their model size held out; ``where`` is their source.
    """
    table = _table(runs, predicted_s)
    panels = [
        Panel(f"{place}: {of_place['error'].abs().mean():.1%} mean absolute error", data=of_place)
        for place, of_place in table.groupby("place", sort=False)
    ]
    shown = [kind for kind in _KINDS if kind in set(table["kind"])]
    page = lay_out(
        "How long is a step of a GPT over tensor x data x pipeline devices?",
        [(_mark(kind), kind) for kind in shown],
        [Section("", panels)],
        footer=[sentence("gpt_runs", where=where)],
        size=PanelSize(min_width=60, height=60, left=12, between=14, max_width=74),
    )
    for axes, of_place in page.facets:
        _scatter(axes, of_place)
        axes.set_xlabel("measured step (s)", labelpad=1)
    page.label_rows("predicted step (s)", labelpad=1)
    return page.figure, table


def _scatter(axes: Axes, of_place: pd.DataFrame) -> None:
    both = of_place[["measured_s", "predicted_s"]].to_numpy()
    low, high = both.min() * 0.85, both.max() * 1.2
    axes.plot([low, high], [low, high], "-", color=GREY, linewidth=0.8)
    for factor in (0.8, 1.2):
        axes.plot([low, high], [low * factor, high * factor], ":", color=GREY, linewidth=0.8)
    for kind, part in of_place.groupby("kind", sort=False):
        colour, marker = _KINDS[str(kind)]
        axes.plot(
            part["measured_s"], part["predicted_s"], marker, color=colour, markersize=2.5,
            alpha=0.7, markeredgewidth=0,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= tick <= high]
    ticks_at(axes.xaxis, ticks)
    ticks_at(axes.yaxis, ticks)


def draw_errors(runs: TrainingRuns, predicted_s: Array, where: str) -> tuple[Figure, pd.DataFrame]:
    """Relative error of every run by each part of its cut; a bar is the mean absolute error."""
    table = _table(runs, predicted_s)
    runs_mark = Line2D([], [], linestyle="", marker="o", color=GREY)
    names = ("tensor", "data", "pipeline", "micro_batch")
    sections = [
        Section(
            str(place), [Panel(name.replace("_", "-"), data=(name, of_place)) for name in names]
        )
        for place, of_place in table.groupby("place", sort=False)
    ]
    page = lay_out(
        "Which configurations does the oracle miss?",
        [(Patch(facecolor=_BAR), "mean absolute error"), (runs_mark, sentence("gpt_run"))],
        sections,
        footer=[sentence("gpt_errors", where=where)],
        size=PanelSize(min_width=30, height=34, left=11, between=6, max_columns=4),
        share_y=True,
    )
    for axes, (name, of_place) in page.facets:
        _errors(axes, name, of_place)
    page.label_rows("error (%)", labelpad=1)
    return page.figure, table


def _errors(axes: Axes, name: str, of_place: pd.DataFrame) -> None:
    values = sorted(of_place[name].unique())
    for place, value in enumerate(values):
        errors = 100 * of_place.loc[of_place[name] == value, "error"].to_numpy()
        axes.bar(place, np.abs(errors).mean(), width=0.8, color=_BAR, zorder=1)
        spread = np.linspace(-0.3, 0.3, len(errors)) if len(errors) > 1 else np.zeros(1)
        axes.plot(
            place + spread, errors, "o", color=GREY, markersize=1.2, alpha=0.5, markeredgewidth=0
        )
    axes.axhline(0, color=GREY, linewidth=0.5)
    shown = range(len(values))[:: -2 if len(values) > _MANY_VALUES else -1]
    axes.set_xticks(shown, [f"{values[place]:g}" for place in shown])


def _table(runs: TrainingRuns, predicted_s: Array) -> pd.DataFrame:
    names = ("hidden_size", "layers", "tensor", "data", "pipeline", "micro_batch", "global_batch")
    table = pd.DataFrame({name: runs.decoders[name] for name in names})
    tensor, pipeline = table["tensor"] > 1, table["pipeline"] > 1
    return table.assign(
        devices=runs.decoders.devices,
        place=np.where(runs.decoders.devices < _MANY_NODES, "one node", "many nodes"),
        kind=np.select(
            [tensor & pipeline, tensor, pipeline],
            ["tensor and pipeline", "tensor", "pipeline"],
            "data alone",
        ),
        measured_s=runs.step_s,
        predicted_s=predicted_s,
        error=predicted_s / runs.step_s - 1,
    )


def _mark(kind: str) -> Line2D:
    colour, marker = _KINDS[kind]
    return Line2D([], [], linestyle="", marker=marker, color=colour)
