"""What a strategy asks of a device: its memory, the bytes it sends, the share of its peak it uses.

Three figures of one form: bars for every strategy and the base, networks from left to right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ddlbench.common.quantities import BYTES, Unit, counted, unit_for
from ddlbench.experiment.registry import BASE
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.report.bars import (
    Group,
    bar_groups,
    draw_groups,
    marked_patch,
    panel_size,
    parts_of_page,
    top_of,
    widest_labels,
)
from ddlbench.report.curves import places
from ddlbench.report.footer import SIGNS, Context, footer, sentence, without_signs
from ddlbench.report.labels import (
    DatasetLook,
    common_workers,
    status_mark,
    variant_labels,
)
from ddlbench.report.layout import Panel, Section, lay_out, unique
from ddlbench.report.style import GREY, LOG_FROM, REFERENCE
from ddlbench.report.tables import Tables, rows_of

NOT_MEASURED = "no value"
_LEFT_MM = 12.5
_WHOLE_FROM = 100
_VARIANT_LOOKS = (
    DatasetLook(0.0, ""), DatasetLook(0.5, "/////"), DatasetLook(0.75, ""),
    DatasetLook(0.88, "..."), DatasetLook(0.3, "xxxxx"), DatasetLook(0.6, "-----"),
    DatasetLook(0.15, "|||||"), DatasetLook(0.7, "\\\\\\\\\\"), DatasetLook(0.85, "ooo"),
    DatasetLook(0.4, "+++++"),
)  # fmt: skip
_TABLE = [
    "dataset", "network", "geometry", "workers", "strategy", "variant", "device_kind", "mark",
    "reason", "stale",
]  # fmt: skip


@dataclass(frozen=True)
class Quantity:
    """What bars show.

    Args:
        title: of the figure.
        label: of the axis, without the unit.
        column: of the summary.
        beside: further columns of the figure's table.
        unit: of the axis, from the largest value.
        explain: a sentence for the footer on what bars are.
        limit: column with the largest possible value, drawn as a line.
        without_base: the base has none of it.
    """

    title: str
    label: str
    column: str
    beside: tuple[str, ...]
    unit: Callable[[float], Unit]
    explain: Callable[[pd.DataFrame], str]
    limit: str = ""
    without_base: bool = False


def _draw(quantity: Quantity, tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Sections are geometries, panels datasets; networks on x, strategies by colour and marker."""
    shown = _shown(quantity, tables.summary)
    networks = unique(shown["network"])
    others = shown[shown["strategy"] != BASE]
    members = sorted(unique(shown["member"]), key=lambda member: member[0] != BASE)
    looks = {  # of a strategy's colour; variants differ in shade
        member: _VARIANT_LOOKS[place % len(_VARIANT_LOOKS)]
        for member, place in places(members).items()
    }
    labels = {network: network_label(network) for network in networks}
    parts = parts_of_page(networks, len(members), _LEFT_MM)
    known = shown.loc[shown["mark"] == "", "value"].astype(float)
    unit = quantity.unit(float(known.max()))
    of_panels = [{network: labels[network] for network in of_panel} for of_panel in parts]
    sections = _sections(shown, of_panels, looks, unit)
    signed = without_signs(shown).assign(stale=shown["stale"])
    page = lay_out(
        f"{quantity.title} {common_workers(others['workers'])}".strip(),
        [
            (marked_patch(member[0], look), strategy_label(*member))
            for member, look in looks.items()
        ],
        sections,
        footer=footer(signed, context, [quantity.explain(shown)]),
        size=panel_size(
            widest_labels([list(of_panel.values()) for of_panel in of_panels]),
            len(members), [len(section.panels) for section in sections], left=_LEFT_MM,
            between=11.0,
        ),
    )  # fmt: skip
    values = [drawn for _, groups in page.facets if (drawn := _values(groups))]
    logarithmic = any(max(drawn) / min(drawn) > LOG_FROM for drawn in values)
    largest = max(map(max, values), default=0.0)
    number = ("{:,.0f}" if largest >= _WHOLE_FROM else "{:,.3g}").format
    limits = shown[quantity.limit].astype(float) if quantity.limit else pd.Series(dtype=float)
    limit = float(limits.max()) / unit.size
    for axes, groups in page.facets:
        draw_groups(axes, groups, page.width_mm, number)
        _scale(axes, groups, limit, logarithmic)
    page.label_rows(f"{quantity.label} ({unit.name}{', log' if logarithmic else ''})")
    return page.figure, shown[[*_TABLE[:6], quantity.column, *quantity.beside, *_TABLE[6:]]]


