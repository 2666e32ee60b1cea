"""Time of a sample over the number of micro-batches of a pipeline (thesis Table 6.1)."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, in_dataset_order, strategy_label
from ddlbench.planning.strategy import known_strategy
from ddlbench.report import published
from ddlbench.report.bars import write_instead
from ddlbench.report.curves import DASHES, sample, ticks_at, whisker
from ddlbench.report.footer import Context, footer, sentence
from ddlbench.report.labels import workers_label
from ddlbench.report.layout import PanelSize, Section, lay_out, network_panels, unique
from ddlbench.report.looks import strategy_look
from ddlbench.report.predicted import Predicted, own_predictors, shown_cells
from ddlbench.report.style import plain
from ddlbench.report.tables import rows_of

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
    rows = [_of_6_1(row) for row in rows_of(_pipelines(predictions))]
    rows += [_of_thesis(row) for row in rows_of(published.micro_batches())] if rows else []
    return pd.DataFrame(rows, columns=list(_COLUMNS_6_1))


def _of_6_1(row: Any) -> dict[str, Any]:
    same = ("strategy", "network", "dataset", "batch_size", "chunks", "predictor", "signed_error")
    return {
        **{name: getattr(row, name) for name in same},
        "source": "measured here",
        "geometry": f"{row.nodes}x{row.devices_per_node}",
        "micro_batch": row.batch_size // row.chunks,
        "ideal_factor": _factor(row.nodes * row.devices_per_node, row.chunks),
        "measured_samples_per_s": row.batch_size / row.measured_step_s,
        "predicted_samples_per_s": row.batch_size / row.predicted_step_s,
        "mark": "" if row.status == Status.OK else row.status,
    }


def _of_thesis(row: Any) -> dict[str, Any]:
    same = ("network", "dataset", "geometry", "batch_size", "chunks", "micro_batch")
    return {
        **{name: getattr(row, name) for name in same},
        "source": f"{published.CITATION}, {row.where} ({row.hardware})",
        "strategy": "gpipe",
        "ideal_factor": _factor(4, row.chunks),
        "measured_samples_per_s": DATASETS[row.dataset].num_train / row.epoch_s,
        "mark": "",
    }


def draw(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
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
        _fill(axes, part, predictors)
    page.label_rows("Time of a sample (ms)", labelpad=1)
    return page.figure, table_6_1(predicted.predictions)


def _pipelines(predictions: pd.DataFrame) -> pd.DataFrame:
    """Rows of strategies with micro-batches, by their own predictors, with ``chunks``."""
    cells = {str(cell_id): Cell.from_id(str(cell_id)) for cell_id in set(predictions["cell_id"])}
    chunks = predictions["cell_id"].map({key: chunks_of(cell) for key, cell in cells.items()})
    own = {
        (strategy, name)
        for strategy in set(predictions["strategy"])
        for name in own_predictors(predictions, strategy)
    }
    ours = [
        key in own for key in zip(predictions["strategy"], predictions["predictor"], strict=True)
    ]
    kept = chunks.notna() & pd.Series(ours, index=predictions.index)
    rows = predictions[kept].assign(chunks=chunks[kept].astype(int))
    return rows.astype({"measured_step_s": float, "predicted_step_s": float})


def _factor(workers: int, chunks: int) -> float:
    return (workers + chunks - 1) / (workers * chunks)


def _heading(key: Any) -> str:
    strategy, dataset, workers, geometry, batch_size, fabric = key
    parts = [
        strategy_label(strategy),
        dataset_label(dataset),
        f"{workers_label(workers)} ({geometry})",
        f"batch {batch_size}",
    ]
    return ", ".join([*parts, *([f"fabric {fabric}"] if fabric != "default" else [])])


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


def _fill(axes: Axes, part: pd.DataFrame, predictors: list[str]) -> None:
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
        own = part[part["predictor"] == name].sort_values("chunks")
        predicted = 1e3 * own["predicted_step_s"] / own["batch_size"]
        style = _style(predictors, name)
        axes.plot(own["chunks"], predicted, color="#444444", linestyle=style, gid="line")
        values += list(predicted.dropna())
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)
    ticks_at(axes.xaxis, [float(count) for count in counts])
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(plain)
    axes.set_ylim(0, 1.12 * max(*values, 1e-9))
    axes.set_xlabel("Micro-batches", labelpad=1)
