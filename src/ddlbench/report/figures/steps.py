"""The steps of each cell: every measured one, and the parts that predictors see in one.

Predicted parts beside the measured step show which term of a model is wrong::

    measured  recorded  predictor A  predictor B
      |I|       |.|        |.|                        bubble
      | |       |/|        |/|          |/|           communication that the step waits for
      | |       |#|        |#|          |#|           compute
    - - - - - - - - - - - - - - - - - - - - - - - -   measured sequential step over the workers

Where the passes of one more step were recorded (torchgpipe), the second bar has its parts, as means
over partitions: computing, sending and waiting (thesis Figure 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlbench.common.quantities import TIMES, unit_for
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import strategy_label
from ddlbench.report.bars import label_rows, patch, turn_labels, write_in_row, write_instead
from ddlbench.report.footer import Context, footer, note_sentences, sentence, signs
from ddlbench.report.labels import (
    DatasetLook,
    common_workers,
    input_bound,
    span_text,
    status_mark,
    strategy_look,
    variant_labels,
)
from ddlbench.report.layout import (
    PanelSize,
    Section,
    dataset_sections,
    lay_out,
    network_panels,
    unique,
)
from ddlbench.report.predicted import (
    NOT_PREDICTED,
    Predicted,
    condition_sections,
    own_predictors,
    parts_of,
    shown_cells,
    title_of,
)
from ddlbench.report.style import (
    GREY,
    LOG_FROM,
    MM,
    REFERENCE,
    bar_style,
    log_steps_axis,
    seconds_axis,
    shade,
    text_width_mm,
    ticks_in,
)
from ddlbench.report.tables import Tables, rows_of

NO_STEPS = "no steps"
_ALL_POINTS = 60  # of more steps, only those outside the whiskers are drawn
_BOX_FROM = 8
_ROW_MM = 3.9


class _Line(NamedTuple):
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
    logarithmic = _are_far_apart(shown, durations)
    lines = _lines(shown)
    labels = _line_labels(lines)
    waits = {str(v["configuration"]): input_bound(v) for v in shown.to_dict("records")}
    parallel = shown.loc[shown["strategy"] != BASE, "workers"]
    page = lay_out(
        f"Time of a step {common_workers(parallel)}".strip(),
        [],
        dataset_sections(shown),
        footer=footer(shown, context, [_legend_sentence(durations)]),
        size=PanelSize(
            min_width=21.0 if shown["network"].nunique() > 4 else 36.0,
            height=len(labels) * _ROW_MM + 1,
            left=max(map(text_width_mm, labels)) + 2.5,
            between=4.0,
            bottom=7.0,
            max_columns=6,
        ),
        share_y=True,
    )
    records = []
    for axes, part in page.facets:
        label_rows(axes, labels, axes in page.first_in_row)
        rows = {_line_of(row): row for row in rows_of(part)}
        width_mm = axes.get_position().width * page.figure.get_figwidth() / MM
        drawn: list[tuple[np.ndarray, float]] = []
        for place, line in enumerate(lines):
            row = rows.get(line)
            if row is None:
                continue
            times = durations.get(str(row.configuration), np.array([]))
            mark = status_mark(str(row.status)) or ("" if len(times) else NO_STEPS)
            records.append(_record(row, times, mark))
            flag = _flag(waits.get(str(row.configuration), ""), signs(row), width_mm)
            if flag:
                write_in_row(axes, place, 0.995, flag, ha="right", color="black", gid="number")
            if mark:
                write_in_row(axes, place, 0.02, mark, ha="left", color=GREY, gid="mark")
            else:
                _draw_steps(axes, place, times, line.strategy, bool(row.stale))
                drawn.append((times, 1 - (text_width_mm(flag) + 2) / width_mm))
        _scale(axes, drawn, logarithmic)
    return page.figure, pd.DataFrame(records)


def _line_of(row: Any) -> _Line:
    return _Line(row.strategy, row.variant, row.geometry)


def _lines(shown: pd.DataFrame) -> list[_Line]:
    strategies = unique(shown["strategy"])
    lines = dict.fromkeys(_line_of(row) for row in rows_of(shown))
    return sorted(lines, key=lambda line: strategies.index(line.strategy))


def _line_labels(lines: list[_Line]) -> list[str]:
    """Label every row; geometries are written only if there are several."""
    several = len({line.geometry for line in lines if line.strategy != BASE}) > 1
    labels = []
    for strategy, variant, geometry in lines:
        where = geometry if several and strategy != BASE else ""
        labels.append(" ".join(filter(None, [strategy_label(strategy), where, variant])))
    return labels


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


def _flag(wait: str, signs_of_row: str, width_mm: float) -> str:
    """What stands at the right of a row; without numbers where they would fill most of a panel."""
    whole = f"{wait} {signs_of_row}".strip()
    if text_width_mm(whole) + 2 < 0.6 * width_mm:
        return whole
    return f"{wait.partition(':')[0]} {signs_of_row}".strip()


def _are_far_apart(shown: pd.DataFrame, durations: Mapping[str, np.ndarray]) -> bool:
    """Whether a linear axis would make fast steps of some panel a stroke at its left."""
    medians = {name: float(np.median(times)) for name, times in durations.items()}
    panels = shown["configuration"].map(medians).groupby([shown["dataset"], shown["network"]])
    least, largest = panels.min(), panels.max()
    return bool(((least > 0) & (largest > LOG_FROM * least)).any())


def _scale(axes: Axes, drawn: Sequence[tuple[np.ndarray, float]], logarithmic: bool) -> None:
    """Fit the x axis to the steps of each row, and the share of it that its texts leave free."""
    largest = max((float(times.max()) for times, _ in drawn), default=0.0)
    if largest <= 0:
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        return
    if not logarithmic:
        end = max(float(times.max()) * max(1.12, 1 / free) for times, free in drawn)
        axes.set_xlim(0, end)
        ticks_in(unit_for(end, TIMES), axes.xaxis, "Step", 4)
        return
    low = 0.8 * min(float(times[times > 0].min(initial=largest)) for times, _ in drawn)
    spans = [(math.log(max(float(times.max()), low) / low), free) for times, free in drawn]
    high = 1.12 * low * math.exp(max(span / free for span, free in spans))
    log_steps_axis(axes, low, high)


def _legend_sentence(durations: dict[str, np.ndarray]) -> str:
    counts = [len(times) for times in durations.values()]
    if not counts:
        return "No step has been measured."
    outside = f", or those outside the whiskers beyond {_ALL_POINTS} steps"
    beyond = outside if max(counts) > _ALL_POINTS else ""
    return sentence("steps", box_from=_BOX_FROM, beyond=beyond, number=span_text(counts))


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


_DASHES: dict[str, Any] = {**REFERENCE, "linewidth": 0.8}
_PARTS = (
    ("compute_s", "compute", DatasetLook(0.0, "")),
    ("exposed_communication_s", "communication it waits for", DatasetLook(0.55, "/////")),
    ("bubble_s", "bubble", DatasetLook(0.85, ".....")),
)
_MEASURED = "measured"
_RECORDED = "recorded"
_PARTS_TABLE = [
    "strategy", "predictor", "geometry", "variant", "network", "dataset", "compute_s",
    "exposed_communication_s", "communication_s", "bubble_s", "predicted_step_s",
    "measured_step_s", "measured_low_s", "measured_high_s", "base_step_s", "mark", "notes",
]  # fmt: skip


def draw_parts(
    predicted: Predicted, context: Context, strategy: str
) -> tuple[Figure, pd.DataFrame]:
    """Sections are datasets and geometries, panels networks; the measured bar is the first."""
    frame = predicted.predictions
    predictors = own_predictors(frame, strategy)
    shown = frame[(frame["strategy"] == strategy) & frame["predictor"].isin(predictors)]
    recorded = _recorded(predicted, shown)
    shown = pd.concat([shown, recorded], ignore_index=True) if len(recorded) else shown
    bars = [*([_RECORDED] if len(recorded) else []), *predictors]
    networks = unique(shown["network"])
    parts = [(name, text, look) for name, text, look in _PARTS if (shown[name] > 0).any()]
    colour = strategy_look(strategy).colour
    below = shown_cells(predicted, shown)
    of_base = sentence("parts_base") if strategy != BASE else ""
    further = [sentence("parts_recorded"), *note_sentences(below)] if len(recorded) else []
    page = lay_out(
        f"Predicted parts and measured step: {title_of(strategy)}",
        [*((patch(colour, look), text) for _, text, look in parts), *_legend(strategy)],
        [
            Section(heading, network_panels(part, networks))
            for heading, part in condition_sections(shown, strategy)
        ],
        footer=footer(below, context, [of_base, sentence("parts"), *further]),
        size=_parts_size([_MEASURED, *bars], len(networks)),
    )
    for axes, part in page.facets:
        _fill(axes, part, bars, colour)
    return page.figure, shown[_PARTS_TABLE]


def _recorded(predicted: Predicted, shown: pd.DataFrame) -> pd.DataFrame:
    cells = shown.drop_duplicates("configuration")
    rows = []
    for row in rows_of(cells):
        spans = predicted.spans[predicted.spans["configuration"] == row.configuration]
        if len(spans):
            parts = parts_of(spans)
            of_configuration = cells[cells["configuration"] == row.configuration].assign(**parts)
            of_configuration["predicted_step_s"] = sum(parts.values())
            rows.append(
                of_configuration.assign(predictor=_RECORDED, communication_s=math.nan, notes="")
            )
    return pd.concat(rows) if rows else cells.iloc[:0]


def _parts_size(labels: list[str], networks: int) -> PanelSize:
    turned = max(map(text_width_mm, labels)) * 0.71 + 3.0
    return PanelSize(
        min_width=max(26.0, 6.0 * len(labels)), height=30.0, left=max(10.5, turned - 2),
        between=max(11.0, turned * 0.55), bottom=turned, max_width=16.0 * len(labels),
        max_columns=max(2, min(networks, 5)),
    )  # fmt: skip


def _legend(strategy: str) -> list[tuple[Any, str]]:
    entries: list[tuple[Any, str]] = [(patch("#000000", DatasetLook(1.0, "")), _MEASURED)]
    if strategy != BASE:
        line = Line2D([], [], **_DASHES)
        entries.append((line, "measured sequential step / workers"))
    return entries


def _fill(axes: Axes, part: pd.DataFrame, bars: list[str], colour: str) -> None:
    rows = {row.predictor: row for row in rows_of(part)}
    labels = [_MEASURED, *bars]
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)
    turn_labels(axes, 45)
    top = 0.0
    any_row = next(iter(rows.values()), None)
    if any_row is not None:
        top = max(top, _measured(axes, any_row))
    for place, name in enumerate(bars, start=1):
        if name in rows:
            top = max(top, _stack(axes, place, rows[name], colour))
    seconds_axis(axes, top, "Step", headroom=1.12)
    if any_row is not None and any_row.strategy != BASE:
        share = any_row.base_step_s / any_row.workers
        if math.isfinite(share) and share <= 1.1 * top:
            axes.axhline(share, **_DASHES, gid="base", zorder=4)


def _measured(axes: Axes, row: Any) -> float:
    if not math.isfinite(row.measured_step_s):
        write_instead(axes, 0, str(row.mark), y=0.04)
        return 0.0
    style: dict[str, Any] = {"facecolor": "white", "edgecolor": "black", "linewidth": 0.8}
    axes.bar(0, row.measured_step_s, width=0.7, gid="measured", **style)
    ends = (row.measured_low_s, row.measured_high_s)
    if all(map(math.isfinite, ends)):
        axes.plot([0, 0], ends, color="black", linewidth=0.8, marker="_", markersize=3, zorder=3)
        return float(ends[1])
    return float(row.measured_step_s)


def _stack(axes: Axes, place: int, row: Any, colour: str) -> float:
    if not math.isfinite(row.predicted_step_s):
        write_instead(axes, place, NOT_PREDICTED, y=0.04)
        return 0.0
    foot = 0.0
    for name, _, look in _PARTS:
        height = float(getattr(row, name))
        if height <= 0:
            continue
        axes.bar(place, height, bottom=foot, width=0.7, gid=name, **bar_style(colour, look))
        foot += height
    return foot
