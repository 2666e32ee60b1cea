"""Pipelines: their speed-up over the bound that the schedule sets, and the work within a step.

::

    speedup         median step of sequential training / median step; so fill and drain of a
                    PipeDream run do not count
    bound           speed-up with equal stages and free messages (Strategy.most_speedup)
    share_of_bound  speedup / bound
    bubble          1 - speedup / devices: the share of the devices' time without useful work
    bubble_least    1 - bound / devices

The work of each partition of GPipe during one step (thesis Figure 6.3)::

    partition 1   0 1 2 3              3 3  2 2  1 1  0 0      forward, recompute, backward
    partition 2    -0-1-2-3  3  2 2  1 1  0 0                  numbers are micro-batches
                   - sending: the input is computed and the partition free
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import TIMES, unit_for
from ddlbench.experiment.cell import Cell
from ddlbench.planning.labels import network_label, strategy_label
from ddlbench.planning.strategy import known_strategy
from ddlbench.report import published
from ddlbench.report.bars import (
    draw_cross,
    draw_point,
    ground,
    label_rows,
    labels_height_mm,
    message,
    patch,
    pitch_mm,
    write_labels,
)
from ddlbench.report.curves import places, sample
from ddlbench.report.footer import Context, footer, note_sentences, reasons_by_mark, sentence
from ddlbench.report.labels import (
    DatasetLook,
    common_workers,
    speedup_mark,
    strategy_look,
    variant_labels,
)
from ddlbench.report.layout import Panel, PanelSize, Section, dataset_sections, lay_out, unique
from ddlbench.report.predicted import (
    SENDING,
    Predicted,
    condition_sections,
    gap_over_forward,
    idle_of,
    parts_of,
    shown_cells,
)
from ddlbench.report.style import CENTRED, REFERENCE, bar_style, text_width_mm, ticks_in
from ddlbench.report.tables import Tables, rows_of

TABLE = [
    "dataset", "network", "strategy", "variant", "geometry", "workers", "batch_size", "n",
    "base_step_s", "step_s", "speedup", "speedup_low", "speedup_high", "bound", "share_of_bound",
    "bubble", "bubble_least", "peak_memory_bytes", "published_speedup", "published_in", "mark",
    "reason", "stale",
]  # fmt: skip


def pipeline_table(tables: Tables) -> pd.DataFrame:
    """A row for each pipeline or model-parallel configuration: :data:`TABLE`, and the summary's."""
    summary = tables.summary.assign(variant=variant_labels(tables.summary))
    steps = summary.set_index("configuration")["step_median_s"]
    ratios_of = _paired_ratios(tables.measurements)
    rows = []
    for row in rows_of(summary):
        bound = _bound(str(row.configuration))
        if bound is None:
            continue
        base_step_s = float(steps.get(row.base_configuration, math.nan))
        if row.no_speedup:
            base_step_s = math.nan
        ratios = ratios_of.get(str(row.configuration), [])
        speedup = base_step_s / row.step_median_s
        rows.append(
            {
                **row._asdict(),
                "base_step_s": base_step_s,
                "step_s": row.step_median_s,
                "speedup": speedup,
                "speedup_low": min(ratios, default=math.nan),
                "speedup_high": max(ratios, default=math.nan),
                "bound": bound,
                "share_of_bound": speedup / bound,
                "bubble": 1 - speedup / row.workers,
                "bubble_least": 1 - bound / row.workers,
                **_published(row),
                "mark": speedup_mark(row, speedup),
            }
        )
    return pd.DataFrame(rows, columns=[*summary.columns, *(set(TABLE) - set(summary.columns))])


_FAMILIES = ("pipeline", "model")


def _bound(configuration: str) -> float | None:
    cell = Cell.from_id(f"{configuration}/rep0")
    strategy = known_strategy(cell.strategy)
    if strategy.family not in _FAMILIES:
        return None
    with suppress(ConfigError):  # no schedule for these numbers
        return strategy.most_speedup(cell)
    return None


def _paired_ratios(measurements: pd.DataFrame) -> dict[str, list[float]]:
    steps = dict(zip(measurements["cell_id"], measurements["step_median_s"], strict=True))
    ratios: dict[str, list[float]] = {}
    for row in rows_of(measurements):
        ratio = float(steps.get(row.base_cell_id, math.nan)) / row.step_median_s
        if math.isfinite(ratio) and not row.no_speedup:
            ratios.setdefault(str(row.cell_id).rpartition("/")[0], []).append(ratio)
    return ratios


def _published(row: Any) -> dict[str, Any]:
    """The thesis' speed-up of the same strategy, network, dataset and geometry, if it has one."""
    speedups = published.speedups()
    family = "gpipe" if row.strategy == "pipe-gpipe" else row.strategy
    for name, value in (("strategy", family), *((n, getattr(row, n)) for n in _SAME)):
        speedups = speedups[speedups[name] == value]
    if speedups.empty:
        return {"published_speedup": math.nan, "published_in": ""}
    first = speedups.iloc[0]  # Figure 3.1 before 3.2, whose bar of four GPUs is the same
    return {
        "published_speedup": first["speedup"],
        "published_in": f"{published.CITATION}, {first['where']} ({first['hardware']})",
    }


