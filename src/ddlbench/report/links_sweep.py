"""How long a message takes: measured points, and the fit that predictors read.

One panel a group of ranks; a colour an operation, a square Horovod. Lines are the pieces of the
latency-bandwidth fit: time = alpha + beta * bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ddlbench.experiment.links import Links, LinkSweep
from ddlbench.experiment.units import BYTES_BINARY, NS, TIMES, unit_for
from ddlbench.report.colours import StrategyLook, strategy_look
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.links_footer import origin

__all__ = ["draw_sweeps"]

_LOOKS = {
    "p2p": StrategyLook("#000000", "o"),
    "all_reduce": StrategyLook("#56B4E9", "D"),
    "broadcast": StrategyLook("#D55E00", "^"),
    "all_gather": StrategyLook("#009E73", "P"),
    "reduce_scatter": StrategyLook("#CC79A7", "v"),
}
_LEVELS = {"node": "Within a node", "network": "Between nodes"}
# Where a link given by hand has no points, its line is drawn over this range.
_GIVEN_BYTES = (2**10, 2**28)


def draw_sweeps(links: Links) -> tuple[Figure, pd.DataFrame]:
    """Every sweep with its fit.

    Args:
        links: the content of a links.json.

    Returns:
        the figure, and a table with a row for each point: seconds, interval, fitted seconds and
        relative residual.
    """
    groups: dict[tuple[str, int, int], list[LinkSweep]] = {}
    for sweep in links.sweeps:
        key = (sweep.level, sweep.nodes, sweep.devices_per_node)
        groups.setdefault(key, []).append(sweep)
    shapes = {
        level: [Panel(f"{nodes}x{devices}") for name, nodes, devices in groups if name == level]
        for level in _LEVELS
    }
    sections = [Section(_LEVELS[level], panels) for level, panels in shapes.items() if panels]
    sections = sections or [Section("no sweeps", [Panel("")])]
    page = lay_out(
        f"Time of a message: fabric {links.fabric}",
        _legend(links.sweeps),
        sections,
        footer=[_what(links.sweeps), *links.notes, *origin(links)],
        size=PanelSize(
            min_width=50.0,
            height=42.0,
            left=15.0,
            between=16.0,
            right=4.0,
            bottom=lambda _: 8.0,
            max_columns=3,
        ),
        share_y=False,
    )
    every = [axes for row in page.axes for axes in row]
    ordered = [groups[key] for level in _LEVELS for key in groups if key[0] == level]
    for axes, sweeps in zip(every, ordered, strict=False):
        for sweep in sweeps:
            _draw(axes, sweep)
        _frame(axes, sweeps)
    if not ordered:
        every[0].set_axis_off()
    return page.figure, pd.DataFrame([row for sweep in links.sweeps for row in _rows(sweep)])


def _look(sweep: LinkSweep) -> StrategyLook:
    horovod = sweep.transport == "horovod"
    return strategy_look("horovod") if horovod else _LOOKS[sweep.operation]


def _name(sweep: LinkSweep) -> str:
    operation = {"p2p": "ping-pong, one way"}.get(
        sweep.operation, sweep.operation.replace("_", "-")
    )
    names = {"nccl": "NCCL", "horovod": "Horovod", "given": "given by hand"}
    return f"{operation} ({names.get(sweep.transport, sweep.transport)})"


def _legend(sweeps: Sequence[LinkSweep]) -> list[tuple[Line2D, str]]:
    entries = {}
    for sweep in sweeps:
        look = _look(sweep)
        marker = look.marker if sweep.points else ""
        entries[_name(sweep)] = Line2D(
            [], [], color=look.colour, marker=marker, markersize=3.5, linewidth=0.9
        )
    return [(line, name) for name, line in entries.items()]


def _draw(axes: Axes, sweep: LinkSweep) -> None:
    look, points = _look(sweep), sweep.points
    for point in points:
        if point.interval_s is not None:
            axes.plot(
                [point.message_bytes] * 2,
                point.interval_s,
                color=look.colour,
                linewidth=0.7,
                zorder=2,
                gid="interval",
            )
    sizes = [point.message_bytes for point in points]
    axes.plot(
        sizes,
        [point.time_s for point in points],
        linestyle="none",
        marker=look.marker,
        markersize=3.2,
        color=look.colour,
        zorder=3,
        gid="points",
    )
    low, high = (min(sizes), max(sizes)) if sizes else _GIVEN_BYTES
    for piece in sweep.fit.pieces:
        start = max(low, piece.from_bytes)
        end = min(high, piece.to_bytes or math.inf)
        if start < end:
            along = np.geomspace(start, end, 60)
            fitted = piece.alpha_s + piece.beta_s_per_byte * along
            axes.plot(along, fitted, color=look.colour, linewidth=0.9, alpha=0.8, gid="fit")


def _frame(axes: Axes, sweeps: Sequence[LinkSweep]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = (round(math.log2(max(edge, 1.0))) for edge in axes.get_xlim())
    step = max(2, 2 * math.ceil((high - low) / 12))
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(10, 41, step)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
    axes.yaxis.set_major_locator(LogLocator(base=10))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _seconds(value)))
    axes.grid(visible=True, axis="both")
    axes.set_xlabel("Message of one rank", labelpad=1)
    axes.set_ylabel("Time", labelpad=1)
    if not any(sweep.points for sweep in sweeps):
        axes.set_xlim(*_GIVEN_BYTES)


def _bytes(value: float) -> str:
    return unit_for(value, BYTES_BINARY).text(value, "g")


def _seconds(value: float) -> str:
    # A tick of one unit may lie a rounding error below it.
    return unit_for(value / 0.999, (*TIMES, NS)).text(value, "g")


def _what(sweeps: Sequence[LinkSweep]) -> str:
    fitted = [sweep.fit for sweep in sweeps if sweep.points]
    if not fitted:
        return "Lines: latency and bandwidth as given by hand." if sweeps else "No sweep."
    typical = [100 * fit.median_relative_residual for fit in fitted]
    worst = max(100 * fit.largest_relative_residual for fit in fitted)
    return (
        "Points: medians, of the slowest rank; whiskers: 95 % rank-based interval over the "
        "repeats, where there are six or more. Lines: fit of alpha + beta x bytes in pieces; its "
        f"median residual is {min(typical):.0f} to {max(typical):.0f} % of the time, the largest "
        f"{worst:.0f} %."
    )


def _rows(sweep: LinkSweep) -> list[dict[str, Any]]:
    names = ("operation", "transport", "level", "nodes", "devices_per_node", "ranks")
    rows = []
    for point in sweep.points:
        low, high = point.interval_s or (None, None)
        fitted = sweep.fit.time_s(point.message_bytes)
        rows.append(
            {
                **{name: getattr(sweep, name) for name in names},
                "message_bytes": point.message_bytes,
                "time_s": point.time_s,
                "low_s": low,
                "high_s": high,
                "repeats": point.repeats,
                "fitted_s": fitted,
                "relative_residual": fitted / point.time_s - 1,
            }
        )
    return rows
