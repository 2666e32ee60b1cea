"""The predicted parts of a step beside the measured step: they show which term of a model is wrong.

::

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
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlbench.experiment.registry import BASE
from ddlbench.report.bars import patch, write_instead
from ddlbench.report.footer import Context, footer, note_sentences, sentence
from ddlbench.report.layout import PanelSize, Section, lay_out, network_panels, unique
from ddlbench.report.looks import DatasetLook, strategy_look
from ddlbench.report.predicted import (
    NOT_PREDICTED,
    Predicted,
    condition_sections,
    own_predictors,
    shown_cells,
    title_of,
)
from ddlbench.report.recorded_step import parts_of
from ddlbench.report.style import REFERENCE, bar_style, seconds_axis, text_width_mm
from ddlbench.report.tables import rows_of

_DASHES: dict[str, Any] = {**REFERENCE, "linewidth": 0.8}
_PARTS = (
    ("compute_s", "compute", DatasetLook(0.0, "")),
    ("exposed_communication_s", "communication it waits for", DatasetLook(0.55, "/////")),
    ("bubble_s", "bubble", DatasetLook(0.85, ".....")),
)
_MEASURED = "measured"
_RECORDED = "recorded"
_TABLE = [
    "strategy", "predictor", "geometry", "variant", "network", "dataset", "compute_s",
    "exposed_communication_s", "communication_s", "bubble_s", "predicted_step_s",
    "measured_step_s", "measured_low_s", "measured_high_s", "base_step_s", "mark", "notes",
]  # fmt: skip


def draw(predicted: Predicted, context: Context, strategy: str) -> tuple[Figure, pd.DataFrame]:
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
    further = [sentence("parts_recorded"), *note_sentences(below)] if len(recorded) else []
    page = lay_out(
        f"Predicted parts and measured step: {title_of(strategy)}",
        [*((patch(colour, look), text) for _, text, look in parts), *_legend(strategy)],
        [
            Section(heading, network_panels(part, networks))
            for heading, part in condition_sections(shown, strategy)
        ],
        footer=footer(below, context, [*_sentences(strategy), *further]),
        size=_size([_MEASURED, *bars], len(networks)),
    )
    for axes, part in page.facets:
        _fill(axes, part, bars, colour)
    return page.figure, shown[_TABLE]


def _recorded(predicted: Predicted, shown: pd.DataFrame) -> pd.DataFrame:
    """A row as that of a predictor for each cell with a recorded step."""
    cells = shown.drop_duplicates("configuration")
    rows = []
    for row in rows_of(cells):
        spans = predicted.spans[predicted.spans["configuration"] == row.configuration]
        if len(spans):
            parts = parts_of(spans)
            own = cells[cells["configuration"] == row.configuration].assign(**parts)
            own["predicted_step_s"] = sum(parts.values())
            rows.append(own.assign(predictor=_RECORDED, communication_s=math.nan, notes=""))
    return pd.concat(rows) if rows else cells.iloc[:0]


def _size(labels: list[str], networks: int) -> PanelSize:
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
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")
    top = 0.0
    any_row = next(iter(rows.values()), None)
    if any_row is not None:
        top = max(top, _measured(axes, any_row))
    for place, name in enumerate(bars, start=1):
        if name in rows:
            top = max(top, _stack(axes, place, rows[name], colour))
    seconds_axis(axes, top, "Step", headroom=1.12)
    if any_row is not None and any_row.strategy != BASE:
        _base(axes, any_row, top)


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


def _base(axes: Axes, row: Any, top: float) -> None:
    share = row.base_step_s / row.workers
    if math.isfinite(share) and share <= 1.1 * top:
        axes.axhline(share, **_DASHES, gid="base", zorder=4)


def _sentences(strategy: str) -> list[str]:
    return [*([sentence("parts_base")] if strategy != BASE else []), sentence("parts")]
