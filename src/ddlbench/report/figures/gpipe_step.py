"""The work of each partition of a pipeline during one step (thesis Figure 6.3).

::

    partition 1   0 1 2 3              3 3  2 2  1 1  0 0      forward, recompute, backward
    partition 2    -0-1-2-3  3  2 2  1 1  0 0                  numbers are micro-batches
                   - sending: the input is computed and the partition free
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlbench.common.units import TIMES, unit_for
from ddlbench.planning.labels import network_label
from ddlbench.report.bars import ground, label_rows, message, patch
from ddlbench.report.footer import Context, footer, note_sentences, sentence
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.looks import DatasetLook, strategy_look
from ddlbench.report.predicted import Predicted, condition_sections, shown_cells
from ddlbench.report.recorded_step import SENDING, gap_over_pass, idle_of, parts_of
from ddlbench.report.style import CENTRED, bar_style, text_width_mm, ticks_in
from ddlbench.report.tables import rows_of

STRATEGY = "gpipe"
_KINDS = {
    "forward": DatasetLook(0.75, ""),
    "recompute": DatasetLook(0.6, "/////"),
    "backward": DatasetLook(0.0, ""),
}
_NOT_RECORDED = "no cell has recorded a step"
_TABLE = [
    "dataset", "network", "geometry", "variant", "partition", "kind", "micro_batch", "start_s",
    "end_s",
]  # fmt: skip
_ROW_MM = 6.0
_SENDING = "#F0E442"


def draw(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Sections are datasets and geometries, panels networks, rows partitions."""
    frame = predicted.predictions
    cells = frame[frame["strategy"] == STRATEGY].drop_duplicates("cell_id")
    recorded = {str(key): part for key, part in predicted.spans.groupby("configuration")}
    shown = cells[cells["configuration"].isin(set(recorded))]
    # Options hardly change the picture: one variant is drawn, all are in the table.
    shown = shown.drop_duplicates(["dataset", "network", "geometry"])
    sections = [
        Section(heading, [_panel(row, recorded[row.configuration]) for row in rows_of(part)])
        for heading, part in condition_sections(shown, STRATEGY)
    ] or [Section("", [Panel("", data=(predicted.spans, 1))])]
    most = max(panel.data[1] for section in sections for panel in section.panels)
    colour = strategy_look(STRATEGY).colour
    below = shown_cells(predicted, cells)
    page = lay_out(
        "What the partitions of GPipe do during a step",
        [
            *((patch(colour, look), kind) for kind, look in _KINDS.items()),
            (patch(_SENDING, DatasetLook(0.0, "")), sentence("gpipe_step_sending")),
        ],
        sections,
        footer=footer(
            below,
            context,
            [
                *map(sentence, ("gpipe_step", "gpipe_step_published")),
                *note_sentences(below),
                *_missing(cells, shown),
            ],
        ),
        size=PanelSize(
            min_width=100.0, height=max(12.0, most * _ROW_MM), between=5.0, max_columns=2,
            left=text_width_mm("partition 10") + 2.5,
        ),
    )  # fmt: skip
    for axes, (spans, workers) in page.facets:
        _fill(axes, spans, workers, page.width_mm, colour)
        axes.tick_params(axis="y", labelleft=axes in page.first_in_row)
    table = predicted.spans.merge(
        cells[["configuration", "dataset", "network", "geometry", "variant"]], on="configuration"
    )
    return page.figure, table[_TABLE]


def shares(spans: pd.DataFrame, workers: int) -> dict[str, float]:
    """Shares of a step for each kind of work and ``gaps``, as means over partitions.

    ``at_once`` is the mean number of partitions that compute at a time.
    """
    length = spans["end_s"].max() - spans["start_s"].min()
    seconds = (spans["end_s"] - spans["start_s"]).groupby(spans["kind"]).sum()
    kinds = {kind: float(seconds.get(kind, 0.0)) / length / workers for kind in _KINDS}
    busy = sum(kinds.values())
    return {**kinds, "gaps": max(0.0, 1 - busy), "at_once": busy * workers}


def _missing(cells: pd.DataFrame, shown: pd.DataFrame) -> list[str]:
    keys = ["dataset", "network", "geometry"]
    count = len(cells.drop_duplicates(keys)) - len(shown)
    if not count:
        return []
    return [f"Not shown: {count} that did not run, or ran before steps were recorded."]


def _panel(row: Any, spans: pd.DataFrame) -> Panel:
    workers = row.workers
    share = shares(spans, workers)
    chunks = int(spans["micro_batch"].max()) + 1
    ideal = (workers - 1) / (workers + chunks - 1)
    kinds = ", ".join(f"{kind} {share[kind]:.0%}" for kind in _KINDS if share[kind])
    parts = parts_of(spans)
    length = sum(parts.values())
    note = (
        f"{kinds}, sending {parts['exposed_communication_s'] / length:.0%}, waiting "
        f"{parts['bubble_s'] / length:.0%} (ideal {ideal:.0%}); "
        f"{share['at_once']:.2g} of {workers} partitions compute at a time"
    )
    if math.isfinite(ratio := gap_over_pass(spans, "forward")):
        note += f"; a gap between forward passes is {ratio:.1f} of a pass"
    return Panel(network_label(row.network), note, (spans, workers))


def _fill(axes: Axes, spans: pd.DataFrame, workers: int, width_mm: float, colour: str) -> None:
    label_rows(axes, [f"partition {index + 1}" for index in range(workers)])
    axes.grid(visible=False)
    if not len(spans):
        axes.set_xticks([])
        message(axes, _NOT_RECORDED, width_mm)
        return
    start = spans["start_s"].min()
    length = float(spans["end_s"].max() - start)
    idle = idle_of(spans)
    for row in rows_of(idle[idle["kind"] == SENDING]):
        axes.barh(
            row.partition, row.end_s - row.start_s, left=row.start_s - start, height=0.3,
            color=_SENDING, gid=SENDING,
        )  # fmt: skip
    numbered = _numbered(spans, width_mm / length)
    for row in rows_of(spans):
        look = _KINDS.get(str(row.kind), DatasetLook(0.5, ""))
        duration = row.end_s - row.start_s
        style = {**bar_style(colour, look), "linewidth": 0.5, "gid": str(row.kind)}
        axes.barh(row.partition, duration, left=row.start_s - start, height=0.72, **style)
        if row.kind in numbered:
            middle = row.start_s - start + duration / 2
            _number(axes, middle, row.partition, str(row.micro_batch), look)
    axes.set_xlim(0, length)
    ticks_in(unit_for(length, TIMES), axes.xaxis, "Time in the step", 5)


def _numbered(spans: pd.DataFrame, mm_per_s: float) -> set[str]:
    """Kinds of work whose boxes all have room for their numbers; a lone number says nothing."""
    rooms = (spans["end_s"] - spans["start_s"]) * mm_per_s
    needs = spans["micro_batch"].map(lambda number: text_width_mm(str(number)) + 0.8)
    return set(spans["kind"]) - set(spans.loc[rooms <= needs, "kind"])


def _number(axes: Axes, x: float, y: float, text: str, look: DatasetLook) -> None:
    colour = "white" if look.white < 0.3 else "black"
    drawn = axes.text(x, y, text, color=colour, gid="number", **CENTRED)
    if look.hatch:
        drawn.set_bbox(ground(0.3))
