"""Which pairs of devices are fast and which slow: every pair matrix as two heat maps.

::

    heading: within a node or between all ranks, and how it was measured
      Bandwidth (GB/s)      Latency (µs)
      from |  | 12|         from |  |2.1|      darker: more
           |12|  |               |2.1|  |      framed: a slow pair
             to                    to
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
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from ddlbench.experiment.links import Links, Matrix, PairMatrix
from ddlbench.experiment.units import GB, US
from ddlbench.report.layout import Page, Panel, PanelSize, Section, lay_out
from ddlbench.report.links_footer import origin
from ddlbench.report.style import MIN_PT

__all__ = ["draw_links"]

_SLOW = "#D55E00"
_EMPTY = "#eeeeee"
_SHADES = LinearSegmentedColormap.from_list("ddlbench", ["#eaf3fa", "#0072B2", "#004a75"])
_CELL_MM, _LEAST_MM, _MOST_MM = 5.5, 14.0, 70.0
# Wider matrices have no numbers in their cells.
_MOST_WRITTEN = 8
_MOST_TICKS = 16


def draw_links(links: Links) -> tuple[Figure, pd.DataFrame]:
    """Heat maps of all pair matrices.

    Args:
        links: the content of a links.json.

    Returns:
        the figure, and a table with a row for each ordered pair: bytes per second, seconds, and
        the ratio to the median of the level where the pair is slow. Pairs that a sample left out
        have none.
    """
    pairs = links.pairs
    largest = max((len(pair.endpoints) for pair in pairs), default=2)
    side = min(max(largest * _CELL_MM, _LEAST_MM), _MOST_MM)
    sections = [
        Section(
            _heading(pair),
            [
                Panel("Bandwidth (GB/s)", _range(pair.bandwidth_bytes_per_s, GB.size)),
                Panel("Latency (µs)", _range(pair.latency_s, US.size)),
            ],
        )
        for pair in pairs
    ] or [Section("no pairs", [Panel("")])]
    page = lay_out(
        f"Links between pairs of devices: fabric {links.fabric}",
        [],
        sections,
        footer=[_what(pairs), *origin(links)],
        size=PanelSize(
            min_width=34.0,
            height=side,
            left=9.0,
            between=13.0,
            right=2.0,
            bottom=lambda _: 7.5,
            max_width=max(side * 1.6, 45.0),
        ),
        share_y=False,
    )
    _draw(page, pairs)
    return page.figure, pd.DataFrame([row for pair in pairs for row in _rows(pair)])


def _draw(page: Page, pairs: Sequence[PairMatrix]) -> None:
    for axes_row, pair in zip(page.axes, pairs, strict=False):
        for axes, key, unit in zip(
            axes_row, ("bandwidth_bytes_per_s", "latency_s"), (GB.size, US.size), strict=True
        ):
            _heat(axes, _values(getattr(pair, key)) / unit)
            _frame(axes, len(pair.endpoints))
        _mark_slow(axes_row[0], pair)
    if not pairs:
        page.axes[0][0].set_axis_off()


def _heading(pair: PairMatrix) -> str:
    where = "Within a node" if pair.scope == "node" else "All ranks"
    access = {"direct": "peer access", "staged": "through the host"}.get(pair.access or "")
    parts = [pair.method, pair.direction, access, pair.operation, pair.node_type]
    return f"{where}: {', '.join(part for part in parts if part)}"


def _values(matrix: Matrix) -> np.ndarray:
    """The pairs of different devices; nan on the diagonal, which is no link."""
    values = np.array(matrix, dtype=float)
    np.fill_diagonal(values, math.nan)
    return values


def _range(matrix: Matrix, unit: float) -> str:
    values = _values(matrix) / unit
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
    axes.pcolormesh(
        np.arange(size + 1) - 0.5,
        np.arange(size + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=_SHADES,
        norm=norm,
        edgecolors="white",
        linewidth=0.6 if size <= 32 else 0.0,
    )
    if size > _MOST_WRITTEN:
        return
    for row in range(size):
        for column in range(size):
            value = float(values[row, column])
            if math.isfinite(value):
                dark = float(norm(value)) > 0.45
                axes.text(
                    column,
                    row,
                    _number(value),
                    ha="center",
                    va="center",
                    fontsize=MIN_PT,
                    color="white" if dark else "black",
                    gid="number",
                )


def _frame(axes: Axes, size: int) -> None:
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    step = math.ceil(size / _MOST_TICKS)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(list(range(0, size, step))))
        axis.set_minor_locator(NullLocator())
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_xlabel("to", labelpad=1)
    axes.set_ylabel("from", labelpad=1)


def _mark_slow(axes: Axes, pair: PairMatrix) -> None:
    for slow in pair.slow_pairs:
        corner = (slow.receiver - 0.46, slow.sender - 0.46)
        axes.add_patch(
            Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=_SLOW, linewidth=1.4, gid="slow")
        )


def _what(pairs: Sequence[PairMatrix]) -> str:
    if not pairs:
        return "No pair has been measured."
    slow = sum(len(pair.slow_pairs) for pair in pairs)
    framed = (
        f" Framed: {slow} pair(s) below 0.8 of the median bandwidth of their level."
        if slow
        else " No pair is slow (below 0.8 of its level's median; two pairs cannot tell)."
    )
    counts = sorted({pair.repeats for pair in pairs})
    runs = " to ".join(str(count) for count in dict.fromkeys([counts[0], counts[-1]]))
    given = all(pair.method == "given" for pair in pairs)
    source = "Given by hand, not measured." if given else f"Medians of runs: {runs}."
    both = (
        " Bidirectional: sum of both directions."
        if any(pair.direction == "bidirectional" for pair in pairs)
        else ""
    )
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
