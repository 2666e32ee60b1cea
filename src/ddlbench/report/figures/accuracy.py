"""Accuracy of predictors: errors of all by strategy, and deviations of those of one strategy.

Deviations are those of thesis Figures 4.1, 5.1, 5.2 and 6.2. A deviation is (predicted - measured)
/ measured: below zero, the prediction is too short.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ddlbench.common.statistics import mean_interval
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.report import published
from ddlbench.report.bars import (
    Beside,
    Group,
    bar_groups,
    draw_beside,
    draw_groups,
    ground,
    hollow,
    label_rows,
    panel_size,
    patch,
    slots_width_mm,
    write_in_row,
)
from ddlbench.report.footer import Context, footer, note_sentences, sentence
from ddlbench.report.labels import DatasetLook, condition_look, dataset_look, strategy_look
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, unique
from ddlbench.report.predicted import (
    Predicted,
    condition_label,
    own_predictors,
    shown_cells,
    title_of,
)
from ddlbench.report.style import GREY, PAGE_MM, bar_style, text_width_mm
from ddlbench.report.tables import rows_of

_MODEL = DatasetLook(0.35, "")
_BASELINE = DatasetLook(0.75, "/////")
_NEUTRAL = "#444444"
_DOTS: dict[str, Any] = {"color": GREY, "linestyle": (0, (1, 1.2))}
_SPREAD = Line2D([], [], **_DOTS)
_ROW_MM = 4.0
_CUT = 2.0  # longer bars are cut at 200 % and have their value written out


def draw(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Panels are strategies, rows predictors, points measured cells."""
    frame = predicted.predictions
    scored = frame[frame["signed_error"].notna()]
    known = set(frame["strategy"])
    strategies = [s for s in dict.fromkeys(predicted.summary["strategy"]) if s in known]
    rows = frame.drop_duplicates("predictor").sort_values("baseline", kind="stable")
    predictors = [str(name) for name in rows["predictor"]]
    baseline = dict(zip(predictors, rows["baseline"].astype(bool), strict=True))
    about = sentence("accuracy" if len(scored) else "accuracy_none")
    if scored["signed_error"].abs().max() > _CUT:
        about += sentence("accuracy_cut", cut=_CUT)
    page = lay_out(
        "Mean absolute error of the predicted step",
        [
            (patch(_NEUTRAL, _MODEL), "predictor"),
            (patch(_NEUTRAL, _BASELINE), "baseline"),
            (Line2D([], [], **_POINT), "a measured cell"),
            *(
                [(_SPREAD, "repeats differ by so much")]
                if frame["repeat_spread"].notna().any()
                else []
            ),
        ],
        [Section("", [Panel(strategy_label(strategy)) for strategy in strategies])],
        footer=footer(shown_cells(predicted, frame), context, [about]),
        size=PanelSize(
            min_width=22.0,
            height=len(predictors) * _ROW_MM + 1,
            left=max(map(text_width_mm, predictors)) + 2.5,
            between=4.0,
            max_width=60.0,
            max_columns=min(len(strategies), 5),
        ),
        share_y=True,
    )
    records = []
    for strategy, axes in zip(strategies, page.axes[0], strict=True):
        of_strategy = scored[scored["strategy"] == strategy]
        _frame(axes, predictors, of_strategy["signed_error"].abs(), axes in page.first_in_row)
        for place, name in enumerate(predictors):
            cells = frame[(frame["strategy"] == strategy) & (frame["predictor"] == name)]
            if not len(cells):
                continue
            errors = cells["signed_error"].dropna().to_numpy(dtype=float)
            look = _BASELINE if baseline[name] else _MODEL
            records.append(_record(strategy, name, baseline[name], cells, errors))
            if len(errors):
                _draw_row(axes, place, np.abs(errors), strategy_look(strategy).colour, look)
            else:
                _write(axes, place, 0.02, "not scored", color=GREY)
        spread = of_strategy["repeat_spread"].median()
        if math.isfinite(spread):
            axes.axvline(spread, **_DOTS, linewidth=0.8, zorder=4, gid="spread")
    return page.figure, pd.DataFrame(records)


def _frame(axes: Axes, predictors: list[str], errors: pd.Series, first: bool) -> None:
    label_rows(axes, predictors, first)
    longest = min(float(errors.max()), _CUT) if len(errors) else 1.0
    axes.set_xlim(0, 1.12 * max(longest, 0.01))
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    axes.set_xlabel("Error (%)", labelpad=1)


