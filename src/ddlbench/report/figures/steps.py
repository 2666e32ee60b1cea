"""The distribution of the steps of each cell: every measured step, not only their median."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlbench.common.units import TIMES, unit_for
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import strategy_label
from ddlbench.report.bars import label_rows, write_in_row
from ddlbench.report.footer import Context, footer, sentence, signs
from ddlbench.report.labels import common_workers, status_mark, variant_labels
from ddlbench.report.layout import PanelSize, dataset_sections, lay_out
from ddlbench.report.looks import strategy_look
from ddlbench.report.style import GREY, shade, text_width_mm, ticks_in
from ddlbench.report.tables import Tables, rows_of

NO_STEPS = "no steps"
_ALL_POINTS = 60  # of more steps, only those outside the whiskers are drawn
_BOX_FROM = 8
_ROW_MM = 3.9


class _Line(NamedTuple):
    """One row of a panel."""

    strategy: str
    variant: str
    geometry: str


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Sections are datasets, panels networks, rows strategies."""
    shown = tables.summary.assign(variant=variant_labels(tables.summary))
    steps = tables.steps[~tables.steps["warmup"] & tables.steps["step_s"].notna()]
    good = tables.measurements.loc[tables.measurements["status"] == Status.OK, "cell_id"]
    steps = steps[steps["cell_id"].isin(set(good))]
    configurations = steps["cell_id"].str.replace(r"/rep\d+$", "", regex=True)
    durations = {
        str(name): part["step_s"].to_numpy()
        for name, part in steps.groupby(configurations, sort=False)
    }
    lines = _lines(shown)
    labels = _line_labels(lines)
    parallel = shown.loc[shown["strategy"] != BASE, "workers"]
    page = lay_out(
        f"Time of a step {common_workers(parallel)}".strip(),
        [],
        dataset_sections(shown),
        footer=footer(shown, context, [_legend_sentence(durations)]),
        size=_size(labels, shown["network"].nunique()),
        share_y=True,
    )
    records = []
    for axes, part in page.facets:
        label_rows(axes, labels, axes in page.first_in_row)
        rows = {_line_of(row): row for row in rows_of(part)}
        longest = 0.0
        marks, flags = [], []
        for place, line in enumerate(lines):
            row = rows.get(line)
            if row is None:
                continue
            times = durations.get(str(row.configuration), np.array([]))
            mark = status_mark(str(row.status)) or ("" if len(times) else NO_STEPS)
            records.append(_record(row, times, mark))
            flags.append((place, signs(row)))
            if mark:
                marks.append((place, mark))
            else:
                _draw_steps(axes, place, times, line.strategy, bool(row.stale))
                longest = max(longest, float(times.max()))
        _scale(axes, longest)
        _write(axes, marks, flags)
    return page.figure, pd.DataFrame(records)


def _line_of(row: Any) -> _Line:
    return _Line(row.strategy, row.variant, row.geometry)


def _lines(shown: pd.DataFrame) -> list[_Line]:
    lines = [_line_of(row) for row in rows_of(shown)]
    strategies = list(dict.fromkeys(line.strategy for line in lines))
    unique = list(dict.fromkeys(lines))
    return sorted(unique, key=lambda line: strategies.index(line.strategy))


def _line_labels(lines: list[_Line]) -> list[str]:
    """Label every row; geometries are written only if there are several."""
    several = len({line.geometry for line in lines if line.strategy != BASE}) > 1
    labels = []
    for line in lines:
        parts = [strategy_label(line.strategy)]
        if several and line.strategy != BASE:
            parts.append(line.geometry)
        labels.append(" ".join([*parts, *([line.variant] if line.variant else [])]))
    return labels


def _size(labels: list[str], networks: int) -> PanelSize:
    return PanelSize(
        min_width=21.0 if networks > 4 else 36.0, height=len(labels) * _ROW_MM + 1,
        left=max(map(text_width_mm, labels)) + 2.5, between=4.0, bottom=7.0, max_columns=6,
    )  # fmt: skip


def _draw_steps(axes: Axes, place: int, times: np.ndarray, strategy: str, stale: bool) -> None:
    colour = shade(strategy_look(strategy).colour, 0.5 if stale else 0.0)
    low, first, median, third, high = np.percentile(times, [5, 25, 50, 75, 95])
    points = times
    if len(times) >= _BOX_FROM:
        axes.plot([low, high], [place, place], color=colour, linewidth=0.7, zorder=2)
        axes.barh(
            place, third - first, left=first, height=0.56, facecolor=shade(colour, 0.75),
            edgecolor=colour, linewidth=0.7, zorder=2, gid="box",
        )  # fmt: skip
    if len(times) > _ALL_POINTS:
        points = times[(times < low) | (times > high)]
    spread = np.random.default_rng(place).uniform(-0.2, 0.2, len(points))
    axes.plot(
        points, place + spread, linestyle="none", marker="o", markersize=1.5, alpha=0.6,
        markerfacecolor=colour, markeredgewidth=0, zorder=3, gid="steps",
    )  # fmt: skip
    axes.plot([median, median], [place - 0.34, place + 0.34], color=colour, linewidth=1.6, zorder=4)


def _scale(axes: Axes, longest: float) -> None:
    if longest <= 0:
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        return
    axes.set_xlim(0, longest * 1.12)
    ticks_in(unit_for(longest * 1.12, TIMES), axes.xaxis, "Step", 4)


def _write(axes: Axes, marks: list[tuple[int, str]], flags: list[tuple[int, str]]) -> None:
    """Write the reasons of empty rows at the left, and flags of the others at the right edge."""
    for gid, x, side, texts in (("mark", 0.02, "left", marks), ("number", 0.995, "right", flags)):
        for place, text in texts:
            if text:
                colour = GREY if gid == "mark" else "black"
                write_in_row(axes, place, x, text, ha=side, color=colour, gid=gid)


def _legend_sentence(durations: dict[str, np.ndarray]) -> str:
    counts = [len(times) for times in durations.values()]
    if not counts:
        return "No step has been measured."
    number = " to ".join(dict.fromkeys(f"{count:,}" for count in (min(counts), max(counts))))
    outside = f", or those outside the whiskers beyond {_ALL_POINTS} steps"
    beyond = outside if max(counts) > _ALL_POINTS else ""
    return sentence("steps", box_from=_BOX_FROM, beyond=beyond, number=number)


def _record(row: object, times: np.ndarray, mark: str) -> dict[str, object]:
    names = ("dataset", "network", "geometry", "workers", "strategy", "variant")
    record = {name: getattr(row, name) for name in names}
    record["steps"] = len(times)
    shares = (("min", 0), ("p05", 5), ("p25", 25), ("median", 50), ("p75", 75), ("p95", 95))
    for name, share in (*shares, ("p99", 99), ("max", 100)):
        record[f"step_{name}_s"] = float(np.percentile(times, share)) if not mark else None
    record["mark"] = mark
    record["reason"] = getattr(row, "reason", "")
    return record
