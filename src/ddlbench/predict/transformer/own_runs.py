"""Own measured cells of transformers, as rows that the oracle reads (:mod:`.runs`).

::

    cell                          row
    network, dataset          ->  layers, hidden_size, attention_heads, sequence_length, vocabulary
    strategy, plan            ->  tensor x data x pipeline, schedule, chunks, micro_batch, ZeRO
    median step of its repeats -> step_s

Left out: networks that are no transformers, strategies that update with older weights, and cuts
that the oracle does not know (a parameter server, torchgpipe's recomputation, split layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.planning.planner import StrategyPlan, plan_at
from ddlbench.predict.evaluate import measure
from ddlbench.predict.transformer.configurations import SCHEDULES

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
