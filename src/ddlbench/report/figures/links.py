"""Figures of measured links: heat maps of all pairs of devices, and times of messages by size.

Every pair matrix is drawn as two heat maps::

    heading: within a node or between all ranks, and how it was measured
      Bandwidth (GB/s)      Latency (µs)
      from |  | 12|         from |  |2.1|      darker: more
           |12|  |               |2.1|  |      framed: a slow pair
             to                    to

Every group of ranks has a panel with its sweeps: measured points, and the fit that predictors use.
A colour is an operation, a square is Horovod. Lines are the pieces of the fit alpha + beta * bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from ddlbench.common.quantities import BYTES_BINARY, GB, NS, TIMES, US, Unit, unit_for
from ddlbench.common.statistics import grouped
from ddlbench.experiment.links import Links, LinkSweep, Matrix, PairMatrix, SlowPair
from ddlbench.report.curves import ticks_at, whisker
from ddlbench.report.footer import links_origin, sentence
from ddlbench.report.labels import StrategyLook, span_text, strategy_look
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import CENTRED

_SLOW = "#D55E00"
_EMPTY = "#eeeeee"
_SHADES = LinearSegmentedColormap.from_list("ddlbench", ["#eaf3fa", "#0072B2", "#004a75"])
_CELL_MM, _LEAST_MM, _MOST_MM = 5.5, 14.0, 70.0
# Wider matrices have no numbers in their cells.
_MOST_WRITTEN = 8
_MOST_TICKS = 16


def draw_links(links: Links) -> tuple[Figure, pd.DataFrame]:
    """Heat maps of all pair matrices.

    Returns:
        the figure, and a table with a row for each measured ordered pair: bytes per second,
        seconds, and for slow pairs the ratio to the median of the level.
    """
    pairs = links.pairs
    largest = max((len(pair.endpoints) for pair in pairs), default=2)
    side = min(max(largest * _CELL_MM, _LEAST_MM), _MOST_MM)
    sections = [
        Section(
            _heading(pair),
            [
                _heat_panel("Bandwidth (GB/s)", pair.bandwidth_bytes_per_s, GB, pair.slow_pairs),
                _heat_panel("Latency (µs)", pair.latency_s, US),
            ],
        )
        for pair in pairs
    ] or [Section("no pairs", [Panel("")])]
    page = lay_out(
        f"Links between pairs of devices: fabric {links.fabric}",
        [],
        sections,
        footer=[
            _pairs_sentence(pairs),
            *(rate.in_words() for rate in links.node_rates),
            links_origin(links),
        ],
        size=PanelSize(34.0, side, 9.0, 13.0, bottom=7.5, max_width=max(side * 1.6, 45.0)),
    )
    for axes, data in page.facets:
        if data is None:
            axes.set_axis_off()
            continue
        values, slow_pairs = data
        _heat(axes, values)
        _frame(axes, len(values))
        for slow in slow_pairs:
            corner = (slow.receiver - 0.46, slow.sender - 0.46)
            frame = Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=_SLOW, linewidth=1.4)
            frame.set_gid("slow")
            axes.add_patch(frame)
    return page.figure, pd.DataFrame([row for pair in pairs for row in _rows(pair)])


def _heat_panel(
    title: str, matrix: Matrix, unit: Unit, slow_pairs: Sequence[SlowPair] = ()
) -> Panel:
    values = np.array(matrix, dtype=float) / unit.size
    np.fill_diagonal(values, math.nan)  # which is no link
    return Panel(title, _range(values), (values, slow_pairs))


def _heading(pair: PairMatrix) -> str:
    where = "Within a node" if pair.scope == "node" else "All ranks"
    access = {"direct": "peer access", "staged": "through the host"}.get(pair.access or "")
    parts = [pair.method, pair.direction, access, pair.operation, pair.node_type]
    return f"{where}: {', '.join(part for part in parts if part)}"


def _range(values: np.ndarray) -> str:
    if not np.isfinite(values).any():
        return ""
    low, high = _number(float(np.nanmin(values))), _number(float(np.nanmax(values)))
    return low if low == high else f"{low} (light) to {high} (dark)"


def _number(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _heat(axes: Axes, values: np.ndarray) -> None:
    size = len(values)
    axes.set_facecolor(_EMPTY)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    # From zero, so that a small difference looks small.
    norm = Normalize(0 if high < 10 * max(low, 1e-30) else low, high or 1.0)
    edges = np.arange(size + 1) - 0.5
    axes.pcolormesh(
        edges, edges, np.ma.masked_invalid(values), cmap=_SHADES, norm=norm, edgecolors="white",
        linewidth=0.6 if size <= 32 else 0.0,
    )  # fmt: skip
    if size > _MOST_WRITTEN:
        return
    for row in range(size):
        for column in range(size):
            value = float(values[row, column])
            if math.isfinite(value):
                colour = "white" if float(norm(value)) > 0.45 else "black"
                axes.text(column, row, _number(value), color=colour, gid="number", **CENTRED)


def _frame(axes: Axes, size: int) -> None:
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    step = math.ceil(size / _MOST_TICKS)
    for axis in (axes.xaxis, axes.yaxis):
        ticks_at(axis, list(range(0, size, step)))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_xlabel("to", labelpad=1)
    axes.set_ylabel("from", labelpad=1)


def _pairs_sentence(pairs: Sequence[PairMatrix]) -> str:
    if not pairs:
        return "No pair has been measured."
    slow = sum(len(pair.slow_pairs) for pair in pairs)
    framed = sentence("pairs_slow" if slow else "pairs_none_slow", slow=slow)
    runs = span_text(pair.repeats for pair in pairs)
    by_hand = all(pair.method == "given" for pair in pairs)
    source = "Given by hand, not measured." if by_hand else f"Medians of runs: {runs}."
    bidirectional = any(pair.direction == "bidirectional" for pair in pairs)
    both = " Bidirectional: sum of both directions." if bidirectional else ""
    holes = "".join(
        f" Pairs of ranks: {pair.sampled.in_words()}." for pair in pairs if pair.sampled is not None
    )
    return f"Numbers on the axes: devices or ranks, in order. {source}{both}{framed}{holes}"


def _rows(pair: PairMatrix) -> list[dict[str, Any]]:
    slow = {(entry.sender, entry.receiver): entry.bandwidth_ratio for entry in pair.slow_pairs}
    names = ("scope", "method", "access", "direction", "operation", "node_type")
    return [
        {
            **{name: getattr(pair, name) for name in names},
            "from": i,
            "to": j,
            "from_endpoint": pair.endpoints[i],
            "to_endpoint": pair.endpoints[j],
            "level": "node" if pair.nodes[i] == pair.nodes[j] else "network",
            "bandwidth_bytes_per_s": pair.bandwidth_bytes_per_s[i][j],
            "latency_s": pair.latency_s[i][j],
            "slow_ratio": slow.get((i, j)),
        }
        for i in range(len(pair.endpoints))
        for j in range(len(pair.endpoints))
        if i != j and not (pair.sampled is not None and pair.latency_s[i][j] is None)
    ]


_LOOKS = {
    "p2p": StrategyLook("#000000", "o"),
    "all_reduce": StrategyLook("#8A6D00", "X"),
    "broadcast": StrategyLook("#D55E00", "^"),
    "all_gather": StrategyLook("#009E73", "P"),
    "reduce_scatter": StrategyLook("#CC79A7", "v"),
}
_LEVELS = {"node": "Within a node", "network": "Between nodes"}
# Where a link given by hand has no points, its line is drawn over this range.
_GIVEN_BYTES = (2**10, 2**28)


def draw_sweeps(links: Links) -> tuple[Figure, pd.DataFrame]:
    """Every sweep with its fit.

    Returns:
        the figure, and a table with a row for each point: seconds, interval, fitted seconds and
        relative residual.
    """
    groups = grouped(((s.level, s.nodes, s.devices_per_node), s) for s in links.sweeps)
    panels: dict[str, list[Panel]] = {level: [] for level in _LEVELS}
    for (level, nodes, devices), sweeps in groups.items():
        panels[level].append(Panel(f"{nodes}x{devices}", data=sweeps))
    sections = [Section(_LEVELS[level], shown) for level, shown in panels.items() if shown]
    sections = sections or [Section("no sweeps", [Panel("", data=())])]
    page = lay_out(
        f"Time of a message: fabric {links.fabric}",
        _legend(links.sweeps),
        sections,
        footer=[_sweeps_sentence(links.sweeps), *links.notes, links_origin(links)],
        size=PanelSize(
            min_width=50.0, height=42.0, left=15.0, between=16.0, right=4.0, max_columns=3
        ),
    )
    for axes, sweeps in page.facets:
        if not sweeps:
            axes.set_axis_off()
            continue
        for sweep in sweeps:
            _draw_sweep(axes, sweep)
        _frame_sweeps(axes, sweeps)
    return page.figure, pd.DataFrame([row for sweep in links.sweeps for row in _sweep_rows(sweep)])


# Their sweeps look as the strategies that send through them.
_LIBRARIES = {"horovod": "Horovod", "ddp": "DDP's reducer", "fsdp": "FSDP"}


def _look(sweep: LinkSweep) -> StrategyLook:
    library = sweep.transport in _LIBRARIES
    return strategy_look(sweep.transport) if library else _LOOKS[sweep.operation]


def _name(sweep: LinkSweep) -> str:
    operation = {"p2p": "ping-pong, one way"}.get(
        sweep.operation, sweep.operation.replace("_", "-")
    )
    names = {"nccl": "NCCL", "given": "given by hand", **_LIBRARIES}
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


def _draw_sweep(axes: Axes, sweep: LinkSweep) -> None:
    look, points = _look(sweep), sweep.points
    for point in points:
        ends = point.interval_s or (math.nan, math.nan)
        whisker(axes, point.message_bytes, ends, look.colour, zorder=2, gid="interval")
    sizes = [point.message_bytes for point in points]
    axes.plot(
        sizes, [point.time_s for point in points], linestyle="none", marker=look.marker,
        markersize=3.2, color=look.colour, zorder=3, gid="points",
    )  # fmt: skip
    low, high = (min(sizes), max(sizes)) if sizes else _GIVEN_BYTES
    for piece in sweep.fit.pieces:
        start = max(low, piece.from_bytes)
        end = min(high, piece.to_bytes or math.inf)
        if start < end:
            along = np.geomspace(start, end, 60)
            fitted = piece.alpha_s + piece.beta_s_per_byte * along
            axes.plot(along, fitted, color=look.colour, linewidth=0.9, alpha=0.8, gid="fit")


def _frame_sweeps(axes: Axes, sweeps: Sequence[LinkSweep]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = (round(math.log2(max(edge, 1.0))) for edge in axes.get_xlim())
    step = max(2, 2 * math.ceil((high - low) / 12))
    sizes = [2.0**power for power in range(10, 41, step)]
    ticks_at(axes.xaxis, sizes, lambda size, _: unit_for(size, BYTES_BINARY).text(size, "g"))
    axes.yaxis.set_major_locator(LogLocator(base=10))
    axes.yaxis.set_minor_locator(NullLocator())
    # A tick of one unit may lie a rounding error below it.
    axes.yaxis.set_major_formatter(lambda s, _: unit_for(s / 0.999, (*TIMES, NS)).text(s, "g"))
    axes.grid(visible=True, axis="both")
    axes.set_xlabel("Message of one rank", labelpad=1)
    axes.set_ylabel("Time", labelpad=1)
    if not any(sweep.points for sweep in sweeps):
        axes.set_xlim(*_GIVEN_BYTES)


def _sweeps_sentence(sweeps: Sequence[LinkSweep]) -> str:
    fitted = [sweep.fit for sweep in sweeps if sweep.points]
    if not fitted:
        return "Lines: latency and bandwidth as given by hand." if sweeps else "No sweep."
    typical = [100 * fit.median_relative_residual for fit in fitted]
    worst = max(100 * fit.largest_relative_residual for fit in fitted)
    return sentence("sweeps", least=min(typical), most=max(typical), worst=worst)


def _sweep_rows(sweep: LinkSweep) -> list[dict[str, Any]]:
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
