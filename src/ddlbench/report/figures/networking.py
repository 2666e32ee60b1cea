"""Throughput over latency, bandwidth and loss of the links (Cheng et al., Figures 2 to 10).

There is one figure for each quantity. The other two quantities have the value that most cells have
(the base of the study), so a line varies one quantity only. A section is a dataset and geometry, a
panel per network; colours are strategies (lighter shades are further variants), line styles batch
sizes. A panel says "not run" at a condition without a cell; lines end at the last measured one. A
red cross is a cell that did not end in its time, as in the study's figures.

The study prints rates, and of packet loss the share of the throughput that a per cent costs. Such a
share is drawn of our own rate without loss.

Source of the published numbers: Cheng, Liu, Kurihana, "Performance Evaluation of Distributed Deep
Learning: A Networking Perspective"; TensorFlow with one parameter server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlbench.experiment.config import Paper
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.report import published
from ddlbench.report.bars import draw_cross, draw_point, draw_published, hollow, write_instead
from ddlbench.report.curves import DASHES, log_limits, log_y, ticks_at, whisker
from ddlbench.report.footer import Context, footer, interval_sentence, reasons_by_mark
from ddlbench.report.labels import StrategyLook, status_mark, strategy_look, variant_labels
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, nothing_to_show, unique
from ddlbench.report.style import GREY, shade
from ddlbench.report.tables import Tables, rows_of

_CITATION = "Cheng et al."
_CONDITION = ("link_latency_s", "link_bits_per_s", "link_loss")
_BESIDE = {"link_congestion_control": "{}", "link_mtu_bytes": "MTU {:g}"}
_UNLIMITED = math.inf
_ABOVE = 2.0  # the axis ends so many times above the largest rate
_SIX_DIGITS = 1e5
NOT_ENDED = "#C00000"  # the study's mark of a run that was stopped


@dataclass(frozen=True)
class Quantity:
    """What the x axis shows."""

    column: str
    title: str
    label: str
    scale: float
    published: str
    word: str
    unit: str


QUANTITIES = {
    "latency": Quantity(
        "link_latency_s", "Throughput by latency", "One-way delay (ms)", 1e3, "latency_ms",
        "delay", "ms one way",
    ),
    "bandwidth": Quantity(
        "link_bits_per_s", "Throughput by bandwidth", "Rate (Mbit/s)", 1e-6,
        "bandwidth_mbit_per_s", "rate", "Mbit/s",
    ),
    "packet_loss": Quantity(
        "link_loss", "Throughput by packet loss", "Packets lost (%)", 1e2, "loss_percent",
        "loss", "%",
    ),
}  # fmt: skip
TABLE = [
    "quantity", "value", "dataset", "network", "strategy", "variant", "geometry", "batch_size",
    "fabric", *_CONDITION, *_BESIDE, "samples_per_s", "samples_low_per_s", "samples_high_per_s",
    "share_of_best", "mark", "reason", "source", "figure",
]  # fmt: skip


def one_thing_changes(summary: pd.DataFrame, column: str) -> pd.DataFrame:
    """Cells over emulated links whose other quantities have their most frequent values.

    The result is empty unless ``column`` has two values or more.
    """
    emulated = summary[summary["link_latency_s"].notna()].copy()
    if emulated.empty:
        return emulated
    emulated["link_bits_per_s"] = emulated["link_bits_per_s"].fillna(_UNLIMITED)
    kept = pd.Series(True, index=emulated.index)
    for other in _CONDITION:
        if other != column:
            kept &= emulated[other] == emulated[other].mode().iloc[0]
    chosen = emulated[kept]
    return chosen if chosen[column].nunique() > 1 else chosen.iloc[:0]


def _draw(name: str, tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    quantity = QUANTITIES[name]
    shown = one_thing_changes(tables.summary, quantity.column).reset_index(drop=True)
    if shown.empty:
        reason = "No two cells whose links differ in this alone."
        return nothing_to_show(quantity.title, reason, footer(tables.summary, context, []), TABLE)
    shown["value"] = shown[quantity.column] * quantity.scale
    # Links without a limit lie beyond the fastest limited link.
    fastest = max(filter(math.isfinite, shown["value"]), default=1.0)
    shown["x"] = shown["value"].replace(math.inf, 2.0 * fastest)
    shown["mark"] = [status_mark(status) for status in shown["status"]]
    shown["variant"] = _variants(shown)
    batches = sorted({int(batch) for batch in shown["batch_size"]})
    looks = _looks(shown)
    rates = _published(quantity, context.paper)
    sections = _sections(shown, rates, batches)
    beside = pd.concat([panel.data[1] for section in sections for panel in section.panels])
    page = lay_out(
        quantity.title,
        _legend(looks, batches, beside, shown),
        sections,
        footer=footer(shown, context, _sentences(shown, quantity)),
        size=PanelSize(
            min_width=36.0,
            height=30.0,
            left=16.0 if shown["samples_per_s"].max() * _ABOVE >= _SIX_DIGITS else 13.0,
            between=3.0,
            max_columns=4,
        ),
        share_y=True,
    )
    ticks, of_server = _ticks(shown), strategy_look("parameter-server").colour
    for section, axes_row in zip(sections, page.axes, strict=True):
        content = [panel.data for panel in section.panels]
        measured, printed = (pd.concat(parts) for parts in zip(*content, strict=True))
        good = measured[measured["mark"] == ""]
        ends = [good[f"samples_{end}per_s"].dropna() for end in ("", "low_", "high_")]
        limits = log_limits(pd.concat([*ends, printed["samples_per_s"]]), 2.5, _ABOVE)
        for axes, (here, theirs) in zip(axes_row, content, strict=True):
            _frame(axes, quantity, ticks, limits)
            _draw_lines(axes, here, looks, batches)
            for x in set(ticks) - set(here["x"]):
                write_instead(axes, x, Status.NOT_RUN.value, gid=Status.NOT_RUN.value)
            for row in rows_of(theirs):
                draw_published(axes, (row.value, row.samples_per_s), hollow(of_server, "o"))
    page.label_rows("Samples/s", labelpad=1)
    return page.figure, _table(shown, rates, name)


def _sections(shown: pd.DataFrame, printed: pd.DataFrame, batches: list[int]) -> list[Section]:
    """A section for each dataset and geometry; a panel's data are our rows and published rows."""
    geometries = unique(shown.sort_values("workers")["geometry"])
    sections = []
    for dataset in in_dataset_order(shown["dataset"]):
        for geometry in geometries:
            part = shown[(shown["dataset"] == dataset) & (shown["geometry"] == geometry)]
            if part.empty:
                continue
            panels = []
            for network in unique(part["network"]):
                theirs = _published_there(printed, (dataset, geometry, network), batches)
                of_network = part[part["network"] == network]
                theirs = _rates(theirs, of_network)
                panels.append(Panel(network_label(network), data=(of_network, theirs)))
            heading = f"{dataset_label(dataset)}, {geometry} (nodes x devices)"
            sections.append(Section(heading, panels))
    return sections