def _draw_row(axes: Axes, place: int, errors: np.ndarray, colour: str, look: DatasetLook) -> None:
    mean = float(errors.mean())
    style = bar_style(colour, look)
    axes.barh(place, min(mean, _CUT), height=0.66, zorder=2, gid="bar", **style)
    inside = errors[errors <= 1.12 * _CUT]
    spread = np.random.default_rng(place).uniform(*_CELLS_AT, len(inside))
    axes.plot(inside, place + spread, **_POINT, zorder=3, gid="cells")
    beyond = len(errors) - len(inside)
    if beyond and mean <= _CUT:
        _write(axes, place, 0.98, f"{beyond} →", ha="right")
    interval = mean_interval(errors)
    if interval is not None:
        ends = [min(end, 1.12 * _CUT) for end in interval]
        at = place + _WHISKER_AT
        axes.plot(ends, [at, at], **_WHISKER, zorder=4, gid="whisker")
    if mean > _CUT:
        _write(axes, place, 0.05, f"{mean:.0%} →")


# Cells lie in the upper half of a bar, the interval in the lower one: it would hide some of them.
_CELLS_AT, _WHISKER_AT = (-0.26, 0.0), 0.19
_WHISKER: dict[str, Any] = {
    "color": "#222222",
    "linewidth": 0.9,
    "marker": "|",
    "markersize": 2.8,
    "markeredgewidth": 0.9,
}
_POINT: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 2.2,
    "markerfacecolor": "#222222",
    "markeredgecolor": "white",
    "markeredgewidth": 0.3,
}


def _write(axes: Axes, place: int, x: float, text: str, **style: Any) -> None:
    write_in_row(axes, place, x, text, **style, gid="mark", zorder=5, bbox=ground(0.3))


def _record(
    strategy: str, name: str, baseline: bool, cells: pd.DataFrame, errors: np.ndarray
) -> dict[str, object]:
    interval = mean_interval(np.abs(errors))
    return {
        "strategy": strategy,
        "predictor": name,
        "baseline": baseline,
        "cells": len(cells),
        "n": len(errors),
        "mean_absolute_error": float(np.abs(errors).mean()) if len(errors) else math.nan,
        "low": interval[0] if interval else math.nan,
        "high": interval[1] if interval else math.nan,
        "signed_error": float(errors.mean()) if len(errors) else math.nan,
        "repeat_spread": cells["repeat_spread"].median(),
    }


_LEFT, _BETWEEN, _RIGHT = 13.5, 3.0, 2.0
_TABLE = [
    "source", "strategy", "predictor", "geometry", "variant", "network", "dataset",
    "predicted_step_s", "measured_step_s", "measured_low_s", "measured_high_s", "signed_error",
    "repeats", "mark", "stale", "noisy", "figure", "where", "hardware",
]  # fmt: skip


def draw_deviation(
    predicted: Predicted, context: Context, strategy: str
) -> tuple[Figure, pd.DataFrame]:
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
    bars = _bars_of(shown, predictors)
    sections = _deviation_sections(shown, beside, bars)
    legend: list[tuple[Artist, str]] = [
        (patch(_NEUTRAL, look), dataset_label(name) if bars.slot == "dataset" else name)
        for name, look in bars.looks.items()
    ]
    if len(beside):
        legend.append((hollow(), published.label(beside, context.paper)))
    cells = shown_cells(predicted, shown, marked=True)
    page = lay_out(
        f"Deviation of predictions: {title_of(strategy)}",
        legend,
        sections,
        footer=footer(cells, context, [*_sentences(shown, beside), *note_sentences(cells)]),
        size=_deviation_size(
            list(bars.groups.values()), len(bars.looks), len(bars.panels), sections
        ),
        share_y=True,
    )
    limits = _limits(shown, beside)
    for axes, (groups, printed) in page.facets:
        theirs = Beside(bars.places_of(printed), limits[1] - limits[0])
        draw_groups(axes, groups, page.width_mm, "{:+.0f}".format, theirs)
        draw_beside(axes, theirs, len(bars.looks))
        axes.axhline(0, color=GREY, linewidth=0.6, zorder=1)
        axes.set_ylim(*limits)
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+,g}" if value else "0")
        )
    page.label_rows("Deviation (%)")
    return page.figure, published.below(shown, beside.drop_duplicates(), _TABLE)


