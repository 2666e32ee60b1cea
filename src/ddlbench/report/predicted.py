"""What the figures of predictions show: predictions, joined with the tables of their cells.

Of a pipeline of torchgpipe a step is recorded as passes (``partitions.csv``). What a partition does
between two passes follows from them: a forward pass needs the one of the partition before, a
backward pass that of the partition behind::

    partition 1   | F0 | F1 | F2 |
    partition 2  | w  |s| F0 |s| F1 |      s  sending: the input is computed, the partition is free,
                                              and the pass has not begun
                                           w  waiting: the input is not computed, or there is none

The thesis asks of such a step how much of it is computing, sending and waiting (Figure 6.1), and
whether passes hide the messages (Figure 6.3). Where one process drives partitions in turns, as
torchgpipe on CPUs, sending includes waiting for the turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError, first_line
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.experiment.registry import BASE
from ddlbench.planning.labels import dataset_label, in_dataset_order, strategy_label
from ddlbench.planning.strategy import workers_of
from ddlbench.predict.accuracy import read_predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, predictor_of
from ddlbench.report.footer import is_set, without_signs
from ddlbench.report.labels import status_mark, variant_labels
from ddlbench.report.tables import read_tables, rows_of

NOT_PREDICTED = "no prediction"
SPANS_FILE = "partitions.csv"
SENDING, WAITING = "sending", "waiting"
_FROM = {"forward": -1, "backward": 1}  # the partition that computes a pass' input
_COLUMNS = ["partition", "kind", "micro_batch", "start_s", "end_s"]


@dataclass(frozen=True)
class Predicted:
    """Inputs of every figure of predictions.

    Args:
        predictions: a row for each predictor and configuration (``predictions.json``), with the
            further columns of :func:`with_conditions`.
        summary: ``summary.csv``.
        spans: all rows of ``partitions.csv`` of the cells that have one, with ``configuration``.
    """

    predictions: pd.DataFrame
    summary: pd.DataFrame
    spans: pd.DataFrame


def read_predicted(predictions_json: Path, tables_dir: Path, results: Path = RESULTS) -> Predicted:
    """Read the files of one experiment.

    Raises:
        ConfigError: the predictions are missing or wrong.
    """
    summary = read_tables(tables_dir).summary
    frame = with_conditions(read_predictions(predictions_json), summary)
    cells = frame.drop_duplicates("cell_id")
    site = str(summary["site"].iloc[0])
    return Predicted(frame, summary, _spans(cells["cell_id"], site, results))


def with_conditions(predictions: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Add ``configuration``, ``geometry``, ``workers``, ``variant``, ``mark`` and the flags."""
    frame = predictions.reset_index(drop=True)
    numbers = [c for c in frame.columns if c.endswith(("_s", "_bytes", "_error", "_spread"))]
    frame = frame.astype(dict.fromkeys(numbers, float))
    cells = frame.drop_duplicates("cell_id").copy()
    cells["configuration"] = [str(cell_id).removesuffix("/rep0") for cell_id in cells["cell_id"]]
    cells["geometry"] = [f"{row.nodes}x{row.devices_per_node}" for row in rows_of(cells)]
    cells["workers"] = [workers_of(Cell.from_id(str(cell_id))) for cell_id in cells["cell_id"]]
    cells = cells.join(
        summary.set_index("configuration")[["stale", "noisy", "unsteady", "ran_as"]],
        on="configuration",
    )
    cells["ran_as"] = cells["ran_as"].fillna("")
    cells["variant"] = variant_labels(cells)
    for name in ("stale", "noisy", "unsteady"):
        cells[name] = cells[name].map(is_set).astype(bool)
    added = ["configuration", "geometry", "workers", "variant", "stale", "noisy", "unsteady"]
    frame = frame.merge(cells[["cell_id", *added]], on="cell_id", how="left")
    frame["mark"] = [
        status_mark(row.status) or (NOT_PREDICTED if pd.isna(row.signed_error) else "")
        for row in rows_of(frame)
    ]
    return frame


def own_predictors(frame: pd.DataFrame, strategy: str) -> list[str]:
    """``ddlbench``, then the predictors made for this strategy, in the registry's order.

    Others that model all strategies are left out, and so is a predictor without any prediction,
    unless none has one.
    """
    rows = frame[frame["strategy"] == strategy]
    names = [name for name in dict.fromkeys(map(str, rows["predictor"])) if _is_own(name)]
    names.sort(key=lambda name: name != DEFAULT_PREDICTOR)
    predicting = set(rows.loc[rows["predicted_step_s"].notna(), "predictor"])
    return [name for name in names if name in predicting] or names


def condition_label(strategy: str, workers: Any, geometry: str, variant: str) -> str:
    """The heading of a section: workers, geometry and variant."""
    if strategy == BASE and not variant:
        return ""
    return ", ".join(filter(None, [f"{counted(int(workers), 'worker')} ({geometry})", variant]))