def _shown(quantity: Quantity, summary: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a bar: with its ``value``, or the ``mark`` in place of one."""
    shown = summary.assign(variant=variant_labels(summary))
    if quantity.without_base:
        shown = shown[shown["strategy"] != BASE].copy()
    shown["value"] = shown[quantity.column]
    shown["mark"] = [
        status_mark(row.status) or (NOT_MEASURED if pd.isna(row.value) else "")
        for row in rows_of(shown)
    ]
    shown["member"] = list(zip(shown["strategy"], shown["variant"], strict=True))
    return shown


def _sections(
    shown: pd.DataFrame,
    of_panels: Sequence[Mapping[str, str]],
    looks: Mapping[tuple[str, str], DatasetLook],
    unit: Unit,
) -> list[Section]:
    """A section per geometry, with a panel per dataset and part of the networks.

    Args:
        shown: of :func:`_shown`.
        of_panels: the networks of each panel of a dataset, with their labels.
        looks: of each strategy and variant, which are the bars of a network.
        unit: of the bars.
    """

    def values_of(row: Any) -> tuple[float, float, float]:
        return math.nan if row.mark else float(row.value) / unit.size, math.nan, math.nan

    base = shown[shown["strategy"] == BASE]
    others = shown[shown["strategy"] != BASE]
    geometries = list(others.groupby("geometry", sort=False)) or [("1x1", base.iloc[:0])]
    sections = []
    for geometry, part in geometries:
        workers = counted(int(part["workers"].max()), "worker") if len(part) else ""
        heading = f"{workers} ({geometry})" if len(geometries) > 1 else ""
        both = pd.concat([base, part])
        panels = [
            Panel(
                f"{dataset_label(name)}{', continued' if place else ''}",
                data=bar_groups(
                    both[both["dataset"] == name],
                    labels,
                    looks,
                    values_of,
                    slot="member",
                    without=SIGNS,
                    marked=True,
                ),
            )
            for name in in_dataset_order(shown["dataset"])
            for place, labels in enumerate(of_panels)
        ]
        sections.append(Section(heading, panels))
    return sections


def _values(groups: list[Group]) -> list[float]:
    return [b.value for g in groups for b in g.bars if b and not b.mark and b.value > 0]


def _scale(axes: Axes, groups: list[Group], limit: float, logarithmic: bool) -> None:
    values = _values(groups)
    if not values:
        axes.set_yticks([])
        axes.set_ylim(0, 1)
        return
    top = top_of(groups)
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 2, top * 1.6)
        wide = top / min(values) > 300
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, top * 1.12)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if math.isfinite(limit) and limit <= axes.get_ylim()[1] * 1.5:
        axes.set_ylim(top=max(axes.get_ylim()[1], limit * 1.12))
        axes.axhline(limit, **REFERENCE, gid="device size")
        axes.text(
            1.0, limit, "device", transform=axes.get_yaxis_transform(), ha="right", va="bottom",
            color=GREY, gid="bound",
        )  # fmt: skip


def _memory_sentence(shown: pd.DataFrame) -> str:
    kinds = set(" ".join(shown["device_kind"]).split())
    parts = [sentence(f"memory_{kind}") for kind in ("cuda", "cpu") if kind in kinds]
    return sentence("memory", bars="; ".join(parts) or "peak bytes")


draw_memory = partial(
    _draw,
    Quantity(
        title="Peak memory per device",
        label="Peak memory",
        column="peak_memory_bytes",
        beside=("total_memory_bytes", "device_memory_bytes"),
        unit=lambda largest: unit_for(largest / 2, BYTES),  # MB up to 2 GB
        explain=_memory_sentence,
        limit="device_memory_bytes",
    ),
)
draw_traffic = partial(
    _draw,
    Quantity(
        title="Bytes sent in a step",
        label="Sent in a step",
        column="sent_bytes",
        beside=("step_median_s",),
        unit=lambda largest: unit_for(largest, BYTES),
        explain=lambda _: sentence("traffic"),
        without_base=True,
    ),
)
draw_utilisation = partial(
    _draw,
    Quantity(
        title="Model FLOPs utilisation",
        label="Utilisation",
        column="mfu",
        beside=("flops_per_s", "peak_flops_per_s"),
        unit=lambda _: Unit("%", 0.01),
        explain=lambda shown: (
            sentence("utilisation")
            + (sentence("utilisation_above") if (shown["mfu"].astype(float) > 1).any() else "")
        ),
    ),
)
