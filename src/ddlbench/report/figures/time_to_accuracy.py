"""Accuracy on the validation images over seconds of training: what a faster step is worth.

A point is the median over repeats after an epoch. The seconds are those of measured epochs alone,
so a network that the warm-up has trained is a little ahead of its seconds, in every strategy alike.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ddlbench.common.units import TIMES, unit_for
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label
from ddlbench.report.curves import Lines, by_link, mark_end
from ddlbench.report.footer import Context, footer, sentence, without_signs
from ddlbench.report.labels import variant_labels
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, nothing_to_show, unique
from ddlbench.report.style import DOTS, ticks_in
from ddlbench.report.tables import Tables, rows_of

TABLE = [
    "dataset", "network", "strategy", "variant", "geometry", "fabric", "batch_size", "epoch",
    "training_s", "accuracy", "n", "chance",
]  # fmt: skip
_TITLE = "Accuracy by training time"
_DOTS: dict[str, Any] = {**DOTS, "linewidth": 0.8}


def accuracy_curves(validation: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Of each configuration ``epoch``, ``training_s``, ``accuracy`` and the number ``n`` of runs.

    Seconds and accuracy are medians over repeats.
    """
    configurations = validation["cell_id"].str.replace(r"/rep\d+$", "", regex=True)
    return {
        str(name): own.groupby("epoch", as_index=False).agg(
            training_s=("training_s", "median"),
            accuracy=("accuracy", "median"),
            n=("accuracy", "size"),
        )
        for name, own in validation.groupby(configurations, sort=False)
    }


def chance(dataset: str) -> float:
    """Accuracy of guessing, as classes are equally frequent; NaN for an unknown dataset."""
    return 1 / DATASETS[dataset].num_classes if dataset in DATASETS else math.nan


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Panels are datasets and networks, lines strategies with their variants."""
    curves = accuracy_curves(tables.validation)
    named = variant_labels(tables.summary, without=("fabric",))
    shown = tables.summary.assign(variant=named)
    shown = shown[shown["configuration"].isin(list(curves))].reset_index(drop=True)
    if shown.empty:
        below = footer(tables.summary, context, [])
        reason = "No run with validation yet."
        return nothing_to_show(_TITLE, reason, below, TABLE)
    lines = Lines(shown, marked=True)
    signed = without_signs(shown).assign(stale=shown["stale"])
    page = lay_out(
        _TITLE,
        [*lines.legend(), (Line2D([], [], **_DOTS), "chance: one over the number of classes")],
        [Section("", _panels(shown))],
        footer=footer(signed, context, [_legend_sentence(curves)]),
        size=PanelSize(min_width=50.0, height=38.0, left=12.0, between=5.0),
        share_y=True,
    )
    records: list[dict[str, Any]] = []
    for axes, part in page.facets:
        guessed = chance(str(part["dataset"].iloc[0]))
        for row in rows_of(part):
            curve = curves[row.configuration]
            _draw_line(axes, curve, row, lines.look(row))
            own = {name: getattr(row, name) for name in TABLE if hasattr(row, name)}
            points: list[Any] = curve.to_dict("records")
            records += [{**own, **point, "chance": guessed} for point in points]
        longest_s = max(float(curves[name]["training_s"].max()) for name in part["configuration"])
        _frame(axes, longest_s, guessed)
    page.label_rows("Accuracy", labelpad=1)
    return page.figure, pd.DataFrame(records, columns=TABLE)


def _panels(shown: pd.DataFrame) -> list[Panel]:
    """One for each dataset, network and link; its data are their rows."""
    panels = []
    for dataset in in_dataset_order(shown["dataset"]):
        own = shown[shown["dataset"] == dataset]
        panels += [
            Panel(
                ", ".join(filter(None, (network_label(network), dataset_label(dataset), link))),
                data=part,
            )
            for network in unique(own["network"])
            for link, part in by_link(own[own["network"] == network])
        ]
    return panels


def _draw_line(axes: Axes, curve: pd.DataFrame, row: Any, look: dict[str, Any]) -> None:
    axes.plot(curve["training_s"], curve["accuracy"], **look, gid="line")
    if row.stale:
        mark_end(axes, (curve["training_s"].iloc[-1], curve["accuracy"].iloc[-1]), 3)


def _frame(axes: Axes, longest_s: float, guessed: float) -> None:
    if math.isfinite(guessed):
        axes.axhline(guessed, **_DOTS, gid="chance")
    axes.set_ylim(0, 1.03)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.set_xlim(0, 1.06 * longest_s or 1.0)
    ticks_in(unit_for(longest_s, TIMES), axes.xaxis, "Training time", 5)


def _legend_sentence(curves: dict[str, pd.DataFrame]) -> str:
    most = max(int(curve["n"].max()) for curve in curves.values())
    return sentence("time_to_accuracy", repeats="; medians over repeats" if most > 1 else "")
