"""Every predictor asked about every cell, beside what was measured: the frame ``predictions``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import known
from ddlbench.experiment.site import Site
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.memory import capacity_bytes, fits, fullest_bytes
from ddlbench.planning.plan import Plan, plan_at
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.measurements import Outcome, base_step_s, history_of, measure
from ddlbench.predict.prediction import Predictor, ask, modelled_strategies, predictor_of

__all__ = ["COLUMNS", "NOTE_BREAK", "predictions"]

NOTE_BREAK = " | "

COLUMNS = (
    "predictor", "cell_id", "strategy", "dataset", "network", "nodes", "devices_per_node",
    "batch_size", "fabric", "options", "synchronous", "baseline", "status", "predicted_step_s",
    "predicted_low_s", "predicted_high_s", "measured_step_s", "measured_low_s", "measured_high_s",
    "repeats", "repeat_spread", "signed_error", "compute_s", "communication_s",
    "exposed_communication_s", "bubble_s", "predicted_memory_bytes", "measured_memory_bytes",
    "measured_wait_s", "fits", "base_step_s", "limits", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """One predictor and one configuration."""

    predictor: Predictor
    outcome: Outcome
    base_step_s: float | None


def predictions(
    rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS
) -> pd.DataFrame:
    """Ask every registered predictor about every configuration of an experiment.

    One row a predictor and configuration that it speaks of; see :data:`COLUMNS`. ``signed_error``
    is (predicted - measured) / measured, below zero where the prediction is too short. A cell that
    was not measured has no measured columns; one that a predictor cannot speak of has no
    predicted ones, and ``notes`` says why.

    Args:
        rows: the expanded matrix.
        site: where it ran.
        results_root: the folder that holds ``<site>/``.

    Raises:
        ConfigError: nothing could be predicted; the message is the first reason. Or a links file
            is wrong.
    """
    outcomes = measure(rows, site.name, results_root)
    by_id = {outcome.cell.id: outcome for outcome in outcomes}
    history = history_of(outcomes, site.name, results_root)
    inputs = Inputs(site.name, results_root)
    plan_of = cache(partial(plan_at, site=site.name, results_root=results_root))
    records, reasons = [], []
    for name in known("ddlbench.predictors"):
        predictor = predictor_of(name)
        modelled = modelled_strategies(predictor)
        for outcome in outcomes:
            if modelled is not None and outcome.cell.strategy not in modelled:
                continue
            asked = _Asked(predictor, outcome, base_step_s(outcome, by_id))
            record = _known(asked)
            try:
                workload = inputs.workload(outcome.cell)
                links = inputs.links(outcome.cell)
                plan = plan_of(outcome.cell)
                told = ask(predictor, workload, links, plan, history)
            except ConfigError as error:
                reasons.append(error)
                record["notes"] = str(error)
            else:
                record |= _predicted(told, record["measured_step_s"])
                if told.memory_bytes:
                    capacity = capacity_bytes(workload, site)
                    record |= _memory(workload, plan, told.memory_bytes, capacity)
            records.append(record)
    if reasons and len(reasons) == len(records):
        raise reasons[0]
    frame = pd.DataFrame(records, columns=list(COLUMNS))
    numbers = [column for column in COLUMNS if column.endswith(("_s", "_bytes", "_error"))]
    return frame.astype(dict.fromkeys([*numbers, "repeat_spread"], float))


def _known(asked: _Asked) -> dict[str, Any]:
    """What is known without the prediction."""
    cell, outcome = asked.outcome.cell, asked.outcome
    steps = outcome.steps(without_first=asked.predictor.uses_first_repeat)
    return {
        "predictor": asked.predictor.name,
        "cell_id": cell.id,
        "strategy": cell.strategy,
        "dataset": cell.dataset,
        "network": cell.network,
        "nodes": cell.nodes,
        "devices_per_node": cell.devices_per_node,
        "batch_size": cell.batch_size,
        "fabric": cell.fabric,
        "options": ",".join(f"{name}={value}" for name, value in cell.options),
        "synchronous": strategy_of(cell.strategy).is_synchronous(cell),
        "baseline": asked.predictor.baseline,
        "status": outcome.status,
        "measured_step_s": steps.step_s if steps else None,
        "measured_low_s": steps.low_s if steps else None,
        "measured_high_s": steps.high_s if steps else None,
        "repeats": steps.repeats if steps else 0,
        "repeat_spread": steps.spread if steps else None,
        "measured_memory_bytes": outcome.memory_bytes,
        "measured_wait_s": median(outcome.wait_s.values()) if outcome.wait_s else None,
        "base_step_s": asked.base_step_s,
        "limits": "",
        "notes": "",
    }


def _predicted(told: Any, measured_s: float | None) -> dict[str, Any]:
    low_s, high_s = told.interval_s or (None, None)
    return {
        "predicted_step_s": told.step_s,
        "predicted_low_s": low_s,
        "predicted_high_s": high_s,
        "signed_error": (told.step_s - measured_s) / measured_s if measured_s else None,
        "compute_s": told.compute_s,
        "communication_s": told.communication_s,
        "exposed_communication_s": told.exposed_communication_s,
        "bubble_s": told.bubble_s,
        "limits": NOTE_BREAK.join(told.limits),
        "notes": NOTE_BREAK.join(told.notes),
    }


def _memory(
    workload: Workload, plan: Plan, devices: tuple[int, ...], capacity: float | None
) -> dict[str, Any]:
    return {
        "predicted_memory_bytes": fullest_bytes(workload, plan, devices),
        "fits": fits(workload, plan, devices, capacity) if capacity is not None else None,
    }
