"""Speed-up over the sequential base: as bars (DDLBench, Figure 4), and over workers (5 and 6).

A line over workers is a strategy, or a strategy and site where several sites are compared. Each
speed-up is over the sequential training of its own site, so a faster site may have the smaller
speed-up. The footer and the table give the absolute speed of each base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted, ratio_text
from ddlbench.common.statistics import grouped
from ddlbench.experiment.registry import BASE
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.report import published
from ddlbench.report.bars import (
    Beside,
    Group,
    bar_groups,
    draw_beside,
    draw_cross,
    draw_groups,
    draw_point,
    draw_published,
    hollow,
    message,
    panel_size,
    parts_of_page,
    patch,
    top_of,
    widest_labels,
    write_instead,
)
from ddlbench.report.curves import DASHES, log_y, places, sample, ticks_at, whisker
from ddlbench.report.footer import (
    Context,
    as_sentence,
    common_notes,
    footer,
    interval_sentence,
    marks,
    origin,
    reasons_by_mark,
    sign_of_all,
)
from ddlbench.report.labels import (
    DatasetLook,
    common_workers,
    dataset_look,
    speedup_mark,
    strategy_look,
    variant_labels,
)
from ddlbench.report.layout import Panel, PanelSize, Section, dataset_sections, lay_out, unique
from ddlbench.report.style import GREY, LINE_MM, MM, REFERENCE, text_width_mm
from ddlbench.report.tables import Tables, rows_of

_NEUTRAL = "#444444"
_LEFT_MM, _RIGHT_MM = 9.5, 8.5  # beside axes: ticks of three digits, names of lines
_LOG_FROM = 100.0
_MOST_CROSSES = 5
_FEW_BASES = 6
_BARS_TABLE = [
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
    parts = parts_of_page(unique(shown["group"]), len(datasets), _LEFT_MM + _RIGHT_MM)
    for geometry, part in geometries:
        theirs = printed[printed["geometry"] == geometry]
        workers = counted(int(part["workers"].max()), "worker")
        heading = f"{workers} ({geometry})" if len(geometries) > 1 else ""
        if len(networks) == 1:
            sections.append(Section(heading, _panels_of_one(part, parts, looks, theirs)))
        else:
            beside = theirs.assign(place=theirs["network"].map(list(networks).index))
            panels = _panels(part, networks, looks, everywhere, beside)
            sections.append(Section(heading, panels))
    if len(networks) == 1:
        everywhere = [*everywhere, *_notes_by_strategy(shown, everywhere)]
        labels = widest_labels([[strategy_label(*name) for name in names] for names in parts])
    panels_of = [len(section.panels) for section in sections]
    legend: list[tuple[Artist, str]] = [
        (patch(_NEUTRAL, look), dataset_label(name)) for name, look in looks.items()
    ]
    if len(printed):
        legend.append((hollow(), published.label(printed, context.paper)))
    emulated = ", emulated" if shown["emulated"].any() else ""
    scales = [_scale(section) for section in sections]
    if logarithmic := any(scale.height > _LOG_FROM for scale in scales):
        scales = [replace(scale, logarithmic=True) for scale in scales]
    digits = max(len(f"{scale.height:.0f}") for scale in scales)
    left = _LEFT_MM + max(0.0, text_width_mm("0" * digits) - text_width_mm("000"))
    page = lay_out(
        f"Speed-up {common_workers(shown['workers']) or 'by number of workers'}{emulated}",
        legend,
        sections,
        footer=footer(
            shown,
            context,
            [
                _base_sentence(shown, tables.summary),
                "Hollow: published, of another machine and its batches." if len(printed) else "",
                interval_sentence(shown, ratio=True),
                *map(as_sentence, everywhere),
            ],
        ),
        size=panel_size(labels, len(datasets), panels_of, left=left, between=3.0, right=_RIGHT_MM),
        share_y=True,
    )
    for scale, section, axes_row in zip(scales, sections, page.axes, strict=True):
        content = [panel.data for panel in section.panels]
        for axes, (part, groups, beside) in zip(axes_row, content, strict=True):
            values = {
                (int(row.place), datasets.index(row.dataset)): float(row.speedup)
                for row in rows_of(beside)
            }
            hollows = Beside(values, scale.height)
            _fill(axes, part, groups, page.width_mm, hollows)
            draw_beside(axes, hollows, len(datasets))
            _bounds(axes, scale, labelled=axes in page.last_in_row)
    page.label_rows(f"Speed-up{' (log)' if logarithmic else ''}")
    return page.figure, published.below(shown, printed, _BARS_TABLE)


def _panels(
    part: pd.DataFrame,
    networks: dict[str, str],
    looks: dict[str, DatasetLook],
    everywhere: list[str],
    printed: pd.DataFrame,
) -> list[Panel]:
    """One panel for each strategy and variant of a geometry."""
    panels = []
    for (strategy, variant), of_strategy in part.groupby(["strategy", "variant"], sort=False):
        note = "; ".join(n for n in common_notes(of_strategy) if n not in everywhere)
        theirs = printed[printed["strategy"] == strategy]
        sign = sign_of_all(of_strategy)  # of the strategy, so at its name
        data = (
            of_strategy,
            bar_groups(of_strategy, networks, looks, _values, without=sign),
            theirs,
        )
        title = f"{strategy_label(str(strategy), str(variant))} {sign}".rstrip()
        panels.append(Panel(title, note, data))
    return panels


def _panels_of_one(
    part: pd.DataFrame,
    names_of_panels: list[list[tuple[str, str]]],
    looks: dict[str, DatasetLook],
    printed: pd.DataFrame,
) -> list[Panel]:
    """The panels of the only network: strategies and variants on x, as many as fit the page."""
    if part["variant"].nunique() > 1:  # a published value is of no variant
        printed = printed.iloc[:0]
    panels: list[Panel] = []
    for names in names_of_panels:
        of_panel = part[part["group"].isin(names)]
        labels = {name: strategy_label(*name) for name in unique(of_panel["group"])}
        if not labels:
            continue
        places = {strategy: place for place, (strategy, _) in enumerate(labels)}
        theirs = printed.assign(place=printed["strategy"].map(places)).dropna(subset=["place"])
        groups = bar_groups(of_panel, labels, looks, _values, group="group")
        title = network_label(part["network"].iloc[0]) + (", continued" if panels else "")
        panels.append(Panel(title, "", (of_panel, groups, theirs)))
    return panels


def _notes_by_strategy(shown: pd.DataFrame, everywhere: list[str]) -> list[str]:
    """Notes that not all strategies share, each with the strategies that it is of."""
    notes = grouped(
        (note, strategy_label(str(strategy)))
        for strategy, of_strategy in shown.groupby("strategy", sort=False)
        for note in common_notes(of_strategy)
        if note not in everywhere
    )
    return [f"{', '.join(labels)}: {note}" for note, labels in notes.items()]


def _values(row: Any) -> tuple[float, float, float]:
    return row.speedup, row.speedup_low, row.speedup_high


def _fill(
    axes: Axes, part: pd.DataFrame, groups: list[Group], width_mm: float, beside: Beside
) -> None:
    reasons = set(zip(part["mark"], part["reason"], strict=True))
    mark, reason = next(iter(reasons))
    if len(reasons) == 1 and mark and len(part) > 1:
        empty = [Group(group.label, [None] * len(group.bars)) for group in groups]
        draw_groups(axes, empty, width_mm, ratio_text)
        message(axes, f"{mark}: {reason}" if reason else mark, width_mm)
    else:
        draw_groups(axes, groups, width_mm, ratio_text, beside)


@dataclass(frozen=True)
class _Scale:
    """The y axis of a section: its highest bar, and linear speed-up unless far above.

    A linear axis would not show which side of the base a low bar is on where others are over
    :data:`_LOG_FROM`; all sections are then logarithmic.
    """

    top: float
    least: float
    linear: int
    logarithmic: bool = False

    @property
    def near(self) -> bool:
        return self.linear <= 3 * max(self.top, 1.0)

    @property
    def height(self) -> float:
        return 1.14 * max(self.top, self.linear if self.near else 0.0, 1.0)

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the axis."""
        return (min(self.least, 1.0) / 2, 2 * self.height) if self.logarithmic else (0, self.height)


