"""Predicted and measured steps under varied conditions: of links, and of micro-batches.

Link conditions test a predictor's network term::

    step |  o   measured         x: the conditions, from the fastest link to the slowest
         |  ^   a predictor      panels are networks, sections strategies and geometries
         +--base--lat10--bw250--

Predictions for an emulated fabric use the links measured under it. Without a measurement they use
links computed from its delay, rate and loss (``predict/inputs.py``). The footer says which.

Of a pipeline, the time of a sample is drawn over the number of micro-batches (thesis Table 6.1).
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.planning.strategy import known_strategy
from ddlbench.report import published
from ddlbench.report.bars import draw_cross, turn_labels, write_instead
from ddlbench.report.curves import DASHES, log_limits, log_y, sample, ticks_at, whisker
from ddlbench.report.figures.networking import NOT_ENDED
from ddlbench.report.footer import Context, footer, sentence
from ddlbench.report.labels import strategy_look, variant_labels
from ddlbench.report.layout import (
    Panel,
    PanelSize,
    Section,
    lay_out,
    network_panels,
    nothing_to_show,
    unique,
)
from ddlbench.report.predicted import Predicted, condition_label, own_predictors, shown_cells
from ddlbench.report.style import GREY, plain
from ddlbench.report.tables import rows_of

_LOOKS = (
    ("#0072B2", "^"), ("#D55E00", "v"), ("#009E73", "s"), ("#CC79A7", "D"), ("#56B4E9", "<"),
    ("#E69F00", ">"), ("#7A7A00", "p"), ("#5B2A48", "h"),
)  # fmt: skip
_SIGNS = {"^": "△", "v": "▽", "s": "□", "D": "◇", "<": "◁", ">": "▷", "p": "⬠", "h": "⬡"}
_TABLE = [
    "strategy", "geometry", "options", "batch_size", "network", "dataset", "fabric",
    "link_latency_s", "link_bits_per_s", "link_loss", "predictor", "predicted_step_s",
    "measured_step_s", "measured_low_s", "measured_high_s", "signed_error", "computed_links",
    "mark", "notes",
]  # fmt: skip
_ENDS = ("measured_step_s", "measured_low_s", "measured_high_s", "predicted_step_s")
_COMPUTED = "are computed from its delay"
_FABRIC_MM = 9.0  # of the x axis, so that names of fabrics stand upright


def draw(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
    """All parallel strategies that ran over at least two conditions."""
    shown = _shown(predicted)
    title = "Step by link condition: predicted beside measured"
    if shown.empty:
        below = footer(shown_cells(predicted, shown), context, [])
        reason = "No strategy that ran under two conditions."
        return nothing_to_show(title, reason, below, _TABLE)
    fabrics = in_condition_order(shown)
    looks = _looks(shown)
    sections = []
    for heading, part in shown.groupby("section", sort=False):
        panels = []
        for place, network in enumerate(unique(shown["panel"])):
            ends = pd.concat([part[name] for name in _ENDS])
            data = (part[part["panel"] == network], log_limits(ends, 1.6, 1.6))
            # Sections have different predictors, so each has a legend of its signs.
            legend = ", ".join(
                f"{_SIGNS[looks[name][1]]}{name}" for name in unique(part["predictor"])
            )
            panels.append(Panel(network, "" if place else legend, data))
        sections.append(Section(str(heading), panels))
    page = lay_out(
        title,
        [(Line2D([], [], color="black", marker="o", linestyle="none"), "measured")],
        sections,
        footer=footer(shown_cells(predicted, shown), context, _sentences(shown)),
        size=PanelSize(
            min_width=max(40.0, _FABRIC_MM * len(fabrics)), height=30.0, left=13.0, between=4.0,
            bottom=lambda width: 5.0 if width >= _FABRIC_MM * len(fabrics) else 12.0,
            max_width=90.0,
        ),
        share_y=True,
    )  # fmt: skip
    for axes, (of_panel, limits) in page.facets:
        _frame(axes, fabrics, limits)
        _fill_links(axes, of_panel, fabrics, looks)
    page.label_rows("Step (s)", labelpad=1)
    return page.figure, shown[_TABLE]


def in_condition_order(frame: pd.DataFrame) -> list[str]:
    """Fabrics in increasing order of loss, then delay, then 1 / rate."""
    known = frame.drop_duplicates("fabric").fillna(
        {"link_latency_s": -1.0, "link_bits_per_s": math.inf, "link_loss": -1.0}
    )
    ordered = known.sort_values(
        ["link_loss", "link_latency_s", "link_bits_per_s"], ascending=[True, True, False]
    )
    return list(ordered["fabric"])


def _shown(predicted: Predicted) -> pd.DataFrame:
    frame = predicted.predictions
    conditions = predicted.summary.set_index("configuration")[
        ["link_latency_s", "link_bits_per_s", "link_loss"]
    ]
    parts = []
    for strategy, of_strategy in frame.groupby("strategy", sort=False):
        if strategy == BASE or of_strategy["fabric"].nunique() < 2:
            continue
        names = [n for n in own_predictors(frame, str(strategy)) if not n.startswith("paradl-")]
        parts.append(of_strategy[of_strategy["predictor"].isin(names)])
    shown = pd.concat(parts) if parts else frame.iloc[:0]
    shown = shown.join(conditions, on="configuration").reset_index(drop=True)
    variants = variant_labels(shown, without=("fabric",))
    shown["section"] = [
        f"{strategy_label(str(row.strategy))}, "
        + condition_label(str(row.strategy), row.workers, row.geometry, variant)
        for row, variant in zip(rows_of(shown), variants, strict=True)
    ]
    shown["panel"] = [
        f"{network_label(str(row.network))}, {dataset_label(str(row.dataset))}"
        for row in rows_of(shown)
    ]
    shown["computed_links"] = shown["notes"].str.contains(_COMPUTED, regex=False)
    return shown


def _looks(shown: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Choose a colour and marker for each predictor; those of one strategy never share a look."""
    looks: dict[str, tuple[str, str]] = {}
    for _, of_strategy in shown.groupby("strategy", sort=False):
        taken = {looks[name] for name in set(of_strategy["predictor"]) & set(looks)}
        free = (look for look in _LOOKS if look not in taken)
        for name in dict.fromkeys(of_strategy["predictor"]):
            if name not in looks:
                looks[name] = next(free, _LOOKS[-1])
    return looks


