"""Projected and measured iterations, with computation and communication (ParaDL, Figure 1).

::

        87   94                accuracy of a projection, in percent
       |/|  |/|  |/|           communication
       |#|  |#|  | |           computation
    published corrected measured        a group is a number of devices

Beside a run of a cell that ParaDL measured, too, stands its printed bar, with a dashed edge. A row
is a network, a column per strategy; every panel has its own scale. Accuracy is ParaDL's: 1 -
|projected - measured| / measured, which may be below zero. The same code draws our own runs and the
published measurements.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.predict.accuracy import LIMIT, departs
from ddlbench.predict.hardware import Platform
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED, projected, reliable_rows
from ddlbench.report.bars import labels_height_mm, write_labels
from ddlbench.report.footer import Context, footer, sentence
from ddlbench.report.labels import strategy_look
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, nothing_to_show
from ddlbench.report.predicted import NOT_PREDICTED, Predicted, shown_cells
from ddlbench.report.published import is_of
from ddlbench.report.style import GREY, seconds_axis, shade
from ddlbench.report.tables import rows_of, table_text

MEASURED, PRINTED = "measured", "printed"
SOURCES = ("authors-code", "corrected", MEASURED, PRINTED)
COLUMNS = [
    "row", "strategy", "place", "order", "source", "compute_s", "communication_s", "step_s",
    "accuracy", "departs", "mark",
]  # fmt: skip
_LEGEND = {
    "authors-code": "projected, authors' code",
    "corrected": "projected, corrected (in the strategy's colour)",
    MEASURED: "measured",
    PRINTED: "printed: ParaDL, Fig. 1 (V100, its batches)",
}
_PLAIN = "#9A9A9A"
_OURS = {
    "data": "ddp",
    "data+filter": "data-filter",
    "data+spatial": "data-spatial",
    "pipeline": "pipe-gpipe",
    "serial": "sequential",
}
_DEPARTS = "!"
_DASHES = (0, (3, 1.5))  # of a printed bar's edge


def draw_bars(title: str, bars: pd.DataFrame, places_label: str, footer: list[str]) -> Figure:
    """Draw all bars.

    In ``bars`` (:data:`COLUMNS`) ``row`` heads a row of panels, ``place`` labels a group, ``order``
    sorts groups. A bar whose parts are NaN is not divided. ``mark`` is the reason why there is no
    bar. Runs are marked from a relative departure of :data:`LIMIT` on.
    """
    sources = [source for source in SOURCES if source in set(bars["source"])]
    several = bars["place"].nunique() > 1
    labels = list(dict.fromkeys(_title(str(strategy)) for strategy in bars["strategy"]))
    by_panel = bars.groupby(["row", "strategy"])["place"]
    groups = int(by_panel.nunique().max()) if several else len(labels)
    numbers = sentence("oracle_numbers", departs=_DEPARTS, limit=LIMIT)
    least = max(24.0, 2.3 * groups * (len(sources) + 1))
    page = lay_out(
        title,
        [*((_sample(source), _LEGEND[source]) for source in sources), *_parts(bars)],
        _sections(bars, several),
        footer=[numbers, *footer],
        size=PanelSize(
            min_width=least, height=32.0, left=11.0, between=10.0, max_width=max(90.0, least),
            max_columns=5,
            bottom=lambda axes_mm: 8.0 if several else labels_height_mm(labels, axes_mm),
        ),
    )  # fmt: skip
    for axes, of_panel in page.facets:
        _fill(axes, of_panel, sources, page.width_mm)
        if several:
            axes.set_xlabel(places_label, labelpad=1)
    return page.figure


def _sections(bars: pd.DataFrame, several: bool) -> list[Section]:
    """A panel for each strategy; where all ran at one place, a panel for each row."""
    rows = bars.groupby("row", sort=False)
    if several:
        return [
            Section(
                str(row),
                [
                    Panel(_title(str(strategy)), data=of_strategy)
                    for strategy, of_strategy in part.groupby("strategy", sort=False)
                ],
            )
            for row, part in rows
        ]
    titles = bars["strategy"].map(str).map(_title)
    orders = dict.fromkeys(titles)
    by_strategy = bars.assign(place=titles, order=titles.map(list(orders).index))
    rows = by_strategy.groupby("row", sort=False)
    return [Section("", [Panel(str(row), data=of_strategy) for row, of_strategy in rows])]


def _own_name(strategy: str) -> str:
    name = strategy.partition(",")[0]
    return _OURS.get(name, name)


def _title(strategy: str) -> str:
    """The strategy's label; ParaDL's own word where it stands for several of our strategies."""
    name, comma, rest = strategy.partition(",")
    alone = name in ("data", "pipeline", "serial")
    return f"{name.capitalize() if alone else strategy_label(_own_name(name))}{comma}{rest}"


def _sample(source: str) -> Patch:
    looks = {"authors-code": _PLAIN, "corrected": "#4477AA", MEASURED: "#000000", PRINTED: GREY}
    colour = looks[source]
    face = "white" if source in (MEASURED, PRINTED) else colour
    sample = Patch(facecolor=face, edgecolor=colour, linewidth=0.8)
    if source == PRINTED:
        sample.set_linestyle(_DASHES)
    return sample


def _parts(bars: pd.DataFrame) -> list[tuple[Any, str]]:
    if not bars["communication_s"].notna().any():
        return []
    hatched = Patch(facecolor="white", edgecolor=GREY, hatch="//////", linewidth=0.6)
    return [(hatched, "of it communication")]


def _fill(axes: Axes, of_panel: pd.DataFrame, sources: list[str], width_mm: float) -> None:
    places = list(dict.fromkeys(of_panel.sort_values("order")["place"]))
    pitch = len(sources) + 1
    axes.set_xlim(-0.5, len(places) * pitch - 0.5)
    middles = [place * pitch + (len(sources) - 1) / 2 + 0.5 for place in range(len(places))]
    write_labels(axes, middles, places, width_mm)
    top = float(of_panel["step_s"].max())
    for bar in rows_of(of_panel):
        x = places.index(bar.place) * pitch + sources.index(bar.source) + 0.5
        colour = strategy_look(_own_name(bar.strategy)).colour
        _draw_bar(axes, x, bar, _PLAIN if bar.source == "authors-code" else colour)
        text = str(bar.mark) or _accuracy(bar)
        if text:
            height = float(bar.step_s) if math.isfinite(bar.step_s) else 0.0
            axes.text(
                x, height + 0.02 * (top if math.isfinite(top) else 1.0), text, rotation=90,
                ha="center", va="bottom", gid="mark" if bar.mark else "number",
                color=GREY if bar.mark else "black",
            )  # fmt: skip
    seconds_axis(axes, top, "Iteration", headroom=1.3)


def _draw_bar(axes: Axes, x: float, bar: Any, colour: str) -> None:
    if not math.isfinite(bar.step_s):
        return
    measured = bar.source in (MEASURED, PRINTED)
    divided = math.isfinite(bar.communication_s)
    compute_s = bar.compute_s if divided else bar.step_s
    style: dict[str, Any] = {"width": 0.86, "edgecolor": "black" if measured else colour}
    if bar.source == PRINTED:
        style |= {"edgecolor": GREY, "linestyle": _DASHES}
    face = "white" if measured else colour
    axes.bar(x, compute_s, facecolor=face, linewidth=0.6, gid="compute", **style)
    if divided:
        pale = "white" if measured else shade(colour, 0.65)
        axes.bar(
            x, bar.communication_s, bottom=compute_s, facecolor=pale, hatch="//////",
            linewidth=0.6, gid="communication", **style,
        )  # fmt: skip


def _accuracy(bar: Any) -> str:
    if bar.source in (MEASURED, PRINTED) or not math.isfinite(bar.accuracy):
        return ""
    return f"{100 * bar.accuracy:.0f}{_DEPARTS if bar.departs else ''}"


def draw_published(
    rows: pd.DataFrame, platform: Platform, source: str
) -> tuple[Figure, pd.DataFrame]:
    """Rows are networks, columns strategies, groups numbers of devices.

    ``rows`` are one campaign of :func:`ddlbench.predict.paradl.measured.measured_rows`; ``source``
    is a sentence for the footer.
    """
    bars = bars_of_table(rows, platform)
    below = [f"{source} Means of the accuracies: ddlbench oracle score."]
    title = "ParaDL's oracle: projected and measured iteration"
    return draw_bars(title, bars, "Devices", below), bars


def bars_of_table(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """A row for each bar: the measurement and both variants of the projection."""
    keys = rows[["model", "strategy", "gpus"]].copy()
    batches = rows["batch_per_group"].fillna(rows["batch_global"]).fillna(rows["batch_per_gpu"])
    several = batches.groupby([keys["model"], keys["strategy"]]).transform("nunique") > 1
    place = pd.DataFrame(
        {
            "row": keys["model"].map(network_label),
            "strategy": keys["strategy"],
            "place": [
                f"{gpus:g}\nb={batch:g}" if more else f"{gpus:g}"
                for gpus, batch, more in zip(keys["gpus"], batches, several, strict=True)
            ],
            "order": keys["gpus"] * 1e6 + batches.fillna(0),
        }
    )
    measured_s = rows["seconds_per_iteration"]
    low_s, high_s = (rows[name].fillna(measured_s) for name in ("s_per_it_min", "s_per_it_max"))
    parts = [
        place.assign(**_bar(MEASURED, rows["compute_seconds"], rows["comm_seconds"], measured_s))
    ]
    for variant in SOURCES[:2]:
        projection = projected(rows, platform, variant)
        iteration_s = projection["iteration"]
        parts.append(
            place.assign(
                **_bar(
                    variant,
                    projection["compute"],
                    projection["communication"],
                    iteration_s,
                    accuracy=1 - (iteration_s - measured_s).abs() / measured_s,
                    departs=(low_s > iteration_s * (1 + LIMIT))
                    | (high_s < iteration_s / (1 + LIMIT)),
                )
            )
        )
    bars = pd.concat(parts)[COLUMNS]
    orders = {"strategy": list(STRATEGIES), "source": list(SOURCES)}
    return bars.sort_values(
        ["row", "strategy", "order", "source"],
        key=lambda column: (
            column.map(orders[column.name].index) if column.name in orders else column
        ),
    ).reset_index(drop=True)


def published_table() -> str:
    """The CSV beside the figure of the published campaign, docs/oracle/oracle.csv."""
    return table_text(
        bars_of_table(reliable_rows(PUBLISHED_MEASURED, "report"), Platform.load("abci"))
    )


_PREDICTORS = {"paradl-authors": "authors-code", "paradl-corrected": "corrected"}


def draw_runs(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Rows are networks and datasets, columns strategies, groups geometries.

    With a single geometry, the groups of one panel are strategies.
    """
    frame = predicted.predictions
    shown = frame[frame["predictor"].isin(_PREDICTORS)]
    title = "ParaDL's oracle: projected and measured step"
    if shown.empty:
        below = footer(shown_cells(predicted, shown), context, [])
        return nothing_to_show(title, "No prediction by the oracle yet.", below, COLUMNS)
    bars = bars_of_runs(shown, with_printed=is_of(context.paper, "paradl/fig1"))
    below = footer(shown_cells(predicted, shown), context, [sentence("oracle")])
    return draw_bars(title, bars, "Nodes x devices", below), bars