def condition_sections(rows: pd.DataFrame, strategy: str) -> list[tuple[str, pd.DataFrame]]:
    """Headings and rows of the sections of one strategy: by dataset, workers, geometry, variant."""
    sections = []
    for dataset in in_dataset_order(rows["dataset"]):
        of_dataset = rows[rows["dataset"] == dataset]
        groups = of_dataset.groupby(["workers", "geometry", "variant"], sort=False)
        for (workers, geometry, variant), part in groups:
            condition = condition_label(strategy, workers, str(geometry), str(variant))
            sections.append((", ".join(filter(None, [dataset_label(dataset), condition])), part))
    return sections


def shown_cells(predicted: Predicted, frame: pd.DataFrame, marked: bool = False) -> pd.DataFrame:
    """Rows of the summary for the footer of a figure that shows the predictions ``frame``.

    The footer explains no sign of older weights, and without ``marked`` no sign at all.
    """
    chosen = predicted.summary["configuration"].isin(set(frame["configuration"]))
    shown = predicted.summary[chosen] if chosen.any() else predicted.summary
    return shown.assign(update_semantics="") if marked else without_signs(shown)


def title_of(strategy: str) -> str:
    """Name a strategy within a title."""
    return "sequential training" if strategy == BASE else strategy_label(strategy)


def _is_own(name: str) -> bool:
    try:
        return name == DEFAULT_PREDICTOR or predictor_of(name).strategies is not None
    except ConfigError:  # of another package that is not here
        return True


def _spans(cell_ids: Iterable[str], site: str, results: Path) -> pd.DataFrame:
    parts = []
    for cell_id in cell_ids:
        path = results / cell_dir(site, cell_id).relative_to(RESULTS) / SPANS_FILE
        if path.is_file():
            parts.append(_read_spans(path).assign(configuration=cell_id.removesuffix("/rep0")))
    columns = ["configuration", *_COLUMNS]
    return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def _read_spans(path: Path) -> pd.DataFrame:
    try:
        spans = pd.read_csv(path, usecols=_COLUMNS)
        if spans.isna().any(axis=None):
            raise ValueError("a line has too few fields")
        spans.astype({name: float for name in _COLUMNS if name != "kind"})
        return spans
    except (OSError, ValueError) as error:  # pandas' own are ValueErrors
        raise ConfigError(
            f"{path} cannot be read: {first_line(error)}; delete it, or measure its cell again"
        ) from None


def idle_of(spans: pd.DataFrame) -> pd.DataFrame:
    """What partitions do when they do not compute, from the first pass of the step to the last.

    Args:
        spans: passes of one step: ``partition``, ``kind``, ``micro_batch``, ``start_s``, ``end_s``.

    Returns:
        the same columns; ``kind`` is sending or waiting, ``micro_batch`` that of the next pass.
    """
    ends = {(row.kind, row.micro_batch, row.partition): row.end_s for row in rows_of(spans)}
    first_s, last_s = spans["start_s"].min(), spans["end_s"].max()
    idle: list[tuple[int, str, int, float, float]] = []
    for partition in sorted({int(value) for value in spans["partition"]}):
        of_partition = spans[spans["partition"] == partition].sort_values("start_s")
        free_s, number = first_s, 0
        for row in rows_of(of_partition):
            number = int(row.micro_batch)
            source = (row.kind, row.micro_batch, partition + _FROM.get(row.kind, 0))
            there_s = ends.get(source) if row.kind in _FROM else None
            sent_s = row.start_s if there_s is None else min(max(free_s, there_s), row.start_s)
            idle.append((partition, WAITING, number, free_s, sent_s))
            idle.append((partition, SENDING, number, sent_s, row.start_s))
            free_s = max(free_s, row.end_s)
        idle.append((partition, WAITING, number, free_s, last_s))
    frame = pd.DataFrame(idle, columns=_COLUMNS)
    return frame[frame["end_s"] > frame["start_s"]].reset_index(drop=True)


def parts_of(spans: pd.DataFrame) -> dict[str, float]:
    """Seconds of a recorded step, as means over partitions; they add up to its length.

    Returns:
        ``compute_s``, ``exposed_communication_s`` (sending) and ``bubble_s`` (waiting), named as
        predictions are.
    """
    idle, partitions = idle_of(spans), spans["partition"].nunique()
    seconds = (idle["end_s"] - idle["start_s"]).groupby(idle["kind"]).sum() / partitions
    return {
        "compute_s": float((spans["end_s"] - spans["start_s"]).sum()) / partitions,
        "exposed_communication_s": float(seconds.get(SENDING, 0.0)),
        "bubble_s": float(seconds.get(WAITING, 0.0)),
    }


def gap_over_forward(spans: pd.DataFrame) -> float:
    """Median time between two forward passes on a partition, over the median pass.

    NaN with fewer than two passes.
    """
    passes = spans[spans["kind"] == "forward"].sort_values(["partition", "start_s"])
    before = passes.groupby("partition")["end_s"].shift()
    gaps = (passes["start_s"] - before).clip(lower=0.0)
    return float(gaps.median() / (passes["end_s"] - passes["start_s"]).median())