@dataclass(frozen=True)
class _Bars:
    """What panels, groups and bars of deviations stand for.

    Args:
        panels: title of each panel of a section; by the predictor, or only the network.
        group: column of a group of bars.
        groups: the label of each of its values.
        slot: column of a bar of a group.
        looks: of each of its values.
    """

    panels: Sequence[str]
    group: str
    groups: Mapping[str, str]
    slot: str
    looks: Mapping[str, DatasetLook]

    def of(self, rows: pd.DataFrame) -> list[Group]:
        """The groups of bars of a panel."""
        return bar_groups(rows, self.groups, self.looks, _percent, group=self.group, slot=self.slot)

    def places_of(self, printed: pd.DataFrame) -> dict[tuple[int, int], float]:
        """Printed deviations in percent, by group and bar."""
        groups, slots = list(self.groups), list(self.looks)
        return {
            (groups.index(getattr(row, self.group)), slots.index(getattr(row, self.slot))): 100
            * float(row.signed_error)
            for row in rows_of(printed)
        }


def _bars_of(shown: pd.DataFrame, predictors: Sequence[str]) -> _Bars:
    networks, datasets = unique(shown["network"]), in_dataset_order(shown["dataset"])
    conditions = unique(shown["condition"])
    if len(datasets) == 1 < len(conditions):
        slot = "condition"
        looks = {name: condition_look(place) for place, name in enumerate(conditions)}
    else:
        slot, looks = "dataset", {name: dataset_look(name) for name in datasets}
    if len(networks) == 1:
        by_predictor = {name: name for name in predictors}
        return _Bars([network_label(networks[0])], "predictor", by_predictor, slot, looks)
    labels = {name: network_label(name) for name in networks}
    return _Bars(predictors, "network", labels, slot, looks)


def _percent(row: Any) -> tuple[float, float, float]:
    low, high = _interval(row)
    return 100 * row.signed_error, 100 * low, 100 * high


def _deviation_sections(shown: pd.DataFrame, beside: pd.DataFrame, bars: _Bars) -> list[Section]:
    """Sections whose panels have their groups of bars and their printed rows."""

    def panels(part: pd.DataFrame, printed: pd.DataFrame) -> list[Panel]:
        if bars.group == "predictor":
            return [Panel(title, data=(bars.of(part), printed)) for title in bars.panels]
        return [
            Panel(
                name,
                data=(
                    bars.of(part[part["predictor"] == name]),
                    printed[printed["predictor"] == name],
                ),
            )
            for name in bars.panels
        ]

    if bars.slot == "condition":
        return [Section("", panels(shown, beside))]
    return [
        Section(str(heading), panels(part, beside[beside["condition"] == heading]))
        for heading, part in shown.groupby("condition", sort=False)
    ]


def _beside(
    shown: pd.DataFrame, predictors: Sequence[str], strategy: str, context: Context
) -> pd.DataFrame:
    """Printed deviations of what is shown, by ``condition`` and ``predictor``.

    Those that are printed of another geometry alone have ``elsewhere``.
    """
    parts = []
    for (heading, geometry), of_geometry in shown.groupby(["condition", "geometry"], sort=False):
        for name in predictors:
            rows = published.deviations(strategy, name, str(geometry), context.paper)
            rows = rows[
                rows["network"].isin(of_geometry["network"])
                & rows["dataset"].isin(of_geometry["dataset"])
            ]
            elsewhere = rows["geometry"] != geometry
            parts.append(rows.assign(predictor=name, condition=str(heading), elsewhere=elsewhere))
    return pd.concat(parts, ignore_index=True)


def _deviation_size(
    labels: list[str], members: int, predictors: int, sections: Sequence[Section]
) -> PanelSize:
    size = panel_size(
        labels, members, [predictors] * len(sections), left=_LEFT, between=_BETWEEN, right=_RIGHT
    )
    inner = PAGE_MM - 3 - _LEFT - _RIGHT
    share = (inner - (predictors - 1) * _BETWEEN) / predictors
    if predictors > 1 and share >= max(slots_width_mm(len(labels), members), 30.0):
        return replace(size, min_width=min(size.min_width, share))
    return size


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