def _scale(section: Section) -> _Scale:
    content = [panel.data for panel in section.panels]
    tops = [top_of(groups) for _, groups, _ in content]
    tops += [float(beside["speedup"].max()) for *_, beside in content if len(beside)]
    values = pd.concat([rows["speedup"] for part, _, beside in content for rows in (part, beside)])
    return _Scale(
        max((t for t in tops if math.isfinite(t)), default=1.0),
        float(values[values > 0].min()),
        max(int(part["workers"].max()) for part, *_ in content),
    )


def _bounds(axes: Axes, scale: _Scale, labelled: bool) -> None:
    """Draw lines at the base and, unless it is far above every bar, at linear speed-up."""
    if scale.logarithmic:
        log_y(axes, scale.ends, 6)
    else:
        axes.set_ylim(*scale.ends)
    axes.axhline(1, color=GREY, linewidth=0.6, zorder=1, gid="base")
    lines = [(1.0, "base")]
    if scale.near and scale.linear > 1:
        axes.axhline(scale.linear, **REFERENCE, zorder=1, gid="linear")
        lines.append((float(scale.linear), "linear"))
    elif scale.linear > 1:
        lines.append((scale.ends[1], f"{scale.linear} ↑"))
    if labelled:
        low, high = (axes.transData.transform((0, y))[1] for y, _ in (lines[0], lines[-1]))
        touching = len(lines) > 1 and high - low < LINE_MM * MM * axes.figure.dpi
        for (y, text), side in zip(lines, ("top", "bottom"), strict=False):
            axes.annotate(
                text, (1, y), xycoords=("axes fraction", "data"), xytext=(2, 0),
                textcoords="offset points", va=side if touching else "center", color=GREY,
                gid="bound",
            )  # fmt: skip