draw_latency: Callable[..., tuple[Figure, pd.DataFrame]] = partial(_draw, "latency")
draw_bandwidth: Callable[..., tuple[Figure, pd.DataFrame]] = partial(_draw, "bandwidth")
draw_loss: Callable[..., tuple[Figure, pd.DataFrame]] = partial(_draw, "packet_loss")


def _variants(shown: pd.DataFrame) -> list[str]:
    """Each cell's variant, and the further properties of its links where cells differ in them."""
    columns = [list(variant_labels(shown, without=("fabric", "batch_size")))]
    for column, words in _BESIDE.items():
        values = list(shown[column])
        if len(set(values)) > 1:
            columns.append([words.format(value) for value in values])
    return [", ".join(filter(None, parts)) for parts in zip(*columns, strict=True)]


def _looks(shown: pd.DataFrame) -> dict[tuple[str, str], StrategyLook]:
    """The look of each strategy and variant: later variants of a strategy are lighter."""
    looks: dict[tuple[str, str], StrategyLook] = {}
    for strategy, of_strategy in shown.groupby("strategy", sort=False):
        look, variants = strategy_look(str(strategy)), unique(of_strategy["variant"])
        for place, variant in enumerate(variants):
            lighter = shade(look.colour, 0.7 * place / len(variants))
            looks[str(strategy), variant] = StrategyLook(lighter, look.marker)
    return looks


def _legend(
    looks: dict[tuple[str, str], StrategyLook],
    batches: list[int],
    beside: pd.DataFrame,
    shown: pd.DataFrame,
) -> list[tuple[Any, str]]:
    entries: list[tuple[Any, str]] = []
    for (strategy, variant), look in looks.items():
        handle = Line2D([], [], color=look.colour, marker=look.marker)
        entries.append((handle, strategy_label(strategy, variant)))
    if len(batches) > 1:
        for place, batch in enumerate(batches):
            line = Line2D([], [], color=GREY, linestyle=DASHES[place % len(DASHES)])
            entries.append((line, f"batch {batch}"))
    if (shown["status"] == Status.TIMEOUT).any():
        cross = Line2D([], [], color=NOT_ENDED, marker="x", linestyle="none")
        entries.append((cross, "did not end in its time"))
    if len(beside):
        places = ", ".join(dict.fromkeys(beside["where"]))
        shares = "; its share of ours without loss" if beside["share"].notna().any() else ""
        entries.append((hollow(GREY, "o"), f"{_CITATION}, {places} (other hardware{shares})"))
    return entries


def _sentences(shown: pd.DataFrame, quantity: Quantity) -> list[str]:
    others = []
    for other in QUANTITIES.values():
        if other != quantity and len(shown):
            value = float(shown[other.column].iloc[0]) * other.scale
            known = f"{other.word} {value:g} {other.unit}"
            others.append(known if math.isfinite(value) else f"no {other.word} limit")
    missing = reasons_by_mark(shown, lambda strategy, _: strategy_label(strategy))
    return [
        f"Links otherwise: {', '.join(others)}." if others else "",
        interval_sentence(shown, ratio=False),
        f"Crosses stand for cells without a rate ({missing})." if missing else "",
    ]


