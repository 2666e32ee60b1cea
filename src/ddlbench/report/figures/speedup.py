"""Speed-up of every strategy over the sequential base (DDLBench 2020, Figure 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.report import published
from ddlbench.report.bars import (
    Beside,
    Group,
    bar_groups,
    draw_beside,
    draw_groups,
    hollow,
    message,
    panel_size,
    patch,
    top_of,
)
from ddlbench.report.figures.scaling import without_base
from ddlbench.report.footer import (
    Context,
    as_sentence,
    common_notes,
    footer,
    interval_sentence,
    sign_of_all,
)
from ddlbench.report.labels import common_workers, workers_label
from ddlbench.report.layout import Panel, Section, lay_out, unique
from ddlbench.report.looks import DatasetLook, dataset_look
from ddlbench.report.style import GREY, REFERENCE
from ddlbench.report.tables import Tables, rows_of

_NEUTRAL = "#444444"
_FEW_BASES = 6
_TABLE = [
    "geometry", "workers", "strategy", "variant", "network", "dataset", "speedup", "speedup_low",
    "speedup_high", "speedup_n", "samples_per_s", "base_samples_per_s", "mark", "reason", "stale",
    "noisy", *published.SOURCE,
]  # fmt: skip


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Sections are geometries, panels strategies; networks on x, datasets as shades.

    With a single network, strategies are on x: a panel for each would hold one bar. Hollow marks
    are the bars of the published figure for the same strategy, network, dataset and geometry.
    """
    shown = without_base(tables.summary)
    printed = published.speedups_of(shown, context.paper, "thesis/fig3.1")
    shown["group"] = list(zip(shown["strategy"], shown["variant"], strict=True))
    datasets = in_dataset_order(shown["dataset"])
    looks = {dataset: dataset_look(dataset) for dataset in datasets}
    networks = {network: network_label(network) for network in unique(shown["network"])}
    everywhere = common_notes(shown) if shown["strategy"].nunique() > 1 else []
    geometries = list(shown.groupby("geometry", sort=False))
    sections = []
    labels = list(networks.values())
    for geometry, part in geometries:
        theirs = printed[printed["geometry"] == geometry]
        workers = workers_label(int(part["workers"].max()))
        heading = f"{workers} ({geometry})" if len(geometries) > 1 else ""
        if len(networks) == 1:
            own = {name: strategy_label(*name) for name in unique(part["group"])}
            groups = bar_groups(part, own, looks, _values, group="group")
            names = list(dict.fromkeys(part["strategy"]))
            beside = theirs.assign(place=theirs["strategy"].map(names.index))
            if part["variant"].nunique() > 1:  # a group is a strategy and a variant
                beside = beside.iloc[:0]
            sections.append(Section(heading, [Panel(labels[0], "", (part, groups, beside))]))
        else:
            beside = theirs.assign(place=theirs["network"].map(list(networks).index))
            panels = _panels(part, networks, looks, everywhere, beside)
            sections.append(Section(heading, panels))
    if len(networks) == 1:
        everywhere = [*everywhere, *_notes_by_strategy(shown, everywhere)]
        labels = [strategy_label(*name) for name in unique(shown["group"])]
    counted = [len(section.panels) for section in sections]
    legend: list[tuple[Artist, str]] = [
        (patch(_NEUTRAL, look), dataset_label(name)) for name, look in looks.items()
    ]
    if len(printed):
        legend.append((hollow(), published.label(printed, context.paper)))
    emulated = ", emulated" if shown["emulated"].any() else ""
    page = lay_out(
        f"Speed-up {common_workers(shown['workers']) or 'by number of workers'}{emulated}",
        legend,
        sections,
        footer=footer(shown, context, _sentences(shown, tables.summary, everywhere, printed)),
        size=panel_size(labels, len(datasets), counted, left=9.5, between=3.0, right=8.5),
        share_y=True,
    )
    for section, axes_row in zip(sections, page.axes, strict=True):
        content = [panel.data for panel in section.panels]
        tops = [top_of(groups) for _, groups, _ in content]
        tops += [float(beside["speedup"].max()) for *_, beside in content if len(beside)]
        top = max((t for t in tops if math.isfinite(t)), default=1.0)
        scale = _Scale(top, int(content[0][0]["workers"].max()))
        for axes, (part, groups, beside) in zip(axes_row, content, strict=True):
            values = {
                (int(row.place), datasets.index(row.dataset)): float(row.speedup)
                for row in rows_of(beside)
            }
            hollows = Beside(values, scale.height)
            _fill(axes, part, groups, page.width_mm, hollows)
            draw_beside(axes, hollows, len(datasets))
            _bounds(axes, scale, labelled=axes in page.last_in_row)
    page.label_rows("Speed-up")
    return page.figure, published.below(shown, printed, _TABLE)