def bars_of_runs(predictions: pd.DataFrame, with_printed: bool = True) -> pd.DataFrame:
    """A row for each bar: every prediction, and one measurement of each configuration.

    ``with_printed``: also what ParaDL prints of the same network, strategy and number of devices.
    """
    printed = {
        (row.model, _own_name(row.strategy), int(row.gpus)): row
        for row in rows_of(reliable_rows(PUBLISHED_MEASURED, "report"))
        if with_printed
    }
    bars: list[dict[str, Any]] = []
    seen = set()
    for row in rows_of(predictions):
        strategy = f"{row.strategy}, {row.variant}" if row.variant else str(row.strategy)
        place = {
            "row": f"{network_label(str(row.network))}, {dataset_label(str(row.dataset))}",
            "strategy": strategy,
            "place": str(row.geometry),
            "order": row.workers + row.nodes / 1000,
        }
        if row.cell_id not in seen:
            seen.add(row.cell_id)
            bars.append(place | _measured(row))
            key = (row.network, row.strategy, row.workers)
            if row.dataset == "imagenet" and key in printed:
                print_of = printed[key]
                parts_s = (print_of.compute_seconds, print_of.comm_seconds)
                bars.append(place | _bar(PRINTED, *parts_s, print_of.seconds_per_iteration))
        bars.append(place | _projected(row))
    return pd.DataFrame(bars, columns=COLUMNS)


