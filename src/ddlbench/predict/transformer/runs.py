"""Measured runs of GPTs: read or collected, predicted by a platform, its constants fitted.

Columns are those of :mod:`ddlbench.predict.transformer.configurations`, and ``step_s``. Scores are
those of :mod:`.run_scores`.

In a fit every model size weighs alike, however many runs it has. Errors of runs with the same model
size and cut are correlated, so intervals count these runs as one.

Measured cells of ours become rows, too::

    cell                          row
    network, dataset          ->  layers, hidden_size, attention_heads, sequence_length, vocabulary
    strategy, plan            ->  tensor x data x pipeline, schedule, chunks, micro_batch, ZeRO
    median step of its repeats -> step_s

Left out: networks that are no transformers, strategies that update with older weights, and cuts
that the oracle does not model (a parameter server, torchgpipe's recomputation, split layers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.planning.planner import StrategyPlan, plan_at
from ddlbench.planning.workload import FLOAT32_BYTES
from ddlbench.predict.constants import Array, Fit, HeldOut, equal_weights, fit, weak_pull
from ddlbench.predict.evaluate import measure
from ddlbench.predict.hardware import Accelerators
from ddlbench.predict.run_tables import each_kind
from ddlbench.predict.transformer.configurations import SCHEDULES
from ddlbench.predict.transformer.step import steps
from ddlbench.predict.transformer.training_runs import PUBLISHED, TrainingRuns

MEGATRON = PUBLISHED / "megatron_table1.csv"
PLATFORM = "megatron-a100"
HOLD_OUTS: Mapping[str, str] = {"model": "hidden_size", "gpus": "devices", "layers": "layers"}
"""What can be held out, and the column whose values are its kinds."""


def predicted_s(runs: TrainingRuns, platform: Accelerators) -> Array:
    """Seconds of a step of each run, (n,)."""
    return steps(runs.decoders, platform).seconds


_SOFT = 0.05


def calibrate(runs: TrainingRuns, platform: Accelerators) -> Fit:
    """Fit every constant of the platform to ``runs``.

    Raises:
        ConfigError: there are fewer runs than constants.
    """
    runs = runs.take(runs.timed)
    table = runs.decoders
    weights = equal_weights(table["hidden_size"])
    cuts = [table[name] for name in ("hidden_size", "tensor", "data", "pipeline")]
    _, groups = np.unique(np.stack(cuts, axis=1), axis=0, return_inverse=True)
    return fit(
        platform,
        lambda tried: predicted_s(runs, tried),
        runs.step_s,
        soft=_SOFT,
        pull=weak_pull(_SOFT, weights.sum(), len(platform.constants)),
        weights=weights,
        groups=groups.ravel(),
    )


def held_out_s(
    runs: TrainingRuns, known: TrainingRuns, platform: Accelerators, hold_out: str
) -> Array:
    """Seconds of every run, each predicted with constants fitted without runs of its kind.

    Args:
        runs: whose kinds are held out in turn.
        known: runs to fit, those of the kind left out.
        platform: with priors; as it is for "none".
        hold_out: a key of :data:`HOLD_OUTS`, or "none".

    Raises:
        ConfigError: there is no such kind, or too few runs are left.
    """
    if hold_out == "none":
        return predicted_s(runs, platform)
    if hold_out not in HOLD_OUTS:
        options = ", ".join(("none", *HOLD_OUTS))
        raise ConfigError(f"--hold-out {hold_out}: the table has no such column; write {options}")
    by = HOLD_OUTS[hold_out]
    predicted = np.zeros(len(runs))
    for tried, others in each_kind(runs.decoders[by], known.decoders[by], by):
        fitted = platform.fitted_to(calibrate(known.take(others), platform))
        predicted[tried] = predicted_s(runs.take(tried), fitted)
    return predicted


def calibrated(platform: Accelerators, fitted: Fit, runs: TrainingRuns, where: str) -> Accelerators:
    """The platform with fitted constants, and the interval of its predictions.

    The interval comes from ``runs``, each model size (or else number of devices) held out in turn,
    if the others are enough for a fit.
    """
    free = sum(not constant.fixed for constant in platform.constants.values())
    runs, how = runs.take(runs.timed), "the same that were fitted"
    predicted = predicted_s(runs, platform.fitted_to(fitted))
    for hold_out in ("model", "gpus"):
        by = HOLD_OUTS[hold_out]
        _, counts = np.unique(runs.decoders[by], return_counts=True)
        if len(counts) > 1 and len(runs) - counts.max() >= free:
            predicted = held_out_s(runs, runs, platform, hold_out)
            how = f"each {by} held out in turn"
            break
    return replace(
        platform.fitted_to(fitted),
        fitted_on=f"{fitted.rows} rows of {where}",
        interval=HeldOut.of(runs.step_s / predicted, f"rows of {where}, {how}"),
    )


_PRECISION = "single"  # the arithmetic of fp32 cells
COLUMNS = (
    "cell_id", "repeats", "devices", "hidden_size", "attention_heads", "layers", "sequence_length",
    "vocabulary", "tied_embedding", "global_batch", "micro_batch", "tensor", "data", "pipeline",
    "schedule", "chunks", "zero", "recomputation", "precision", "gradient_bytes", "step_s",
)  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """How a plan cuts the step of a transformer."""

    data: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    schedule: str = SCHEDULES[0]
    chunks: int = 1
    zero: int = 0


def rows_of_cells(
    rows: Sequence[MatrixRow], site: str, results_root: Path = RESULTS
) -> list[dict[str, Any]]:
    """One row (:data:`COLUMNS`) per measured cell of ``rows`` that the oracle models.

    Args:
        rows: the matrix; repeats of a cell become one row.
        site: that the cells ran on.
        results_root: the folder that holds ``<site>/cells``.
    """
    runs = []
    accelerator = rows[0].accelerator if rows else None
    for outcome in measure(rows, site, results_root):
        cell = outcome.cell
        if not outcome.step_s or cell.precision != "fp32":
            continue
        shape = transformer_shape(cell.network, cell.dataset)
        cut = cut_of(plan_at(cell, site, results_root, accelerator)) if shape else None
        if shape is None or cut is None:
            continue
        runs.append(
            {
                "cell_id": cell.id,
                "repeats": len(outcome.step_s),
                "devices": cut.data * cut.pipeline,
                **shape,
                "tied_embedding": "no",  # the head has weights of its own (docs/networks.md)
                "global_batch": cell.batch_size,
                "micro_batch": cell.batch_size // (cut.data * cut.micro_batches),
                "tensor": 1,
                **{name: value for name, value in vars(cut).items() if name in COLUMNS},
                "recomputation": "none",
                "precision": _PRECISION,
                "gradient_bytes": FLOAT32_BYTES,
                "step_s": median(outcome.step_s.values()),
            }
        )
    return runs


def cut_of(plan: StrategyPlan) -> Cut | None:
    """The cut of a plan; None if the oracle does not model it."""
    cell, strategy = plan.cell, plan.strategy
    if not strategy.is_synchronous(cell) or strategy.round_steps(cell) > 1:
        return None
    if cell.devices == 1:
        return Cut()
    count = strategy.micro_batches(plan)
    if strategy.parallelism == "data":
        return _whole_batches(cell, Cut(cell.devices, 1, count, zero=strategy.zero_stage(cell)))
    planned = strategy.schedule_of(plan, 1)
    if planned is None or planned.recomputes or planned.schedule.name not in SCHEDULES:
        return None
    ranks = cell.devices // planned.replicas
    chunks = len(planned.schedule.stage_ranks) // ranks
    cut = Cut(planned.replicas, ranks, count, planned.schedule.name, chunks)
    return _whole_batches(cell, cut)


def _whole_batches(cell: Cell, cut: Cut) -> Cut | None:
    """The cut, if all its micro-batches are equally large."""
    return None if cell.batch_size % (cut.data * cut.micro_batches) else cut