def _sentences(shown: pd.DataFrame) -> list[str]:
    computed = unique(shown.loc[shown["computed_links"], "fabric"])
    missing = shown["measured_step_s"].isna().any()
    return [
        sentence("conditions_computed", links=", ".join(map(str, computed))) if computed else "",
        sentence("conditions_crosses") if missing else "",
    ]


def _frame(axes: Axes, fabrics: list[str], limits: tuple[float, float]) -> None:
    log_y(axes, limits, 8)
    axes.set_xlim(-0.5, len(fabrics) - 0.5)
    axes.set_xticks(range(len(fabrics)), fabrics)
    if _FABRIC_MM * len(fabrics) > axes.get_window_extent().width / axes.figure.dpi * 25.4:
        turn_labels(axes, 30)
    axes.tick_params(axis="x", length=0)


def _fill_links(
    axes: Axes, of_panel: pd.DataFrame, fabrics: list[str], looks: dict[str, tuple[str, str]]
) -> None:
    for x, missing in enumerate(fabrics):
        if missing not in set(of_panel["fabric"]):
            write_instead(axes, x, Status.NOT_RUN.value, gid=Status.NOT_RUN.value)
    for fabric, cells in of_panel.groupby("fabric", sort=False):
        x = fabrics.index(str(fabric))
        row = next(rows_of(cells))
        if math.isfinite(row.measured_step_s):
            whisker(axes, x, (row.measured_low_s, row.measured_high_s), "black", 0.8, gid="whisker")
            axes.plot([x], [row.measured_step_s], color="black", marker="o", gid="measured")
        else:
            colour = NOT_ENDED if row.status == Status.TIMEOUT else GREY
            draw_cross(axes, x, colour)
            write_instead(axes, x, str(row.status), y=0.09, gid="status")
        names = [name for name in looks if name in set(cells["predictor"])]
        for place, name in enumerate(names):
            predicted_s = cells.loc[cells["predictor"] == name, "predicted_step_s"].iloc[0]
            if math.isfinite(predicted_s):
                colour, marker = looks[name]
                shift = (place - (len(names) - 1) / 2) * 0.16
                axes.plot(
                    [x + shift + (0.1 if shift >= 0 else -0.1)], [predicted_s], color=colour,
                    marker=marker, markerfacecolor="none", markersize=4.0, linestyle="none",
                    gid="predicted",
                )  # fmt: skip