def _ticks(shown: pd.DataFrame) -> dict[float, str]:
    """Label of each place on the x axis."""
    labels = {
        float(x): f"{value:g}" if math.isfinite(value) else "no limit"
        for x, value in zip(shown["x"], shown["value"], strict=True)
    }
    return dict(sorted(labels.items()))


def _frame(
    axes: Axes, quantity: Quantity, ticks: dict[float, str], limits: tuple[float, float]
) -> None:
    log_y(axes, limits, 6)
    places = list(ticks)
    linear = 0 in ticks
    smallest = next((place for place in places if place > 0), 1.0)
    if linear:
        axes.set_xscale("symlog", linthresh=smallest)
    else:
        axes.set_xscale("log")
    span = places[-1] / max(places[0], smallest / 2)
    margin = max(span**0.1, 1.15) if linear else span**0.1  # marks stand right of the last point
    axes.set_xlim(-0.1 * smallest if linear else places[0] / span**0.1, places[-1] * margin)
    ticks_at(axes.xaxis, places, lambda x, _: ticks.get(float(x), f"{x:g}"))
    axes.set_xlabel(quantity.label, labelpad=1)


def _draw_lines(
    axes: Axes,
    measured: pd.DataFrame,
    looks: dict[tuple[str, str], StrategyLook],
    batches: list[int],
) -> None:
    crosses: dict[float, int] = {}
    for key, cells in measured.groupby(["strategy", "variant", "batch_size"], sort=False):
        strategy, variant, batch = map(str, key)
        look = looks[strategy, variant]
        good = cells[cells["mark"] == ""].sort_values("x")
        axes.plot(
            good["x"], good["samples_per_s"], color=look.colour,
            linestyle=DASHES[batches.index(int(batch)) % len(DASHES)], gid="line",
        )  # fmt: skip
        for row in rows_of(good):
            ends = [row.samples_low_per_s, row.samples_high_per_s]
            whisker(axes, row.x, ends, look.colour, gid="whisker")
            draw_point(axes, (row.x, row.samples_per_s), look, row, size=3.5)
        for row in rows_of(cells[cells["mark"] != ""]):
            place = crosses.get(row.x, 0)
            crosses[row.x] = place + 1
            ended = row.status != Status.TIMEOUT
            draw_cross(axes, row.x, look.colour if ended else NOT_ENDED, place)


def _published(quantity: Quantity, paper: Paper | None) -> pd.DataFrame:
    """The study's rates for this quantity; of loss the ``share`` of the rate without it."""
    rows = published.throughputs()
    rows = rows[rows["quantity"] == quantity.published].assign(share=math.nan)
    if quantity.published == "loss_percent":
        shares = published.loss_shares()
        rows = shares.assign(samples_per_s=math.nan, batch_size=math.nan, rate_of="all workers")
    return published.chosen(rows.assign(value=rows[quantity.published]), paper)


def _rates(theirs: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """A rate for each share: of every line of ours that was measured without loss."""
    servers = measured[(measured["strategy"] == "parameter-server") & (measured["link_loss"] == 0)]
    bases = servers.loc[servers["mark"] == "", "samples_per_s"]
    shares = theirs[theirs["share"].notna()]
    made = [shares.assign(samples_per_s=shares["share"] * base) for base in bases]
    return pd.concat([theirs[theirs["share"].isna()], *made])


def _published_there(
    theirs: pd.DataFrame, where: tuple[str, str, str], batches: list[int]
) -> pd.DataFrame:
    """The published rows of one panel, without rates of one worker of several."""
    dataset, geometry, network = where
    return theirs[
        _names(theirs["dataset"], dataset)
        & (theirs["geometry"] == geometry)
        & _names(theirs["network"], network)
        & (theirs["batch_size"].isin(batches) | theirs["share"].notna())
        & (theirs["rate_of"] == "all workers")
    ]


def _names(column: pd.Series, name: str) -> pd.Series[bool]:
    """Whether each entry, such as ``resnet18|resnet50``, names it."""
    return column.map(lambda names: name in str(names).split("|")).astype(bool)


def _table(shown: pd.DataFrame, printed: pd.DataFrame, name: str) -> pd.DataFrame:
    keys = ["dataset", "network", "strategy", "variant", "geometry", "batch_size"]
    best = shown.groupby(keys)["samples_per_s"].transform("max")
    ours = shown.assign(
        quantity=name,
        share_of_best=shown["samples_per_s"] / best,
        source="measured here",
        figure="",
    )
    theirs = printed.assign(
        quantity=name,
        strategy="parameter-server",
        variant="",
        mark="",
        share_of_best=printed["share"],
        reason=printed["how"].where(
            printed["rate_of"] == "all workers", printed["how"] + "; not drawn"
        ),
        source=[f"{_CITATION}, {where}" for where in printed["where"]],
    )
    columns = [c for c in TABLE if c in theirs.columns]
    table = pd.concat([ours[TABLE], theirs[columns]], ignore_index=True)[TABLE]
    return table.replace({name: {math.inf: math.nan} for name in ("value", "link_bits_per_s")})
