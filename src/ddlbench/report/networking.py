"""Throughput against latency, bandwidth and loss of the links: Figures 2 to 10 of Cheng et al.

One figure a quantity. The other two keep the value that most cells have (the base of the study),
so a line changes one thing. A section is a dataset and a geometry, a panel a network; colours are
strategies, line styles batch sizes. What was not run is not drawn, and nothing is carried beyond
the conditions that were measured.

Source of the numbers beside: Cheng, Liu, Kurihana, "Performance Evaluation of Distributed Deep
Learning: A Networking Perspective"; TensorFlow with one parameter server.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ddlbench.report.colours import strategy_look
from ddlbench.report.footer import Context, footer
from ddlbench.report.labels import (
    STATUS_MARKS,
    dataset_label,
    in_dataset_order,
    network_label,
    strategy_label,
)
from ddlbench.report.nothing import nothing_to_show
from ddlbench.report.page import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import GREY
from ddlbench.report.tables import Tables, rows_of

__all__ = ["QUANTITIES", "draw_bandwidth", "draw_latency", "draw_loss", "one_thing_changes"]

_CITATION = "Cheng et al."
_CONDITION = ("link_latency_s", "link_bits_per_s", "link_loss")
_UNLIMITED = math.inf


@dataclass(frozen=True)
class Quantity:
    """What the x axis shows."""

    column: str
    title: str
    label: str
    scale: float
    published: str


QUANTITIES = {
    "latency": Quantity(
        "link_latency_s", "Throughput by latency", "One-way delay (ms)", 1e3, "latency_ms"
    ),
    "bandwidth": Quantity(
        "link_bits_per_s", "Throughput by bandwidth", "Rate (Mbit/s)", 1e-6, "bandwidth_mbit_per_s"
    ),
    "packet_loss": Quantity(
        "link_loss", "Throughput by packet loss", "Packets lost (%)", 1e2, "loss_percent"
    ),
}
TABLE = [
    "quantity", "value", "dataset", "network", "strategy", "options", "geometry", "batch_size",
    *_CONDITION, "samples_per_s", "samples_low_per_s", "samples_high_per_s", "share_of_best",
    "mark", "reason", "source",
]  # fmt: skip


def one_thing_changes(summary: pd.DataFrame, column: str) -> pd.DataFrame:
    """Cells whose links differ from the study's base in ``column`` at most.

    The base is the most frequent value of each other quantity among cells over emulated links.
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
        why = "No two cells whose links differ in this alone."
        below = footer(tables.summary, context, [])
        return nothing_to_show(quantity.title, why, below), pd.DataFrame(columns=TABLE)
    shown["value"] = shown[quantity.column] * quantity.scale
    shown["mark"] = [
        "" if status == "ok" else STATUS_MARKS.get(status, status) for status in shown["status"]
    ]
    datasets = in_dataset_order(list(dict.fromkeys(shown["dataset"])))
    places = [
        (dataset, geometry)
        for dataset in datasets
        for geometry in dict.fromkeys(shown.sort_values("workers")["geometry"])
        if ((shown["dataset"] == dataset) & (shown["geometry"] == geometry)).any()
    ]
    networks = list(dict.fromkeys(shown["network"]))
    batches = sorted({int(batch) for batch in shown["batch_size"]})
    strategies = list(dict.fromkeys(shown["strategy"]))
    published = _published(quantity)
    page = lay_out(
        quantity.title,
        _legend(strategies, batches, any_published=not published.empty),
        [
            Section(
                f"{dataset_label(d)}, {g} (nodes x devices)",
                [Panel(network_label(n)) for n in networks],
            )
            for d, g in places
        ],
        footer=footer(shown, context, _sentences(shown, quantity)),
        size=PanelSize(
            min_width=36.0, height=30.0, left=13.0, between=3.0, right=2.0,
            bottom=lambda _: 8.0, max_columns=4,
        ),
        share_y=True,
    )  # fmt: skip
    values = sorted(set(shown["value"]))
    for (dataset, geometry), axes_row in zip(places, page.axes, strict=True):
        part = shown[(shown["dataset"] == dataset) & (shown["geometry"] == geometry)]
        limits = _limits(part)
        for network, axes in zip(networks, axes_row, strict=True):
            own = part[part["network"] == network]
            _frame(axes, quantity, values, limits)
            _draw_lines(axes, own, batches)
            _draw_published(axes, published, (dataset, geometry, network), batches)
            if axes in page.first_in_row:
                axes.set_ylabel("Samples/s", labelpad=1)
    return page.figure, _table(shown, published, name)


draw_latency: Callable[..., tuple[Figure, pd.DataFrame]] = partial(_draw, "latency")
draw_bandwidth: Callable[..., tuple[Figure, pd.DataFrame]] = partial(_draw, "bandwidth")
draw_loss: Callable[..., tuple[Figure, pd.DataFrame]] = partial(_draw, "packet_loss")

_STYLES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))


def _legend(
    strategies: list[str], batches: list[int], any_published: bool
) -> list[tuple[Any, str]]:
    entries: list[tuple[Any, str]] = []
    for strategy in strategies:
        look = strategy_look(strategy)
        handle = Line2D([], [], color=look.colour, marker=look.marker)
        entries.append((handle, strategy_label(strategy)))
    if len(batches) > 1:
        for place, batch in enumerate(batches):
            line = Line2D([], [], color=GREY, linestyle=_STYLES[place % len(_STYLES)])
            entries.append((line, f"batch {batch}"))
    if any_published:
        hollow = Line2D([], [], color=GREY, marker="o", markerfacecolor="none", linestyle="none")
        entries.append((hollow, f"{_CITATION} (other hardware)"))
    return entries


