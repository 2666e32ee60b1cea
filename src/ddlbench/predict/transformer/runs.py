"""Measured runs of GPTs: read or collected, predicted by a platform, its constants fitted.

Columns are those of :mod:`ddlbench.predict.transformer.configurations`, and ``step_s``. Scores are
those of :mod:`.run_scores`.

In a fit every model size weighs alike, however many runs it has. Runs with the same model size and
cut err together: intervals count them as one.

Measured cells of ours become rows, too::

    cell                          row
    network, dataset          ->  layers, hidden_size, attention_heads, sequence_length, vocabulary
    strategy, plan            ->  tensor x data x pipeline, schedule, chunks, micro_batch, ZeRO
    median step of its repeats -> step_s

Left out: networks that are no transformers, strategies that update with older weights, and cuts
that the oracle does not know (a parameter server, torchgpipe's recomputation, split layers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.planning.planner import StrategyPlan, plan_at
from ddlbench.predict.constants import Array, Fit, HeldOut, fit
from ddlbench.predict.evaluate import measure
from ddlbench.predict.platforms import Accelerators
from ddlbench.predict.run_tables import each_kind, read_table, refuse
from ddlbench.predict.transformer.configurations import (
    NEEDED,
    SCHEDULES,
    Configurations,
    configurations,
)
from ddlbench.predict.transformer.step import steps

PUBLISHED = Path(str(files("ddlbench.predict.transformer").joinpath("published")))
ONE_NODE = PUBLISHED / "one_node.csv"
MANY_NODES = PUBLISHED / "many_nodes.csv"
MEGATRON = PUBLISHED / "megatron_table1.csv"
PLATFORM = "megatron-a100"
HOLD_OUTS: Mapping[str, str] = {"model": "hidden_size", "gpus": "devices", "layers": "layers"}
"""What can be held out, and the column whose values are its kinds."""


@dataclass(frozen=True)
class Runs:
    """Measured steps.

    Args:
        configurations: of each.
        measured_s: seconds of a step.
    """

    configurations: Configurations
    measured_s: Array

    def __len__(self) -> int:
        return len(self.configurations)

    def take(self, chosen: Any) -> Runs:
        return Runs(self.configurations.take(chosen), self.measured_s[chosen])

    def column(self, name: str) -> Array:
        """A column of numbers, ``devices`` among them."""
        return self.configurations.devices if name == "devices" else self.configurations[name]

    def predicted_s(self, platform: Accelerators) -> Array:
        return steps(self.configurations, platform).seconds


def together(*tables: Runs) -> Runs:
    """Several tables of runs as one."""
    rows = pd.concat([table.configurations.rows for table in tables], ignore_index=True)
    return Runs(Configurations(rows), np.concatenate([table.measured_s for table in tables]))


def read_runs(*paths: Path) -> Runs:
    """Read tables as one.

    Raises:
        ConfigError: a table is unreadable, a column is missing, or a value is wrong.
    """
    return together(*(runs_of(read_table(path, (*NEEDED, "step_s")), str(path)) for path in paths))


def runs_of(table: pd.DataFrame, where: str) -> Runs:
    """The runs of a table.

    Raises:
        ConfigError: as :func:`read_runs`.
    """
    seconds = pd.to_numeric(table["step_s"], errors="coerce")
    wrong = ~(np.isfinite(seconds) & (seconds > 0))
    refuse(wrong, table["step_s"], where, "step_s is {!r}; write seconds above 0")
    return Runs(configurations(table, where), seconds.to_numpy(dtype=float))


def gpt_seconds(table: pd.DataFrame, hold_out: str, platform_name: str | None, where: str) -> Array:
    """Predicted seconds of a step of each run, (n,).

    Args:
        table: of GPTs' runs.
        hold_out: a key of :data:`HOLD_OUTS`, or "none": the platform's constants as they are.
        platform_name: of the platform; :data:`PLATFORM` if left out, to whose fits the shipped
            rows belong, those of the kind left out.
        where: the table's name.

    Raises:
        ConfigError: a value is wrong, or no such kind can be held out.
    """
    runs, platform = runs_of(table, where), Accelerators.load(platform_name or PLATFORM)
    if hold_out == "none":
        return runs.predicted_s(platform)
    if hold_out not in HOLD_OUTS:
        known = ", ".join(("none", *HOLD_OUTS))
        raise ConfigError(f"--hold-out {hold_out}: the table has no such column; write {known}")
    others = None
    if platform_name in (None, PLATFORM):
        shipped = pd.concat([read_table(path, ()) for path in (ONE_NODE, MANY_NODES)])
        absent = _absent(shipped, table)
        others = runs_of(absent, "the shipped rows") if len(absent) else None
    return held_out_s(runs, platform, HOLD_OUTS[hold_out], others)


def _absent(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """``rows`` without those of the table."""
    shared = [name for name in rows.columns if name in table.columns]
    marks = set(map(tuple, table[shared].astype(float).to_numpy().tolist()))
    fresh = [tuple(row) not in marks for row in rows[shared].astype(float).to_numpy().tolist()]
    return rows[np.array(fresh, dtype=bool)].reset_index(drop=True)


SOFT = 0.05
PULL = 0.2
"""Weight of the priors: a constant that is one spread off its prior costs as much as an error of
SOFT x PULL in n / k of the n runs, where k constants are fitted."""


def calibrate(runs: Runs, platform: Accelerators) -> Fit:
    """Fit every constant of the platform to ``runs``.

    Raises:
        ConfigError: there are fewer runs than constants.
    """
    _, place, counts = np.unique(
        runs.column("hidden_size"), return_inverse=True, return_counts=True
    )
    weights = 1 / counts[place]
    weights = weights / weights.mean()
    cuts = [runs.column(name) for name in ("hidden_size", "tensor", "data", "pipeline")]
    _, groups = np.unique(np.stack(cuts, axis=1), axis=0, return_inverse=True)
    return fit(
        platform,
        runs.predicted_s,
        runs.measured_s,
        soft=SOFT,
        pull=PULL * SOFT * math.sqrt(weights.sum() / len(platform.constants)),
        weights=weights,
        groups=groups.ravel(),
    )


def held_out_s(runs: Runs, platform: Accelerators, by: str, also: Runs | None = None) -> Array:
    """Seconds of every run, each predicted with constants fitted without runs of its kind.

    Args:
        runs: whose kinds are held out in turn.
        platform: with priors.
        by: the column whose values are the kinds.
        also: further runs to fit, those of the kind left out too.

    Raises:
        ConfigError: there is one kind only, or too few runs are left.
    """
    kinds = runs.column(by)
    known = together(runs, also) if also else runs
    predicted = np.zeros(len(runs))
    for tried, others in each_kind(kinds, known.column(by), by):
        fitted = platform.fitted_to(calibrate(known.take(others), platform))
        predicted[tried] = runs.take(tried).predicted_s(fitted)
    return predicted


def calibrated(platform: Accelerators, fitted: Fit, runs: Runs, where: str) -> Accelerators:
    """The platform with fitted constants, and the interval of its predictions.

    The interval comes from ``runs``, each model size (or else number of devices) held out in turn.
    """
    by = "hidden_size" if len(np.unique(runs.column("hidden_size"))) > 1 else "devices"
    if len(np.unique(runs.column(by))) > 1:
        predicted_s, how = held_out_s(runs, platform, by), f"each {by} held out in turn"
    else:
        predicted_s = runs.predicted_s(platform.with_constants(fitted.constants))
        how = "the same that were fitted"
    low, high = np.quantile(runs.measured_s / predicted_s, (0.05, 0.95)).tolist()
    return replace(
        platform.fitted_to(fitted),
        fitted_on=f"{fitted.rows} rows of {where}",
        interval=HeldOut(low=low, high=high, source=f"rows of {where}, {how}"),
    )


_PRECISION = "single"  # the arithmetic of fp32 cells
_FP32_BYTES = 4
COLUMNS = (
    "cell_id", "repeats", "devices", "hidden_size", "attention_heads", "layers", "sequence_length",
    "vocabulary", "global_batch", "micro_batch", "tensor", "data", "pipeline", "schedule", "chunks",
    "zero", "recomputation", "precision", "gradient_bytes", "step_s",
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


def own_rows(
    rows: Sequence[MatrixRow], site: str, results_root: Path = RESULTS
) -> list[dict[str, Any]]:
    """One row (:data:`COLUMNS`) for each measured cell of ``rows`` that the oracle can speak of.

    Args:
        rows: the matrix; repeats of a cell become one row.
        site: that the cells ran on.
        results_root: the folder that holds ``<site>/cells``.
    """
    found = []
    accelerator = rows[0].accelerator if rows else None
    for outcome in measure(rows, site, results_root):
        cell = outcome.cell
        if not outcome.step_s or cell.precision != "fp32":
            continue
        shape = transformer_shape(cell.network, cell.dataset)
        cut = cut_of(plan_at(cell, site, results_root, accelerator)) if shape else None
        if shape is None or cut is None:
            continue
        found.append(
            {
                "cell_id": cell.id,
                "repeats": len(outcome.step_s),
                "devices": cut.data * cut.pipeline,
                **shape,
                "global_batch": cell.batch_size,
                "micro_batch": cell.batch_size // (cut.data * cut.micro_batches),
                "tensor": 1,
                "data": cut.data,
                "pipeline": cut.pipeline,
                "schedule": cut.schedule,
                "chunks": cut.chunks,
                "zero": cut.zero,
                "recomputation": "none",
                "precision": _PRECISION,
                "gradient_bytes": _FP32_BYTES,
                "step_s": median(outcome.step_s.values()),
            }
        )
    return found


def cut_of(plan: StrategyPlan) -> Cut | None:
    """The cut of a plan; None if the oracle does not know it."""
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
