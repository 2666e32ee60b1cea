"""Deviation of a strategy's predictors from measured steps (thesis Figures 4.1, 5.1, 5.2, 6.2).

A deviation is (predicted - measured) / measured: below zero, the prediction is too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label
from ddlbench.report import published
from ddlbench.report.bars import (
    Beside,
    bar_groups,
    draw_beside,
    draw_groups,
    hollow,
    panel_size,
    patch,
    slots_width_mm,
)
from ddlbench.report.footer import Context, footer, note_sentences, sentence
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, unique
from ddlbench.report.looks import condition_look, dataset_look
from ddlbench.report.predicted import (
    Predicted,
    condition_label,
    own_predictors,
    shown_cells,
    title_of,
)
from ddlbench.report.style import GREY, PAGE_MM
from ddlbench.report.tables import rows_of

_NEUTRAL = "#444444"
_LEFT, _BETWEEN, _RIGHT = 13.5, 3.0, 2.0
_TABLE = [
    "source", "strategy", "predictor", "geometry", "variant", "network", "dataset",
    "predicted_step_s", "measured_step_s", "measured_low_s", "measured_high_s", "signed_error",
    "repeats", "mark", "stale", "noisy", "figure", "where", "hardware",
]  # fmt: skip


def draw(predicted: Predicted, context: Context, strategy: str) -> tuple[Figure, pd.DataFrame]:
    """Sections are geometries, panels predictors; networks on x, datasets as shades.

    With a single dataset, geometries are the shades, as in Figure 5.2. With a single network,
    predictors are on x: a panel for each would hold one bar.
    """
    frame = predicted.predictions
    predictors = own_predictors(frame, strategy)
    shown = frame[(frame["strategy"] == strategy) & frame["predictor"].isin(predictors)]
    headings = [
        condition_label(strategy, row.workers, str(row.geometry), str(row.variant))
        for row in rows_of(shown)
    ]
    shown = shown.assign(condition=headings)
    beside = _beside(shown, predictors, strategy, context)
    networks, datasets = unique(shown["network"]), in_dataset_order(shown["dataset"])
    conditions = unique(shown["condition"])
    by_condition, alone = len(datasets) == 1 < len(conditions), len(networks) == 1
    looks = {name: dataset_look(name) for name in datasets}
    if by_condition:
        looks = {name: condition_look(place) for place, name in enumerate(conditions)}
    slot, group = ("condition" if by_condition else "dataset"), "network"
    groups = {name: network_label(name) for name in networks}
    if alone:
        group, groups = "predictor", {name: name for name in predictors}

    def panels(part: pd.DataFrame, printed: pd.DataFrame) -> list[Panel]:
        """Each with its groups of bars and its printed rows."""
        bars = partial(bar_groups, groups=groups, looks=looks, values=_values, group=group)
        if alone:
            return [Panel(network_label(networks[0]), data=(bars(part, slot=slot), printed))]
        of = [
            (name, part["predictor"] == name, printed["predictor"] == name) for name in predictors
        ]
        return [
            Panel(name, data=(bars(part[ours], slot=slot), printed[theirs]))
            for name, ours, theirs in of
        ]

    sections = (
        [Section("", panels(shown, beside))]
        if by_condition
        else [
            Section(str(heading), panels(part, beside[beside["condition"] == heading]))
            for heading, part in shown.groupby("condition", sort=False)
        ]
    )
    legend: list[tuple[Artist, str]] = [
        (patch(_NEUTRAL, look), name if by_condition else dataset_label(name))
        for name, look in looks.items()
    ]
    if len(beside):
        legend.append((hollow(), published.label(beside, context.paper)))
    cells = shown_cells(predicted, shown, marked=True)
    page = lay_out(
        f"Deviation of predictions: {title_of(strategy)}",
        legend,
        sections,
        footer=footer(cells, context, [*_sentences(shown, beside), *note_sentences(cells)]),
        size=_size(list(groups.values()), len(looks), 1 if alone else len(predictors), sections),
        share_y=True,
    )
    limits = _limits(shown, beside)
    on_x, slots = list(groups), list(looks)
    for axes, (bars, printed) in page.facets:
        places = {
            (on_x.index(getattr(row, group)), slots.index(getattr(row, slot))): 100
            * float(row.signed_error)
            for row in rows_of(printed)
        }
        theirs = Beside(places, limits[1] - limits[0])
        draw_groups(axes, bars, page.width_mm, "{:+.0f}", theirs)
        draw_beside(axes, theirs, len(looks))
        axes.axhline(0, color=GREY, linewidth=0.6, zorder=1)
        axes.set_ylim(*limits)
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+,g}" if value else "0")
        )
    page.label_rows("Deviation (%)")
    return page.figure, published.below(shown, beside.drop_duplicates(), _TABLE)


def _beside(
    shown: pd.DataFrame, predictors: Sequence[str], strategy: str, context: Context
) -> pd.DataFrame:
    """Printed deviations of what is shown, by ``condition`` and ``predictor``.

    Those that are printed of another geometry alone have ``elsewhere``.
    """
    parts = []
    for (heading, geometry), own in shown.groupby(["condition", "geometry"], sort=False):
        for name in predictors:
            rows = published.deviations(strategy, name, str(geometry), context.paper)
            rows = rows[rows["network"].isin(own["network"]) & rows["dataset"].isin(own["dataset"])]
            elsewhere = rows["geometry"] != geometry
            parts.append(rows.assign(predictor=name, condition=str(heading), elsewhere=elsewhere))
    return pd.concat(parts, ignore_index=True)


def _size(
    labels: list[str], members: int, predictors: int, sections: Sequence[Section]
) -> PanelSize:
    """Put all predictors side by side if their bars allow it."""
    size = panel_size(
        labels, members, [predictors] * len(sections), left=_LEFT, between=_BETWEEN, right=_RIGHT
    )
    inner = PAGE_MM - 3 - _LEFT - _RIGHT
    share = (inner - (predictors - 1) * _BETWEEN) / predictors
    if predictors > 1 and share >= max(slots_width_mm(len(labels), members), 30.0):
        return replace(size, min_width=min(size.min_width, share))
    return size


def _values(row: Any) -> tuple[float, float, float]:
    low, high = _interval(row)
    return 100 * row.signed_error, 100 * low, 100 * high


def _interval(row: Any) -> tuple[float, float]:
    """The deviation at both ends of the measured step's interval."""
    ends = (row.measured_high_s, row.measured_low_s)
    if not all(math.isfinite(end) and end > 0 for end in ends):
        return math.nan, math.nan
    low, high = (row.predicted_step_s / end - 1 for end in ends)
    return low, high


