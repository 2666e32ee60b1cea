"""Every predictor asked about every cell, beside what was measured: the frame ``predictions``.

What was measured is one outcome a configuration, over its repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.registry import known
from ddlbench.experiment.result import InvalidResult, Result, read_result
from ddlbench.experiment.site import Site
from ddlbench.experiment.statistics import median_interval
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.memory import capacity_bytes, fits, fullest_bytes
from ddlbench.planning.plan import Plan, plan_at
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import (
    History,
    Measured,
    Predictor,
    ask,
    modelled_strategies,
    predictor_of,
)

if TYPE_CHECKING:
    import pandas as pd

STEPS_FILE = "steps.csv"


@dataclass(frozen=True)
class Steps:
    """Median step over repeats, its interval, and how far repeats lie apart."""

    step_s: float
    low_s: float
    high_s: float
    repeats: int
    spread: float


@dataclass
class Outcome:
    """One configuration: a cell whatever its repeat.

    Args:
        cell: with repeat 0.
        base: its sequential base, with repeat 0; None where there is none.
        status: ``ok`` if any repeat is, else what its first repeat ended as, or ``not run``.
        step_s: repeat -> median step.
        within: interval of the median step within the only repeat.
        memory_bytes: peak of the fullest device, over repeats.
        wait_s: repeat -> seconds of a step in which the mean rank waits for others, servers apart;
            a repeat whose strategy cannot tell is left out.
    """

    cell: Cell
    base: Cell | None
    status: str = Status.NOT_RUN
    step_s: dict[int, float] = field(default_factory=dict)
    within: tuple[float, float] | None = None
    memory_bytes: int | None = None
    wait_s: dict[int, float] = field(default_factory=dict)

    def steps(self, without_first: bool = False) -> Steps | None:
        """Summarise the repeats; None where there are none (left)."""
        values = [s for repeat, s in self.step_s.items() if repeat > 0 or not without_first]
        if not values:
            return None
        nan = float("nan")
        if len(values) == 1:
            low, high = self.within or (nan, nan)
            return Steps(values[0], low, high, 1, nan)
        interval = median_interval(values)
        spread = (max(values) - min(values)) / interval.median
        return Steps(interval.median, interval.low, interval.high, len(values), spread)


def measure(rows: Sequence[MatrixRow], site: str, results_root: Path = RESULTS) -> list[Outcome]:
    """Read the results of an experiment's cells, in the order of its matrix.

    Cells that a strategy or the site cannot run are left out; those without a result are kept.

    Args:
        rows: the expanded matrix.
        site: name of the site that it ran on.
        results_root: the folder that holds ``<site>/cells``.
    """
    found: dict[str, Outcome] = {}
    for row in rows:
        if row.unsupported is not None:
            continue
        cell = row.cell.with_(repeat=0)
        base = Cell.from_id(row.base_id).with_(repeat=0) if row.base_id else None
        outcome = found.setdefault(cell.id, Outcome(cell, base))
        result = _result(_path(row.cell, site, results_root), row.cell)
        if result is None:
            continue
        if outcome.status != Status.OK:
            outcome.status = result.status
        timing = result.timing
        if result.status != Status.OK or timing is None or timing.step_s.median_s is None:
            continue
        step = timing.step_s
        outcome.step_s[row.cell.repeat] = timing.step_s.median_s
        outcome.within = None
        if step.low_s is not None and step.high_s is not None:
            outcome.within = (step.low_s, step.high_s)
        # A server mostly waits: that is no communication of a step.
        waits = [rank.communication_wait_s for rank in result.ranks if rank.role != "server"]
        told = [wait_s for wait_s in waits if wait_s is not None]
        if told and len(told) == len(waits):
            outcome.wait_s[row.cell.repeat] = fmean(told) / step.count
        peaks = [
            entry.peak_bytes
            for rank in result.ranks
            for entry in rank.memory
            if entry.peak_bytes is not None
        ]
        if peaks:
            known = [] if outcome.memory_bytes is None else [outcome.memory_bytes]
            outcome.memory_bytes = max(*peaks, *known, 0)
    return list(found.values())


def history_of(outcomes: Sequence[Outcome], site: str, results_root: Path = RESULTS) -> History:
    """Every measured repeat, as predictors that carry measurements on read them."""
    return tuple(
        Measured(cell, step_s, _path(cell, site, results_root).with_name(STEPS_FILE))
        for outcome in outcomes
        for repeat, step_s in outcome.step_s.items()
        for cell in [outcome.cell.with_(repeat=repeat)]
    )


def measured_of(dataset: str, network: str, site: str, results_root: Path = RESULTS) -> History:
    """Every measured cell of one network on one dataset, whichever experiment asked for it."""
    cells = results_root / result_file(site, "").parent.relative_to(RESULTS)
    folder = cells / dataset / network.replace(":", "@")
    rows = []
    for path in sorted(folder.glob("*/*/*/rep*/result.json")):
        try:
            cell = Cell.from_id(path.parent.relative_to(cells).as_posix())
        except ConfigError:  # not a cell of this version
            continue
        rows.append(MatrixRow(cell, None, None))
    return history_of(measure(rows, site, results_root), site, results_root)


def base_step_s(outcome: Outcome, outcomes: dict[str, Outcome]) -> float | None:
    """Median step of a configuration's sequential base; None where it was not measured."""
    base = outcomes.get(outcome.base.id) if outcome.base else None
    return median(base.step_s.values()) if base and base.step_s else None


def _path(cell: Cell, site: str, results_root: Path) -> Path:
    return results_root / result_file(site, cell.id).relative_to(RESULTS)


def _result(path: Path, cell: Cell) -> Result | None:
    """A readable result of this very cell, else None: the report says what is wrong with it."""
    if not path.is_file():
        return None
    try:
        result = read_result(path)
    except InvalidResult:
        return None
    if result.cell_id != cell.id or (result.status == Status.OK and result.timing is None):
        return None
    return result


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
    import pandas as pd  # noqa: PLC0415 - slow to import

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