def _base_sentence(shown: pd.DataFrame, summary: pd.DataFrame) -> str:
    there = summary[summary["configuration"].isin(set(shown["base_configuration"]))]
    bases, lacking = (there[there["samples_per_s"].notna() == known] for known in (True, False))
    if not len(bases):
        why = ", ".join(unique(lacking["status"].map(_words))) or "no cell of the matrix"
        return f"Base: sequential training on one device; it has no measurement ({why})."
    rates = bases["samples_per_s"]
    if len(bases) <= _FEW_BASES and not bases.duplicated(["dataset", "network"]).any():
        parts = [
            f"{dataset_label(str(dataset))}: "
            + ", ".join(
                f"{network_label(r.network)} {_rate(r.samples_per_s)}" for r in rows_of(of_dataset)
            )
            for dataset, of_dataset in bases.groupby("dataset", sort=False)
        ]
        text = f"Base: sequential training on one device, samples/s. {'; '.join(parts)}."
    else:
        text = (
            f"Base: sequential training on one device, {_rate(rates.min())} to "
            f"{_rate(rates.max())} samples/s (each in the table beside)."
        )
    return f"{text}{_without_base(lacking)}"


def _without_base(lacking: pd.DataFrame) -> str:
    """Which bases have no measurement, and why."""
    if len(lacking) > _FEW_BASES:
        return f" {len(lacking)} bases have no measurement (see summary.csv)."
    names = (
        f"{network_label(row.network)} on {dataset_label(row.dataset)} ({_words(row.status)})"
        for row in rows_of(lacking)
    )
    return f" No measurement: {', '.join(names)}." if len(lacking) else ""


def _words(status: str) -> str:
    return status.replace("_", " ")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_LINES_TABLE = [
    "dataset", "network", "strategy", "variant", "workers", "geometry", "speedup", "speedup_low",
    "speedup_high", "speedup_n", "base_samples_per_s", "mark", "reason", "stale",
]  # fmt: skip