_SAME = ("network", "dataset", "geometry")


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Sections are datasets, panels networks; strategies are side by side at each geometry.

    With a single geometry, strategies are on x and need no legend.
    """
    shown = pipeline_table(tables)
    names = list(dict.fromkeys(zip(shown["strategy"], shown["variant"], strict=True)))
    geometries = unique(shown.sort_values(["workers", "nodes"])["geometry"])
    several = len(geometries) > 1
    labels = geometries if several else [strategy_label(*name) for name in names]
    pitch = max(5.0, pitch_mm(labels))
    fills = {name: _FILLS[place % len(_FILLS)] for name, place in places(names).items()}
    on_workers = common_workers(shown["workers"])
    page = lay_out(
        f"Share of its own bound that each pipeline reaches {on_workers}".strip(),
        [
            (sample(name[0], linestyle="none", fillstyle=fill), strategy_label(*name))
            for name, fill in fills.items()
        ]
        if several
        else [],
        dataset_sections(shown),
        footer=footer(shown, context, [sentence("pipelines"), _whiskers(shown), _missing(shown)]),
        size=PanelSize(
            min_width=max(36.0, 1.9 * len(names) * len(geometries), pitch * len(labels)),
            height=34.0,
            left=11.0,
            between=3.0,
            max_columns=2,
            bottom=lambda axes_mm: labels_height_mm(labels, axes_mm) + (4.0 if several else 0.0),
        ),
        share_y=True,
    )
    top = 1.1 * max([1.0, *shown["share_of_bound"].dropna()])
    for axes, part in page.facets:
        _frame(axes, labels, top, page.width_mm)
        if several:
            axes.set_xlabel("Nodes x devices a node", labelpad=1)
        for row in rows_of(part):
            x: float = names.index((row.strategy, row.variant))
            if several:
                x = geometries.index(row.geometry) + 0.86 * ((x + 0.5) / len(names) - 0.5)
            _draw_point(axes, row, x, fills[row.strategy, row.variant] if several else "full")
    page.label_rows("Speed-up over bound")
    return page.figure, shown[TABLE]


def _whiskers(shown: pd.DataFrame) -> str:
    most = int(shown["n"].max()) if len(shown) else 0
    return f"Whiskers: range over {most} repeats, each against its own base." if most > 1 else ""


def _missing(shown: pd.DataFrame) -> str:
    text = reasons_by_mark(
        shown, lambda name, rows: f"{strategy_label(name)} {', '.join(unique(rows.geometry))}"
    )
    return f"Crosses: {text}." if text else ""


def _frame(axes: Axes, labels: list[str], top: float, width_mm: float) -> None:
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylim(0, top)
    axes.axhline(1, **REFERENCE, zorder=1, gid="bound")
    for edge in range(1, len(labels)):
        axes.axvline(edge - 0.5, color="#dddddd", linewidth=0.5, zorder=1)
    write_labels(axes, range(len(labels)), labels, width_mm)


_FILLS = ("full", "left", "top", "right", "bottom")
"""Of the marks of the variants of a strategy."""


def _draw_point(axes: Axes, row: Any, x: float, fill: str) -> None:
    look = strategy_look(str(row.strategy))
    if row.mark:
        draw_cross(axes, x, look.colour)
        return
    if row.n > 1:
        ends = [row.speedup_low / row.bound, row.speedup_high / row.bound]
        axes.plot([x, x], ends, color=look.colour, linewidth=0.8, zorder=2, gid="whisker")
    draw_point(axes, (x, row.share_of_bound), look, row, fill=fill)


STRATEGY = "gpipe"
_KINDS = {
    "forward": DatasetLook(0.75, ""),
    "recompute": DatasetLook(0.6, "/////"),
    "backward": DatasetLook(0.0, ""),
}
_NOT_RECORDED = "no cell has recorded a step"
_STEP_TABLE = [
    "dataset", "network", "geometry", "variant", "partition", "kind", "micro_batch", "start_s",
    "end_s",
]  # fmt: skip
_ROW_MM = 6.0
_SENDING = "#F0E442"


def draw_gpipe_step(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
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
                _not_shown(cells, shown),
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
    return page.figure, table[_STEP_TABLE]


def shares(spans: pd.DataFrame, workers: int) -> dict[str, float]:
    """Shares of a step for each kind of work and ``gaps``, as means over partitions.

    ``at_once`` is the mean number of partitions that compute at a time.
    """
    length = spans["end_s"].max() - spans["start_s"].min()
    seconds = (spans["end_s"] - spans["start_s"]).groupby(spans["kind"]).sum()
    kinds = {kind: float(seconds.get(kind, 0.0)) / length / workers for kind in _KINDS}
    busy = sum(kinds.values())
    return {**kinds, "gaps": max(0.0, 1 - busy), "at_once": busy * workers}


def _not_shown(cells: pd.DataFrame, shown: pd.DataFrame) -> str:
    count = len(cells.drop_duplicates(["dataset", "network", "geometry"])) - len(shown)
    text = f"Not shown: {count} that did not run, or ran before steps were recorded."
    return text if count else ""


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
    if math.isfinite(ratio := gap_over_forward(spans)):
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
            colour_of_text = "white" if look.white < 0.3 else "black"
            number = axes.text(
                middle, row.partition, str(row.micro_batch), color=colour_of_text, gid="number",
                **CENTRED,
            )  # fmt: skip
            if look.hatch:
                number.set_bbox(ground(0.3))
    axes.set_xlim(0, length)
    ticks_in(unit_for(length, TIMES), axes.xaxis, "Time in the step", 5)


def _numbered(spans: pd.DataFrame, mm_per_s: float) -> set[str]:
    """Kinds of work whose boxes all have room for their numbers; a lone number says nothing."""
    rooms = (spans["end_s"] - spans["start_s"]) * mm_per_s
    needs = spans["micro_batch"].map(lambda number: text_width_mm(str(number)) + 0.8)
    return set(spans["kind"]) - set(spans.loc[rooms <= needs, "kind"])