def _limits(shown: pd.DataFrame, printed: pd.DataFrame) -> tuple[float, float]:
    ends = [_interval(row) for row in rows_of(shown)]
    values = [v for pair in ends for v in pair if math.isfinite(v)]
    values += [float(v) for v in (*shown["signed_error"].dropna(), *printed["signed_error"])]
    low, high = 100 * min([*values, 0.0]), 100 * max([*values, 0.0])
    margin = 0.14 * max(high - low, 1.0)
    marks = margin if (shown["mark"] != "").any() else 0.0  # they stand at the lower edge
    return (low - margin - marks if low < 0 else -marks), (high + margin)


def _sentences(shown: pd.DataFrame, printed: pd.DataFrame) -> list[str]:
    repeats = sorted(set(shown.loc[shown["measured_step_s"].notna(), "repeats"].astype(int)))
    sentences = [sentence("deviation")]
    if repeats:
        over = "the steps of the only run" if repeats[-1] < 2 else "repeats"
        sentences.append(sentence("deviation_whiskers", over=over))
    if len(printed):
        sentences.append(sentence("deviation_printed"))
    if others := sorted(set(printed.loc[printed["elsewhere"].astype(bool), "geometry"])):
        sentences[-1] += f" They are of {', '.join(others)} (nodes x devices)."
    return sentences
