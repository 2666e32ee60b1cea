"""Deviation of a strategy's predictors from measured steps (thesis Figures 4.1, 5.1, 5.2, 6.2).

A deviation is (predicted - measured) / measured: below zero, the prediction is too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label
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
from ddlbench.report.footer import Context, footer, note_sentences, sentence
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, unique
from ddlbench.report.predicted import (
    Predicted,
    condition_label,
    own_predictors,
    shown_cells,
    title_of,
)
from ddlbench.report.style import GREY, PAGE_MM, condition_look, dataset_look
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
    look = _Look.of(shown, predictors)
    beside = _beside(shown, predictors, strategy, context)
    if look.by_condition:
        shown, beside = (one.assign(slot=one["condition"]) for one in (shown, beside))
        sections = [Section("", look.panels(shown, beside))]
    else:
        sections = [
            Section(str(heading), look.panels(part, beside[beside["condition"] == heading]))
            for heading, part in shown.groupby("condition", sort=False)
        ]
    legend: list[tuple[Artist, str]] = [*look.legend]
    if len(beside):
        legend.append((hollow(), published.label(beside, context.paper)))
    cells = shown_cells(predicted, shown, marked=True)
    page = lay_out(
        f"Deviation of predictions: {title_of(strategy)}",
        legend,
        sections,
        footer=footer(cells, context, [*_sentences(shown, beside), *note_sentences(cells)]),
        size=_size(look, 1 if look.one_network else len(predictors), sections),
        share_y=True,
    )
    limits = _limits(shown, beside)
    for axes, (groups, printed) in page.facets:
        theirs = Beside(look.places_of(printed), limits[1] - limits[0])
        draw_groups(axes, groups, page.width_mm, "{:+.0f}", theirs)
        draw_beside(axes, theirs, len(look.slots))
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


@dataclass(frozen=True)
class _Look:
    """What stands where: groups on x, slots of a group, and a panel for each predictor.

    Args:
        predictors: in their order.
        networks: in their order.
        slots: datasets, or headings of geometries.
        by_condition: slots are geometries.
    """

    predictors: Sequence[str]
    networks: Sequence[str]
    slots: Sequence[str]
    by_condition: bool

    @classmethod
    def of(cls, shown: pd.DataFrame, predictors: Sequence[str]) -> _Look:
        datasets, conditions = in_dataset_order(shown["dataset"]), unique(shown["condition"])
        by_condition = len(datasets) == 1 and len(conditions) > 1
        slots = conditions if by_condition else datasets
        return cls(predictors, unique(shown["network"]), slots, by_condition)

    @property
    def one_network(self) -> bool:
        return len(self.networks) == 1

    @property
    def labels(self) -> list[str]:
        """Of the groups on x."""
        if self.one_network:
            return list(self.predictors)
        return [network_label(network) for network in self.networks]

    @property
    def legend(self) -> list[tuple[Artist, str]]:
        if self.by_condition:
            looks = (condition_look(place) for place in range(len(self.slots)))
            return [
                (patch(_NEUTRAL, one), slot) for one, slot in zip(looks, self.slots, strict=True)
            ]
        return [(patch(_NEUTRAL, dataset_look(slot)), dataset_label(slot)) for slot in self.slots]

    def panels(self, part: pd.DataFrame, beside: pd.DataFrame) -> list[Panel]:
        """Each with its groups of bars and its printed rows."""
        groups = {
            name: bar_groups(part[part["predictor"] == name], self.networks, self.slots, _values)
            for name in self.predictors
        }
        if self.one_network:
            each = [Group(name, own[0].bars) for name, own in groups.items()]
            return [Panel(network_label(self.networks[0]), data=(each, beside))]
        return [
            Panel(name, data=(own, beside[beside["predictor"] == name]))
            for name, own in groups.items()
        ]

    def places_of(self, printed: pd.DataFrame) -> dict[tuple[int, int], float]:
        """Per cents of printed rows, by group and slot."""
        on_x = self.predictors if self.one_network else self.networks
        return {
            (
                on_x.index(row.predictor if self.one_network else row.network),
                self.slots.index(row.slot if self.by_condition else row.dataset),
            ): 100 * float(row.signed_error)
            for row in rows_of(printed)
        }


def _size(look: _Look, predictors: int, sections: Sequence[Section]) -> PanelSize:
    """Put all predictors side by side if their bars allow it."""
    labels, members = look.labels, len(look.slots)
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