_STYLES = DASHES[1:4]  # a measured line is whole
_COLUMNS_6_1 = (
    "source", "strategy", "network", "dataset", "geometry", "batch_size", "chunks", "micro_batch",
    "ideal_factor", "measured_samples_per_s", "predictor", "predicted_samples_per_s",
    "signed_error", "mark",
)  # fmt: skip


def chunks_of(cell: Cell) -> int | None:
    """Micro-batches of a step; None for a strategy without micro-batches."""
    value = known_strategy(cell.strategy).option_values(cell).get("chunks")
    return int(value) if value is not None else None


def table_6_1(predictions: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted throughput of every pipeline, followed by the rows of the thesis.

    ``ideal_factor`` is (W + m - 1) / (W m) for W devices and m micro-batches (Eq. 6.1). The thesis
    gives epochs; their samples a second are the dataset's images over the epoch.
    """
    rows = [_our_row(row) for row in rows_of(_pipelines(predictions))]
    rows += [_thesis_row(row) for row in rows_of(published.micro_batches())] if rows else []
    return pd.DataFrame(rows, columns=list(_COLUMNS_6_1))


def _our_row(row: Any) -> dict[str, Any]:
    same = ("strategy", "network", "dataset", "batch_size", "chunks", "predictor", "signed_error")
    return {
        **{name: getattr(row, name) for name in same},
        "source": "measured here",
        "geometry": f"{row.nodes}x{row.devices_per_node}",
        "micro_batch": row.batch_size // row.chunks,
        "ideal_factor": _ideal_factor(row.nodes * row.devices_per_node, row.chunks),
        "measured_samples_per_s": row.batch_size / row.measured_step_s,
        "predicted_samples_per_s": row.batch_size / row.predicted_step_s,
        "mark": "" if row.status == Status.OK else row.status,
    }


def _thesis_row(row: Any) -> dict[str, Any]:
    same = ("network", "dataset", "geometry", "batch_size", "chunks", "micro_batch")
    return {
        **{name: getattr(row, name) for name in same},
        "source": f"{published.CITATION}, {row.where} ({row.hardware})",
        "strategy": "gpipe",
        "ideal_factor": _ideal_factor(4, row.chunks),
        "measured_samples_per_s": DATASETS[row.dataset].num_train / row.epoch_s,
        "mark": "",
    }


def draw_micro_batches(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Panels are networks: time of a sample over the number of micro-batches."""
    frame = _pipelines(predicted.predictions)
    keys = ["strategy", "dataset", "workers", "geometry", "batch_size", "fabric"]
    networks = unique(frame["network"])
    order = in_dataset_order(frame["dataset"])
    frame = frame.sort_values("dataset", key=lambda d: d.map(order.index), kind="stable")
    several = frame.groupby([*keys, "network"])["chunks"].transform("nunique") > 1
    shown = frame[several]
    predictors = list(dict.fromkeys(map(str, shown["predictor"])))
    strategies = list(dict.fromkeys(map(str, shown["strategy"])))
    page = lay_out(
        "Time of a sample by number of micro-batches",
        _legend(strategies, predictors),
        [
            Section(_heading(key), network_panels(part, networks))
            for key, part in shown.groupby(keys, sort=False)
        ],
        footer=footer(shown_cells(predicted, shown), context, [sentence("micro_batches")]),
        size=PanelSize(
            min_width=30.0, height=28.0, left=11.0, between=9.0, max_width=60.0, max_columns=5
        ),
    )
    for axes, part in page.facets:
        _fill_micro_batches(axes, part, predictors)
    page.label_rows("Time of a sample (ms)", labelpad=1)
    return page.figure, table_6_1(predicted.predictions)


def _pipelines(predictions: pd.DataFrame) -> pd.DataFrame:
    """Rows of strategies with micro-batches, by their own predictors, with ``chunks``."""
    cells = {str(cell_id): Cell.from_id(str(cell_id)) for cell_id in set(predictions["cell_id"])}
    chunks = predictions["cell_id"].map({key: chunks_of(cell) for key, cell in cells.items()})
    of_pipeline = {
        (strategy, name)
        for strategy in set(predictions["strategy"])
        for name in own_predictors(predictions, strategy)
    }
    ours = [
        key in of_pipeline
        for key in zip(predictions["strategy"], predictions["predictor"], strict=True)
    ]
    kept = chunks.notna() & pd.Series(ours, index=predictions.index)
    rows = predictions[kept].assign(chunks=chunks[kept].astype(int))
    return rows.astype({"measured_step_s": float, "predicted_step_s": float})


def _ideal_factor(workers: int, chunks: int) -> float:
    return (workers + chunks - 1) / (workers * chunks)


def _heading(key: Any) -> str:
    strategy, dataset, workers, geometry, batch_size, fabric = key
    where = condition_label(strategy, workers, geometry, f"batch {batch_size}")
    heading = f"{strategy_label(strategy)}, {dataset_label(dataset)}, {where}"
    return heading if fabric == "default" else f"{heading}, fabric {fabric}"


def _legend(strategies: list[str], predictors: list[str]) -> list[tuple[Any, str]]:
    entries: list[tuple[Any, str]] = []
    for strategy in strategies:
        entries.append((sample(strategy), f"{strategy_label(strategy)}, measured"))
    for name in predictors:
        handle = Line2D([], [], color="#444444", linestyle=_style(predictors, name))
        entries.append((handle, name))
    return entries


def _style(predictors: list[str], name: str) -> Any:
    return _STYLES[predictors.index(name) % len(_STYLES)]


def _fill_micro_batches(axes: Axes, part: pd.DataFrame, predictors: list[str]) -> None:
    counts = sorted({int(count) for count in part["chunks"]})
    if not counts:
        axes.set_axis_off()
        return
    look = strategy_look(str(part["strategy"].iloc[0]))
    measured = part.drop_duplicates("chunks").sort_values("chunks")
    measured = measured[measured["measured_step_s"].notna()]
    values = [0.0]
    per_sample = 1e3 * measured["measured_step_s"] / measured["batch_size"]
    axes.plot(measured["chunks"], per_sample, color=look.colour, marker=look.marker, gid="measured")
    for row in rows_of(measured):
        ends = [1e3 * end / row.batch_size for end in (row.measured_low_s, row.measured_high_s)]
        values += ends if whisker(axes, row.chunks, ends, look.colour, 0.8) else []
    values += list(per_sample)
    for row in rows_of(part[part["measured_step_s"].isna()].drop_duplicates("chunks")):
        write_instead(axes, row.chunks, str(row.mark), rotation=0)
    for name in predictors:
        of_predictor = part[part["predictor"] == name].sort_values("chunks")
        predicted = 1e3 * of_predictor["predicted_step_s"] / of_predictor["batch_size"]
        style = _style(predictors, name)
        axes.plot(of_predictor["chunks"], predicted, color="#444444", linestyle=style, gid="line")
        values += list(predicted.dropna())
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)
    ticks_at(axes.xaxis, [float(count) for count in counts])
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(plain)
    axes.set_ylim(0, 1.12 * max(*values, 1e-9))
    axes.set_xlabel("Micro-batches", labelpad=1)