def _sentences(shown: pd.DataFrame, quantity: Quantity) -> list[str]:
    others = []
    names = {
        "link_latency_s": ("delay", 1e3, "ms one way"),
        "link_bits_per_s": ("rate", 1e-6, "Mbit/s"),
        "link_loss": ("loss", 1e2, "%"),
    }
    for column, (name, scale, unit) in names.items():
        if column != quantity.column and len(shown):
            value = float(shown[column].iloc[0]) * scale
            others.append(
                f"{name} {value:g} {unit}" if math.isfinite(value) else f"no {name} limit"
            )
    sentences = [f"Links otherwise: {', '.join(others)}."] if others else []
    missing = shown[shown["mark"] != ""]
    if len(missing):
        parts = [
            f"{mark}: {', '.join(dict.fromkeys(strategy_label(str(s)) for s in own['strategy']))}"
            for mark, own in missing.groupby("mark", sort=False)
        ]
        sentences.append(f"Crosses stand for cells without a rate ({'; '.join(parts)}).")
    return sentences


def _limits(part: pd.DataFrame) -> tuple[float, float]:
    good = part.loc[part["mark"] == "", "samples_per_s"].dropna()
    if good.empty:
        return 0.1, 10.0
    return float(good.min()) / 2.5, float(good.max()) * 2.0


def _frame(
    axes: Axes, quantity: Quantity, values: list[float], limits: tuple[float, float]
) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    finite = [value for value in values if math.isfinite(value)]
    linear = 0 in finite
    if linear:
        axes.set_xscale("symlog", linthresh=min((v for v in finite if v > 0), default=1.0))
    else:
        axes.set_xscale("log")
    span = max(finite) / max(min(finite), min((v for v in finite if v > 0), default=1.0) / 2)
    axes.set_xlim(-0.1 * finite[1] if linear else finite[0] / span**0.1, max(finite) * span**0.1)
    axes.xaxis.set_major_locator(FixedLocator(finite))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(10, numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(quantity.label, labelpad=1)


def _draw_lines(axes: Axes, own: pd.DataFrame, batches: list[int]) -> None:
    crosses: dict[float, int] = {}
    for (strategy, batch), cells in own.groupby(["strategy", "batch_size"], sort=False):
        look = strategy_look(str(strategy))
        good = cells[cells["mark"] == ""].sort_values("value")
        axes.plot(
            good["value"], good["samples_per_s"], color=look.colour, marker=look.marker,
            markersize=3.5, linestyle=_STYLES[batches.index(int(str(batch))) % len(_STYLES)],
            gid="line",
        )  # fmt: skip
        for row in rows_of(good):
            ends = [row.samples_low_per_s, row.samples_high_per_s]
            if all(map(math.isfinite, ends)):
                axes.plot([row.value] * 2, ends, color=look.colour, linewidth=0.7, gid="whisker")
        for row in rows_of(cells[cells["mark"] != ""]):
            place = crosses[row.value] = crosses.get(row.value, -1) + 1
            axes.plot(
                [row.value], [0.04 + 0.06 * place], transform=axes.get_xaxis_transform(),
                linestyle="none", marker="x", markersize=3.5, color=look.colour, gid="mark",
            )  # fmt: skip


def _published(quantity: Quantity) -> pd.DataFrame:
    """What the paper states in numbers, with this quantity on the axis."""
    text = files("ddlbench.report").joinpath("cheng", "throughput.csv").read_text("utf-8")
    found = pd.read_csv(io.StringIO(text))
    found = found[found["quantity"] == quantity.published].copy()
    found["value"] = found[quantity.published]
    return found


def _draw_published(
    axes: Axes, published: pd.DataFrame, where: tuple[str, str, str], batches: list[int]
) -> None:
    dataset, geometry, network = where
    own = published[
        (published["dataset"] == dataset)
        & (published["geometry"] == geometry)
        & (published["network"].map(lambda names: network in str(names).split("|")))
        & published["batch_size"].isin(batches)
    ]
    low, high = axes.get_ylim()
    for row in rows_of(own):
        axes.set_ylim(min(low, row.samples_per_s / 1.5), max(high, row.samples_per_s * 1.5))
        axes.plot(
            [row.value], [row.samples_per_s], linestyle="none", marker="o", markersize=4,
            markerfacecolor="none", color=strategy_look("parameter-server").colour, gid="published",
        )  # fmt: skip


def _table(shown: pd.DataFrame, published: pd.DataFrame, name: str) -> pd.DataFrame:
    keys = ["dataset", "network", "strategy", "options", "geometry", "batch_size"]
    best = shown.groupby(keys)["samples_per_s"].transform("max")
    ours = shown.assign(
        quantity=name, share_of_best=shown["samples_per_s"] / best, source="measured here"
    )
    theirs = published.assign(
        quantity=name,
        strategy="parameter-server",
        options="",
        mark="",
        source=[f"{_CITATION}, {where}" for where in published["where"]],
    )
    columns = [c for c in TABLE if c in theirs.columns]
    return pd.concat([ours[TABLE], theirs[columns]], ignore_index=True)[TABLE]
