"""Several sizes of one question: what more devices bring.

::

    speed-up  . ' linear               efficiency
      |      .'      |                   | o
      |    .'   |    o  predicted        |      *  |#|  <- enough: more devices do not pay
      |  .'     *  measured              |         |#|  o
      |__________________                |______________
        1x2    1x4   2x4                   1x2   1x4   2x4     nodes x devices
        DDP    DDP   1F1B                  0.2   0.3   0.9     device-hours an epoch
        1.9x   3.1x  3.9x
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ddlbench.common.quantities import counted
from ddlbench.experiment.registry import BASE
from ddlbench.report.labels import case_title, strategy_look
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import GREY, LINE_MM, plain, text_width_mm, wrapped

_LEAST_MM = 11.0  # of a size
_FEW_DEVICES = 8  # above, the axis of speed-ups is logarithmic
_BAND = "#e3e3e3"
_NONE = "no answer"
_TEN = 9.995  # is 10 with one digit behind the point


@dataclass(frozen=True)
class _Point:
    """One size: its best strategy, and the speed-up of that."""

    geometry: str
    devices: int
    strategy: str
    label: str
    basis: str
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float
    epoch_device_hours: float
    enough: bool

    @property
    def known(self) -> bool:
        return math.isfinite(self.speedup)


def draw(content: Mapping[str, Any]) -> tuple[Figure, pd.DataFrame]:
    """Speed-up and efficiency of the best strategy of each geometry.

    ``content`` is of :func:`ddlbench.predict.largest_batch.sizes_dict`.
    """
    points = [_point(geometry, content["enough"]) for geometry in content["geometries"]]
    texts = [f"{p.geometry} {p.label} {_NONE}" for p in points]
    words = [word for text in texts for word in text.split()]
    each = max([_LEAST_MM, *(text_width_mm(word) + 2 for word in words)])
    title = ""
    if content["geometries"]:
        case = content["geometries"][0]["case"]
        title = case_title(case, f"{counted(case['batch_size'], 'sample')} a step", geometry=False)
    page = lay_out(
        "What do more devices bring?",
        _legend(points),
        [Section(title, [Panel("Speed-up of the best strategy over one device"),
                                   Panel("Efficiency: speed-up over devices")])],
        footer=content["advice"],
        size=PanelSize(
            max(58.0, each * len(points)), 42, left=9, between=15,
            bottom=lambda width: 5 + LINE_MM * max(
                (len(_label(point, width / len(points))) for point in points), default=1
            ),
        ),
    )  # fmt: skip
    (left, right) = page.axes[0]
    for axes in (left, right):
        _x_axis(axes, points)
    _speedups(left, points, page.width_mm)
    _efficiencies(right, points)
    table = pd.DataFrame(map(astuple, points), columns=[field.name for field in fields(_Point)])
    return page.figure, table.drop(columns="label")


def _point(geometry: Mapping[str, Any], enough: str | None) -> _Point:
    case = geometry["case"]
    best = next(
        (c for c in geometry["candidates"] if c["strategy"] == geometry["recommended"]), None
    )
    speedup = _number(geometry["speedup"])
    low = high = speedup
    # One device is as fast as itself, however long its step is.
    if best is not None and best["strategy"] != BASE:
        shortest, longest = best["interval_s"]
        low, high = (speedup * best["step_s"] / end for end in (longest, shortest))
        if best["speedup_basis"] == "predicted" and best["bound"]:
            high = min(high, max(speedup, best["bound"]))  # no prediction is above its bound
    return _Point(
        geometry=geometry["geometry"],
        devices=case["nodes"] * case["devices_per_node"],
        strategy=best["strategy"] if best else "",
        label=best["label"] if best else "",
        basis=(best["speedup_basis"] or best["basis"]) if best else "",
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        efficiency=_number(geometry["efficiency"]),
        epoch_device_hours=_number(geometry["epoch_device_hours"]),
        enough=geometry["geometry"] == enough,
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _x_axis(axes: Axes, points: Sequence[_Point]) -> None:
    """A place per size, also where two have as many devices; a band at the size that is enough."""
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_xlabel("Nodes x devices of each", labelpad=1)
    for place, point in enumerate(points):
        if point.enough:
            axes.axvspan(place - 0.4, place + 0.4, color=_BAND, linewidth=0, zorder=0)


def _speedups(axes: Axes, points: Sequence[_Point], width_mm: float) -> None:
    linear = [point.devices for point in points]
    axes.plot(range(len(points)), linear, "--", color=GREY, linewidth=0.8, marker="_")
    for place, point in enumerate(points):
        _draw_point(axes, place, point, point.speedup, devices=1)
    labels = ["\n".join(_label(point, width_mm / len(points))) for point in points]
    axes.set_xticks(range(len(points)), labels)
    ends = [1.0, *linear]
    for point in points:
        ends += [point.speedup_low, point.speedup_high] if point.known else []
    if max(linear, default=1) > _FEW_DEVICES:
        axes.set_yscale("log", base=2)
        axes.set_ylim(min(ends) / 1.2, max(ends) * 1.2)
    else:
        axes.set_ylim(0, 1.06 * max(ends))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(plain)


def _efficiencies(axes: Axes, points: Sequence[_Point]) -> None:
    for place, point in enumerate(points):
        _draw_point(axes, place, point, point.efficiency, point.devices)
    hours = [
        "" if math.isnan(point.epoch_device_hours) else f"\n{point.epoch_device_hours:.2g}"
        for point in points
    ]
    labels = [f"{point.geometry}{text}" for point, text in zip(points, hours, strict=True)]
    axes.set_xticks(range(len(points)), labels)
    axes.set_xlabel("Nodes x devices of each; below, device-hours an epoch", labelpad=1)
    top = max([1.0, *(point.speedup_high / point.devices for point in points if point.known)])
    axes.set_ylim(0, 1.06 * top)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def _draw_point(axes: Axes, place: int, point: _Point, value: float, devices: int) -> None:
    """The strategy's marker, hollow where the speed-up is predicted, with its interval."""
    if not point.known:
        return
    look = strategy_look(point.strategy)
    ends = [point.speedup_low / devices, point.speedup_high / devices]
    axes.plot([place] * 2, ends, "-", color=look.colour, linewidth=1)
    axes.plot(
        [place], [value], linestyle="none", marker=look.marker, color=look.colour,
        markerfacecolor=look.colour if point.basis == "measured" else "white", markersize=5,
        zorder=3,
    )  # fmt: skip


def _label(point: _Point, width_mm: float) -> list[str]:
    """Lines below a size: its geometry, its best strategy, and its speed-up."""
    speedup_text = (
        f"{point.speedup:.{2 if point.speedup < _TEN else 1}f}x" if point.known else _NONE
    )
    return [
        point.geometry,
        *wrapped(point.label, width_mm - 1.5),
        *wrapped(speedup_text, width_mm - 1.5),
    ]


def _legend(points: Sequence[_Point]) -> list[tuple[Artist, str]]:
    bases = {point.basis for point in points if point.known}
    entries: list[tuple[Artist, str]] = []
    if "measured" in bases:
        filled = Line2D([], [], linestyle="-", marker="o", color=GREY)
        entries.append((filled, "measured, 90 %"))
    if "predicted" in bases:
        hollow = Line2D([], [], linestyle="-", marker="o", color=GREY, markerfacecolor="white")
        entries.append((hollow, "predicted, 90 %"))
    linear = Line2D([], [], linestyle="--", color=GREY, linewidth=0.8)
    entries.append((linear, "linear: n devices n times as fast"))
    if any(point.enough for point in points):
        entries.append((Patch(facecolor=_BAND), "enough: more devices do not pay"))
    return entries