def _measured(row: Any) -> dict[str, Any]:
    # The mean wait of a step may exceed the median step, where one step was very long.
    wait_s = min(float(getattr(row, "measured_wait_s", math.nan)), float(row.measured_step_s))
    mark = "" if math.isfinite(row.measured_step_s) else str(row.mark or row.status)
    return _bar(MEASURED, row.measured_step_s - wait_s, wait_s, row.measured_step_s, mark=mark)


def _bar(
    source: str, compute_s: Any, communication_s: Any, step_s: Any, **judged: Any
) -> dict[str, Any]:
    """The columns of a bar, or of several of one source."""
    parts = {"compute_s": compute_s, "communication_s": communication_s, "step_s": step_s}
    return {"source": source, **parts, "accuracy": math.nan, "departs": False, "mark": "", **judged}


def _projected(row: Any) -> dict[str, Any]:
    known = math.isfinite(row.predicted_step_s)
    off = known and math.isfinite(row.measured_step_s) and bool(
        departs(
            row.measured_step_s, row.measured_low_s, row.measured_high_s, row.predicted_step_s,
            LIMIT,
        )
    )  # fmt: skip
    return _bar(
        _PREDICTORS[row.predictor],
        row.compute_s + row.bubble_s,
        row.communication_s,
        row.predicted_step_s,
        accuracy=1 - abs(row.signed_error),
        departs=off,
        mark="" if known else NOT_PREDICTED,
    )
