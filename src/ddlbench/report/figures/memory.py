"""Peak memory of the fullest device for every strategy and the base."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.experiment.units import GIB, MIB, Unit, unit_for
from ddlbench.report.bars import Bar, Group, draw_groups, panel_size, patch, top_of
from ddlbench.report.footer import Context, footer, without_signs
from ddlbench.report.labels import (
    common_workers,
    dataset_label,
    in_dataset_order,
    network_label,
    status_mark,
    strategy_label,
    variant_labels,
    workers_label,
)
from ddlbench.report.layout import Panel, Section, lay_out, unique
from ddlbench.report.style import GREY, DatasetLook, strategy_look
from ddlbench.report.tables import Tables, rows_of

NOT_MEASURED = "no value"
_LOG_FROM = 30
_PLAIN = DatasetLook(0.0, "")
_VARIANT_LOOKS = (
    _PLAIN,
    DatasetLook(0.5, "/////"),
    DatasetLook(0.75, ""),
    DatasetLook(0.88, "..."),
)
_TABLE = [
    "dataset", "network", "geometry", "workers", "strategy", "variant", "peak_memory_bytes",
    "total_memory_bytes", "device_memory_bytes", "device_kind", "mark", "reason", "stale",
]  # fmt: skip


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Sections are geometries, panels datasets; networks on x, strategies as colours."""
    shown = tables.summary.assign(variant=variant_labels(tables.summary))
    shown["mark"] = [_mark(row) for row in rows_of(shown)]
    datasets = in_dataset_order(shown["dataset"])
    networks = unique(shown["network"])
    base = shown[shown["strategy"] == BASE]
    others = shown[shown["strategy"] != BASE]
    geometries = list(others.groupby("geometry", sort=False)) or [("1x1", base.iloc[:0])]
    members = list(dict.fromkeys(zip(shown["strategy"], shown["variant"], strict=True)))
    members.sort(key=lambda member: member[0] != BASE)
    looks = _looks(members)
    known = shown.loc[shown["mark"] == "", "peak_memory_bytes"].astype(float)
    unit = unit_for(known.max() / 2, (GIB, MIB))  # MiB up to 2 GiB
    sections = []
    for geometry, part in geometries:
        workers = workers_label(int(part["workers"].max())) if len(part) else ""
        heading = f"{workers} ({geometry})" if len(geometries) > 1 else ""
        both = pd.concat([base, part])
        panels = []
        for dataset in datasets:
            own = both[both["dataset"] == dataset]
            groups = _groups(own, networks, members, looks, unit)
            panels.append(Panel(dataset_label(dataset), data=groups))
        sections.append(Section(heading, panels))
    signed = without_signs(shown).assign(stale=shown["stale"])
    page = lay_out(
        f"Peak memory per device {common_workers(others['workers'])}".strip(),
        [(patch(*looks[member]), strategy_label(*member)) for member in members],
        sections,
        footer=footer(signed, context, [_bars_sentence(shown)]),
        size=panel_size(
            [network_label(network) for network in networks],
            len(members),
            [len(datasets)] * len(sections),
            left=12.5,
            between=11.0,
        ),
    )
    values = [drawn for _, groups in page.facets if (drawn := _values(groups))]
    logarithmic = any(max(drawn) / min(drawn) > _LOG_FROM for drawn in values)
    size_of_device = float(shown["device_memory_bytes"].astype(float).max()) / unit.size
    for axes, groups in page.facets:
        draw_groups(axes, groups, page.width_mm, "{:,.3g}")
        _scale(axes, groups, size_of_device, logarithmic)
    page.label_rows(f"Peak memory ({unit.name}{', log' if logarithmic else ''})")
    return page.figure, shown[_TABLE]


def _mark(row: object) -> str:
    status = str(getattr(row, "status", ""))
    if status == Status.OK and pd.isna(getattr(row, "peak_memory_bytes", None)):
        return NOT_MEASURED
    return status_mark(status)


def _looks(members: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, DatasetLook]]:
    """Give each member its strategy's colour; variants differ in shade."""
    seen: dict[str, int] = {}
    looks = {}
    for strategy, variant in members:
        place = seen[strategy] = seen.get(strategy, -1) + 1
        look = _VARIANT_LOOKS[place % len(_VARIANT_LOOKS)]
        looks[strategy, variant] = (strategy_look(strategy).colour, look)
    return looks


def _groups(
    part: pd.DataFrame,
    networks: list[str],
    members: list[tuple[str, str]],
    looks: dict[tuple[str, str], tuple[str, DatasetLook]],
    unit: Unit,
) -> list[Group]:
    rows = {(r.network, (r.strategy, r.variant)): r for r in rows_of(part)}
    groups = []
    for network in networks:
        bars: list[Bar | None] = []
        for member in members:
            row = rows.get((network, member))
            if row is None:
                bars.append(None)
                continue
            value = math.nan if row.mark else float(row.peak_memory_bytes) / unit.size
            bars.append(
                Bar(value, math.nan, math.nan, *looks[member], str(row.mark), bool(row.stale))
            )
        groups.append(Group(network_label(network), bars))
    return groups


def _values(groups: list[Group]) -> list[float]:
    return [b.value for g in groups for b in g.bars if b and not b.mark and b.value > 0]


def _scale(axes: Axes, groups: list[Group], device: float, logarithmic: bool) -> None:
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
    if math.isfinite(device) and device <= axes.get_ylim()[1] * 1.5:
        axes.set_ylim(top=max(axes.get_ylim()[1], device * 1.12))
        axes.axhline(device, color=GREY, linewidth=0.6, linestyle=(0, (4, 2)), gid="device size")
        axes.text(
            1.0,
            device,
            "device",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="bottom",
            color=GREY,
            gid="bound",
        )


def _bars_sentence(shown: pd.DataFrame) -> str:
    kinds = set(" ".join(shown["device_kind"]).split())
    parts = []
    if "cuda" in kinds:
        parts.append("peak bytes allocated by CUDA's allocator")
    if "cpu" in kinds:
        parts.append(
            "peak bytes of live tensors of a process in one step, as CPUs have no memory of their "
            "own (GPipe and model parallel: one process holds all partitions)"
        )
    bars = "; ".join(parts) or "peak bytes"
    return f"Bars: {bars}; the fullest device of all repeats."