def _panels(
    part: pd.DataFrame,
    networks: dict[str, str],
    looks: dict[str, DatasetLook],
    everywhere: list[str],
    printed: pd.DataFrame,
) -> list[Panel]:
    """One panel for each strategy and variant of a geometry."""
    panels = []
    for (strategy, variant), own in part.groupby(["strategy", "variant"], sort=False):
        note = "; ".join(n for n in common_notes(own) if n not in everywhere)
        theirs = printed[printed["strategy"] == strategy]
        sign = sign_of_all(own)  # of the strategy, so at its name
        data = (own, bar_groups(own, networks, looks, _values, without=sign), theirs)
        title = f"{strategy_label(str(strategy), str(variant))} {sign}".rstrip()
        panels.append(Panel(title, note, data))
    return panels


def _notes_by_strategy(shown: pd.DataFrame, everywhere: list[str]) -> list[str]:
    """Notes that not all strategies share, each with the strategies that it is of."""
    of: dict[str, list[str]] = {}
    for strategy, own in shown.groupby("strategy", sort=False):
        for note in common_notes(own):
            if note not in everywhere:
                of.setdefault(note, []).append(strategy_label(str(strategy)))
    return [f"{', '.join(labels)}: {note}" for note, labels in of.items()]


def _values(row: Any) -> tuple[float, float, float]:
    return row.speedup, row.speedup_low, row.speedup_high


def _fill(
    axes: Axes, part: pd.DataFrame, groups: list[Group], width_mm: float, beside: Beside
) -> None:
    reasons = set(zip(part["mark"], part["reason"], strict=True))
    mark, reason = next(iter(reasons))
    if len(reasons) == 1 and mark and len(part) > 1:
        empty = [Group(group.label, [None] * len(group.bars)) for group in groups]
        draw_groups(axes, empty, width_mm, "{:.2f}")
        message(axes, f"{mark}: {reason}" if reason else mark, width_mm)
    else:
        draw_groups(axes, groups, width_mm, "{:.2f}", beside)


@dataclass(frozen=True)
class _Scale:
    """The y axis of a section: its highest bar, and linear speed-up unless far above."""

    top: float
    linear: int

    @property
    def near(self) -> bool:
        return self.linear <= 3 * max(self.top, 1.0)

    @property
    def height(self) -> float:
        return 1.14 * max(self.top, self.linear if self.near else 0.0, 1.0)


def _bounds(axes: Axes, scale: _Scale, labelled: bool) -> None:
    """Draw lines at the base and, unless it is far above every bar, at linear speed-up."""
    axes.set_ylim(0, scale.height)
    axes.axhline(1, color=GREY, linewidth=0.6, zorder=1, gid="base")
    lines = [(1.0, "base")]
    if scale.near and scale.linear > 1:
        axes.axhline(scale.linear, **REFERENCE, zorder=1, gid="linear")
        lines.append((float(scale.linear), "linear"))
    elif scale.linear > 1:
        lines.append((scale.height, f"{scale.linear} ↑"))
    if labelled:
        for y, text in lines:
            axes.annotate(
                text, (1, y), xycoords=("axes fraction", "data"), xytext=(2, 0),
                textcoords="offset points", va="center", color=GREY, gid="bound",
            )  # fmt: skip


def _sentences(
    shown: pd.DataFrame, summary: pd.DataFrame, notes: list[str], printed: pd.DataFrame
) -> list[str]:
    theirs = "Hollow: published, of another machine and its batches." if len(printed) else ""
    return [
        _base_sentence(shown, summary),
        *filter(None, [theirs]),
        *filter(None, [interval_sentence(shown, ratio=True)]),
        *map(as_sentence, notes),
    ]


def _base_sentence(shown: pd.DataFrame, summary: pd.DataFrame) -> str:
    bases = summary[
        summary["configuration"].isin(set(shown["base_configuration"]))
        & summary["samples_per_s"].notna()
    ]
    if not len(bases):
        return "Base: sequential training on one device; it has not been measured."
    rates = bases["samples_per_s"]
    if len(bases) <= _FEW_BASES:
        parts = [
            f"{dataset_label(str(dataset))}: "
            + ", ".join(
                f"{network_label(r.network)} {_rate(r.samples_per_s)}" for r in rows_of(own)
            )
            for dataset, own in bases.groupby("dataset", sort=False)
        ]
        return f"Base: sequential training on one device, samples/s. {'; '.join(parts)}."
    return (
        f"Base: sequential training on one device, {_rate(rates.min())} to "
        f"{_rate(rates.max())} samples/s (each in the table beside)."
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
