"""Deviation of a strategy's predictors from measured steps (thesis Figures 4.1, 5.1, 5.2, 6.2).

A deviation is (predicted - measured) / measured: below zero, the prediction is too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ddlbench.report import published
from ddlbench.report.bars import (
    Beside,
    Group,
    bar_groups,
    draw_beside,
    draw_groups,
    hollow,
    panel_size,
    patch,
    slots_width_mm,
)
from ddlbench.report.footer import Context, footer
from ddlbench.report.labels import dataset_label, in_dataset_order, network_label
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, unique
from ddlbench.report.predicted import (
    Predicted,
    condition_label,
    own_predictors,
    shown_cells,
    title_of,
)
from ddlbench.report.style import GREY, PAGE_MM, dataset_look
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

    With a single network, predictors are on x: a panel for each would hold one bar.
    """
    frame = predicted.predictions
    predictors = own_predictors(frame, strategy)
    shown = frame[(frame["strategy"] == strategy) & frame["predictor"].isin(predictors)]
    datasets = in_dataset_order(shown["dataset"])
    networks = unique(shown["network"])
    one_network = len(networks) == 1
    places = predictors if one_network else networks
    labels = predictors if one_network else [network_label(network) for network in networks]
    sections, all_printed = [], []
    for (workers, geometry, variant), part in shown.groupby(
        ["workers", "geometry", "variant"], sort=False
    ):
        heading = condition_label(strategy, workers, str(geometry), str(variant))
        besides = []
        for name in predictors:
            beside = published.deviations(strategy, name, str(geometry), context.paper)
            beside = beside[beside["network"].isin(networks) & beside["dataset"].isin(datasets)]
            besides.append(beside.assign(predictor=name, elsewhere=beside["geometry"] != geometry))
        all_printed += besides
        if one_network:
            groups = _predictor_groups(part, predictors, datasets)
            data = (groups, pd.concat(besides, ignore_index=True))
            panels = [Panel(network_label(networks[0]), data=data)]
        else:
            panels = [
                Panel(name, data=(_network_groups(part, name, networks, datasets), beside))
                for name, beside in zip(predictors, besides, strict=True)
            ]
        sections.append(Section(heading, panels))
    printed = pd.concat(all_printed, ignore_index=True)
    legend: list[tuple[Artist, str]] = [
        (patch(_NEUTRAL, dataset_look(d)), dataset_label(d)) for d in datasets
    ]
    if len(printed):
        legend.append((hollow(), published.label(printed, context.paper)))
    page = lay_out(
        f"Deviation of predictions: {title_of(strategy)}",
        legend,
        sections,
        footer=footer(
            shown_cells(predicted, shown, marked=True), context, _sentences(shown, printed)
        ),
        size=_size(labels, len(datasets), 1 if one_network else len(predictors), sections),
        share_y=True,
    )
    limits = _limits(shown, printed)
    for axes, (groups, beside) in page.facets:
        values = {
            (places.index(row.predictor if one_network else row.network),
             datasets.index(row.dataset)): 100 * float(row.signed_error)
            for row in rows_of(beside)
        }  # fmt: skip
        theirs = Beside(values, limits[1] - limits[0])
        draw_groups(axes, groups, page.width_mm, "{:+.0f}", theirs)
        draw_beside(axes, theirs, len(datasets))
        axes.axhline(0, color=GREY, linewidth=0.6, zorder=1)
        axes.set_ylim(*limits)
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+,g}" if value else "0")
        )
    page.label_rows("Deviation (%)")
    return page.figure, _table(shown, printed)


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


def _network_groups(
    part: pd.DataFrame, predictor: str, networks: list[str], datasets: list[str]
) -> list[Group]:
    own = part[part["predictor"] == predictor]
    return bar_groups(own, networks, datasets, _values)


def _predictor_groups(
    part: pd.DataFrame, predictors: list[str], datasets: list[str]
) -> list[Group]:
    """One group for each predictor of a single network, with a bar for each dataset."""
    each = []
    for name in predictors:
        own = part[part["predictor"] == name]
        bars = bar_groups(own, unique(own["network"])[:1], datasets, _values)
        each.append(Group(name, bars[0].bars if bars else [None] * len(datasets)))
    return each


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
    sentences = [
        "(predicted - measured) / measured of one step; below zero the prediction is too short."
    ]
    if repeats:
        over = "the steps of the only run" if repeats[-1] < 2 else "repeats"
        sentences.append(
            f"Whiskers: the deviation at both ends of the measured step's interval over {over}."
        )
    if len(printed):
        sentences.append(
            "Hollow: printed in the thesis, of another machine and its batches; of an epoch there."
        )
    if others := sorted(set(printed.loc[printed["elsewhere"].astype(bool), "geometry"])):
        sentences[-1] += f" They are of {', '.join(others)} (nodes x devices)."
    return sentences


def _table(shown: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    ours = shown.assign(source="measured here", figure="", where="", hardware="")
    theirs = printed.assign(source=published.CITATION).drop_duplicates()
    both = pd.concat([ours, theirs], ignore_index=True) if len(theirs) else ours
    return both[_TABLE]