def draw_scaling(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Sections are datasets, panels networks, lines strategies."""
    shown = without_base(tables.summary)
    shown["line"] = per_node_lines(shown)
    printed = published.speedups_of(shown, context.paper, "thesis/fig3.2")
    sentences = [
        "Base: sequential training on one device (samples/s in the table beside). "
        "Dashed: linear speed-up.",
        "Hollow: published, of another machine." if len(printed) else "",
        interval_sentence(shown, ratio=True),
        missing_sentence(shown),
    ]
    below = footer(shown, context, sentences)
    legend = published.label(printed, context.paper) if len(printed) else ""
    figure = draw_lines(shown, "Speed-up by number of workers", below, printed, legend)
    return figure, published.below(shown[_LINES_TABLE], printed, [*_LINES_TABLE, *published.SOURCE])


def without_base(summary: pd.DataFrame) -> pd.DataFrame:
    """All rows but the base's, with ``variant`` and ``mark`` (why there is no point)."""
    shown = summary.assign(variant=variant_labels(summary))
    shown = shown[shown["strategy"] != BASE].reset_index(drop=True)
    shown["mark"] = [speedup_mark(row, row.speedup) for row in rows_of(shown)]
    return shown


def draw_lines(
    shown: pd.DataFrame,
    title: str,
    below: list[str],
    printed: pd.DataFrame,
    source: str = "",
) -> Figure:
    """Draw ``shown``: cells that share ``strategy`` and ``line`` are one line over workers.

    Published speed-ups, of which ``source`` tells, are hollow.
    """
    names = list(dict.fromkeys(zip(shown["strategy"], shown["line"], strict=True)))
    styles = {name: DASHES[place % len(DASHES)] for name, place in places(names).items()}
    signs = {
        name: sign_of_all(shown[(shown["strategy"] == name[0]) & (shown["line"] == name[1])])
        for name in names
    }
    legend: list[tuple[Artist, str]] = [
        (sample(of, linestyle=styles[of, line]), f"{strategy_label(of, line)} {sign}".rstrip())
        for (of, line), sign in signs.items()
    ]
    if len(printed):
        legend.append((hollow(), source))
    page = lay_out(
        title,
        legend,
        dataset_sections(shown),
        footer=below,
        size=PanelSize(
            min_width=21.0 if shown["network"].nunique() > 4 else 36.0,
            height=27.0,
            left=13.0,  # a tick may be 0.0625
            between=3.0,
            max_columns=6,
        ),
        share_y=True,
    )
    counts = sorted({int(count) for count in shown["workers"]})
    limits = _limits(shown, printed)
    for axes, part in page.facets:
        _frame(axes, counts, limits)
        for place, name in enumerate(names):
            of_line = part[(part["strategy"] == name[0]) & (part["line"] == name[1])]
            shift = 1 + 0.03 * (place - (len(names) - 1) / 2)
            _draw_line(axes, of_line.sort_values("workers"), styles[name], shift, signs[name])
        _draw_crosses(axes, part[part["mark"] != ""])
        _draw_published(axes, part, printed)
        axes.set_xlabel("Workers", labelpad=1)
    page.label_rows("Speed-up")
    return page.figure


def per_node_lines(shown: pd.DataFrame) -> list[str]:
    """Name each cell's line: its variant, and the devices per node if geometries share a count."""
    per_count = shown.groupby("workers")["geometry"].nunique()
    twice = bool((per_count > 1).any())
    return [
        ", ".join(filter(None, [row.variant, f"{row.devices_per_node} a node" if twice else ""]))
        for row in rows_of(shown)
    ]


def _draw_published(axes: Axes, part: pd.DataFrame, printed: pd.DataFrame) -> None:
    """Hollow marks of the panel's dataset and network, in the strategies' colours."""
    first = next(rows_of(part), None)
    if first is None:  # the network is not trained on this dataset
        return
    of_panel = printed[
        (printed["dataset"] == first.dataset) & (printed["network"] == first.network)
    ]
    for row in rows_of(of_panel):
        look = strategy_look(str(row.strategy))
        place = float(row.workers), float(row.speedup)
        draw_published(axes, place, hollow(look.colour, look.marker))


def _limits(shown: pd.DataFrame, printed: pd.DataFrame) -> tuple[float, float]:
    good = shown[shown["mark"] == ""]
    lows = good["speedup_low"].fillna(good["speedup"])
    highs = good["speedup_high"].fillna(good["speedup"])
    low = min([*lows[lows > 0], *printed["speedup"], 1.0])
    high = max([*highs, *printed["speedup"], float(shown["workers"].max())])
    return low / 1.5, high * 1.25


def _frame(axes: Axes, counts: list[int], limits: tuple[float, float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(min(0.8, counts[0] / 1.25), counts[-1] * 1.25)
    axes.set_ylim(*limits)
    ends = axes.get_xlim()
    axes.plot(ends, ends, **REFERENCE, zorder=1, gid="linear")
    axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
    ticks_at(axes.xaxis, sorted({1, *counts}))
    powers = range(math.ceil(math.log2(limits[0])), math.floor(math.log2(limits[1])) + 1)
    every = 1 + len(powers) // 7
    ticks_at(axes.yaxis, [2.0**power for power in powers if power % every == 0])


def _draw_line(axes: Axes, of_line: pd.DataFrame, style: Any, shift: float, sign: str) -> None:
    """Draw a strategy's line; its points are without the sign that stands at its name."""
    if of_line.empty:
        return
    look = strategy_look(str(of_line["strategy"].iloc[0]))
    good = of_line[of_line["mark"] == ""]
    if len(good):
        x = good["workers"].astype(float) * shift
        axes.plot(x, good["speedup"], color=look.colour, linestyle=style, zorder=2, gid="line")
        for place, row in zip(x, rows_of(good), strict=True):
            whisker(axes, place, [row.speedup_low, row.speedup_high], look.colour, zorder=2)
            draw_point(axes, (place, row.speedup), look, row, without=sign)


def _draw_crosses(axes: Axes, missing: pd.DataFrame) -> None:
    """Draw a cross for each missing cell, stacked over its number of workers.

    A higher stack would reach the points: above its first crosses stands how many more there are.
    """
    for _, cells in missing.groupby("workers"):
        few = cells if len(cells) <= _MOST_CROSSES else cells.iloc[: _MOST_CROSSES - 2]
        for place, row in enumerate(rows_of(few)):
            colour = strategy_look(str(row.strategy)).colour
            draw_cross(axes, float(row.workers), colour, place, zorder=3)
        if len(few) < len(cells):
            more = f"+{len(cells) - len(few)}"
            write_instead(axes, few["workers"].iloc[0], more, y=0.06 * len(few) + 0.03)


def missing_sentence(shown: pd.DataFrame) -> str:
    """Say what the crosses stand for, reason by reason; empty without any."""

    def named(strategy: str, rows: pd.DataFrame) -> str:
        *counts, last = (str(int(count)) for count in sorted(set(rows["workers"])))
        named = " and ".join(filter(None, [", ".join(counts), last]))
        return f"{strategy_label(strategy)} on {named}"

    text = reasons_by_mark(shown, named)
    return f"Crosses stand for cells without a point: {text} workers." if text else ""


def draw_sites(
    tables: Mapping[str, Tables], contexts: Mapping[str, Context]
) -> tuple[Figure, pd.DataFrame]:
    """Compare sites; both mappings have a key for each site.

    Raises:
        ConfigError: there is nothing to compare.
    """
    if len(tables) < 2:
        raise ConfigError("one site alone compares with nothing: name another with --also-site")
    parts = []
    for site, of_site in tables.items():
        part = without_base(of_site.summary)
        lines = per_node_lines(part)
        part["line"] = [", ".join(filter(None, [site, line])) for line in lines]
        parts.append(part)
    shown = pd.concat(parts, ignore_index=True)
    below = [
        "Base: each site's own sequential training on one device; dashed: linear speed-up.",
        *_bases(shown),
        interval_sentence(shown, ratio=True),
        missing_sentence(shown),
        *marks(shown),
        *(origin(part, contexts[site]) for site, part in zip(tables, parts, strict=True)),
    ]
    title = "Speed-up by number of workers, site by site"
    figure = draw_lines(shown, title, [*filter(None, below)], printed=shown.iloc[:0])
    return figure, shown[["site", *_LINES_TABLE]]


def _bases(shown: pd.DataFrame) -> list[str]:
    """Absolute speed of the bases, which speed-ups hide."""
    known = shown[shown["base_samples_per_s"].notna()]
    speeds = []
    for (dataset, network), part in known.groupby(["dataset", "network"], sort=False):
        each = ", ".join(
            f"{row.base_samples_per_s:.3g} on {row.site}"
            for row in rows_of(part.drop_duplicates("site"))
        )
        speeds.append(f"{network_label(str(network))} on {dataset_label(str(dataset))} {each}")
    return [f"Base in samples/s: {'; '.join(speeds)}."] if speeds else []
