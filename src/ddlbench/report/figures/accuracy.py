"""Errors of all predictors by strategy; bars of baselines are hatched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ddlbench.common.statistics import mean_interval
from ddlbench.planning.labels import strategy_label
from ddlbench.report.bars import ground, label_rows, patch, write_in_row
from ddlbench.report.footer import Context, footer, sentence
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.looks import DatasetLook, strategy_look
from ddlbench.report.predicted import Predicted, shown_cells
from ddlbench.report.style import GREY, bar_style, text_width_mm

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
        footer=footer(shown_cells(predicted, frame), context, [_legend_sentence(scored)]),
        size=_size(predictors, len(strategies)),
        share_y=True,
    )
    records = []
    for strategy, axes in zip(strategies, page.axes[0], strict=True):
        own = scored[scored["strategy"] == strategy]
        _frame(axes, predictors, own["signed_error"].abs(), axes in page.first_in_row)
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
        spread = own["repeat_spread"].median()
        if math.isfinite(spread):
            axes.axvline(spread, **_DOTS, linewidth=0.8, zorder=4, gid="spread")
    return page.figure, pd.DataFrame(records)


def _size(predictors: list[str], strategies: int) -> PanelSize:
    return PanelSize(
        min_width=22.0,
        height=len(predictors) * _ROW_MM + 1,
        left=max(map(text_width_mm, predictors)) + 2.5,
        between=4.0,
        max_width=60.0,
        max_columns=min(strategies, 5),
    )


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
    spread = np.random.default_rng(place).uniform(-0.2, 0.2, len(inside))
    axes.plot(inside, place + spread, **_POINT, zorder=3, gid="cells")
    beyond = len(errors) - len(inside)
    if beyond and mean <= _CUT:
        _write(axes, place, 0.98, f"{beyond} →", ha="right")
    interval = mean_interval(errors)
    if interval is not None:
        ends = [min(end, 1.12 * _CUT) for end in interval]
        axes.plot(ends, [place, place], color="#333333", linewidth=0.9, marker="|", markersize=3.5)
    if mean > _CUT:
        _write(axes, place, 0.05, f"{mean:.0%} →")


_POINT: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 1.8,
    "markerfacecolor": "#222222",
    "markeredgewidth": 0.0,
    "alpha": 0.7,
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


def _legend_sentence(scored: pd.DataFrame) -> str:
    if not len(scored):
        return sentence("accuracy_none")
    beyond = scored["signed_error"].abs().max() > _CUT
    return sentence("accuracy") + (sentence("accuracy_cut", cut=_CUT) if beyond else "")
