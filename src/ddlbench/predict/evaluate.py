"""Predictions of every predictor for every cell, beside the measurements: ``predictions``.

The measurements of a configuration are one outcome, over its repeats.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.statistics import median_interval
from ddlbench.experiment.cell import Cell, in_path, setting_text
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.result import InvalidResult, Result, cell_result
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import FAILURE_FILE, Status
from ddlbench.planning.departures import departures_in
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.memory import room_of
from ddlbench.planning.planner import plan_at
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.candidate import Knowledge, predicted
from ddlbench.predict.documents import PredictedCell
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import (
    PARTS,
    Departure,
    History,
    Measured,
    Prediction,
    Predictor,
    modelled_strategies,
    predictor_of,
    usable_predictors,
)

if TYPE_CHECKING:
    import pandas as pd

_LOG = logging.getLogger(__name__)

STEPS_FILE = "steps.csv"
DISTURBED = "disturbed"
"""Status of an outcome whose measurements are wrong: it is neither scored nor learnt from."""
OTHER_TRAINING = "other training"
"""The same of one that does not train as one device does: it is not ranked either."""


@dataclass(frozen=True)
class Steps:
    """Median step over repeats, its interval, and (longest - shortest) / median of the repeats."""

    step_s: float
    low_s: float
    high_s: float
    repeats: int
    spread: float


@dataclass
class Outcome:
    """The results of one configuration: a cell with all of its repeats.

    Args:
        cell: with repeat 0.
        base: its sequential base, with repeat 0; None if it has none.
        status: ``ok`` if any repeat is ok, else that of a repeat: of its result, ``failed``, or
            ``not run``; of one that something disturbed, ``disturbed``, and of one that does not
            train as one device does, ``other training``.
        step_s: repeat -> median step.
        within: interval of the median step within the only repeat.
        memory_bytes: peak of the fullest device, over repeats.
        wait_s: repeat -> seconds of a step in which the mean rank (without servers) waits for
            others; only repeats whose strategy records it.
        departures: repeat -> how it does not train as one device does.
        divergences: repeat -> the note that its loss is no number.
    """

    cell: Cell
    base: Cell | None
    status: str = Status.NOT_RUN
    step_s: dict[int, float] = field(default_factory=dict)
    within: tuple[float, float] | None = None
    memory_bytes: int | None = None
    wait_s: dict[int, float] = field(default_factory=dict)
    departures: dict[int, str] = field(default_factory=dict)
    divergences: dict[int, str] = field(default_factory=dict)

    def steps(self, without_first: bool = False) -> Steps | None:
        """Summarise the repeats, with or without repeat 0; None if no repeat is left."""
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

    Cells that a strategy or the site cannot run are left out. Cells without a result are kept.
    """
    outcomes: dict[str, Outcome] = {}
    results: dict[Cell, Result] = {}
    for row in rows:
        if row.unsupported is None:
            cell = row.cell.with_(repeat=0)
            base = Cell.from_id(row.base_id).with_(repeat=0) if row.base_id else None
            outcomes.setdefault(cell.id, Outcome(cell, base))
            path = result_file(site, row.cell.id, results_root)
            result = _result(path, site, row.cell)
            if result is not None:
                results[row.cell] = result
            elif path.with_name(FAILURE_FILE).is_file():  # a result of a repeat counts more
                outcomes[cell.id].status = Status.FAILED
    departing = {name: departure.sentence for name, departure in departures_in(results).items()}
    for cell, result in results.items():
        outcome = outcomes[cell.again(0).id]
        _add_repeat(outcome, cell.repeat, result, departing.get(cell.id, ""))
    return list(outcomes.values())


def _add_repeat(outcome: Outcome, repeat: int, result: Result, departure: str) -> None:
    timing = result.timing
    disturbed = timing is not None and timing.disturbed is not None
    if outcome.status != Status.OK:
        outcome.status = DISTURBED if disturbed else result.status
        outcome.status = OTHER_TRAINING if departure else outcome.status
    if result.diverged:
        outcome.divergences[repeat] = result.diverged
    if departure:
        outcome.departures[repeat] = departure
        return
    if result.status != Status.OK or timing is None or disturbed:
        return
    step = timing.step_s
    if step.median_s is None:
        return
    outcome.step_s[repeat] = step.median_s
    outcome.within = None
    if step.low_s is not None and step.high_s is not None:
        outcome.within = (step.low_s, step.high_s)
    # A server waits most of the time, which is no communication of a step.
    waits = [rank.communication_wait_s for rank in result.ranks if rank.role != "server"]
    known_waits = [wait_s for wait_s in waits if wait_s is not None]
    if waits and len(known_waits) == len(waits):
        outcome.wait_s[repeat] = fmean(known_waits) / step.count
    peaks = [entry.peak_bytes for rank in result.ranks for entry in rank.memory]
    known_peaks = [peak for peak in (*peaks, outcome.memory_bytes) if peak is not None]
    outcome.memory_bytes = max(known_peaks, default=None)


def history_of(outcomes: Sequence[Outcome], site: str, results_root: Path = RESULTS) -> History:
    """Every measured repeat, as predictors read them that extrapolate measurements."""
    return tuple(
        Measured(cell, step_s, result_file(site, cell.id, results_root).with_name(STEPS_FILE))
        for outcome in outcomes
        for repeat, step_s in outcome.step_s.items()
        for cell in [outcome.cell.with_(repeat=repeat)]
    )


def departures_of(outcomes: Sequence[Outcome]) -> tuple[Departure, ...]:
    """Every repeat that does not train as one device does."""
    return _departures((outcome.cell, outcome.departures) for outcome in outcomes)


def divergences_of(outcomes: Sequence[Outcome]) -> tuple[Departure, ...]:
    """Every repeat whose loss is no number any more."""
    return _departures((outcome.cell, outcome.divergences) for outcome in outcomes)


def _departures(by_cell: Iterable[tuple[Cell, Mapping[int, str]]]) -> tuple[Departure, ...]:
    return tuple(
        Departure(cell.again(repeat), sentence)
        for cell, sentences in by_cell
        for repeat, sentence in sentences.items()
    )


def outcomes_of(
    dataset: str, network: str, site: str, results_root: Path = RESULTS
) -> list[Outcome]:
    """Every finished cell of one network on one dataset, over all experiments."""
    cells = result_file(site, "", results_root).parent
    folder = cells / dataset / in_path(network)
    rows = []
    for path in sorted(folder.glob("*/*/*/rep*/result.json")):
        try:
            cell = Cell.from_id(path.parent.relative_to(cells).as_posix())
        except ConfigError:  # a cell of another version
            continue
        rows.append(MatrixRow(cell, None, None))
    return measure(rows, site, results_root)


def base_step_s(outcome: Outcome, outcomes: dict[str, Outcome]) -> float | None:
    """Median step of a configuration's sequential base; None if it was not measured."""
    base = outcomes.get(outcome.base.id) if outcome.base else None
    return median(base.step_s.values()) if base and base.step_s else None


def _result(path: Path, site: str, cell: Cell) -> Result | None:
    """The result of a cell, else None; the report shows what is wrong."""
    try:
        return cell_result(path, site, cell.id)
    except InvalidResult:
        _warn_of_unread(site)
        return None


@cache
def _warn_of_unread(site: str) -> None:
    """Say it once, however many there are."""
    _LOG.warning(
        "site %s has results that cannot be read; they are not used, and `ddlbench status` lists "
        "them",
        site,
    )


NOTE_BREAK = " | "

COLUMNS = tuple(PredictedCell.__annotations__)


def predictions(
    rows: Sequence[MatrixRow],
    site: Site,
    results_root: Path = RESULTS,
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Predict every configuration of an experiment with every registered predictor.

    The frame has one row per predictor and configuration whose strategy it models; see
    :data:`COLUMNS`. ``signed_error`` is (predicted - measured) / measured; it is negative if the
    prediction is too short. The measured columns of a cell that was not measured are empty. So are
    the predicted columns of a cell that cannot be predicted; ``notes`` gives the reason.

    ``names`` are the predictors to ask; None asks all.

    Raises:
        ConfigError: no cell could be predicted; the message is the first reason.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import

    outcomes = measure(rows, site.name, results_root)
    by_id = {outcome.cell.id: outcome for outcome in outcomes}
    history = history_of(outcomes, site.name, results_root)
    inputs = Inputs(site.name, results_root, calibrated=False)
    here = Knowledge(site, inputs, history)
    plan_of = cache(partial(plan_at, site=site.name, results_root=results_root))
    records, reasons = [], []
    for name in names or usable_predictors():
        predictor = predictor_of(name)
        modelled = modelled_strategies(predictor)
        for outcome in outcomes:
            if modelled is not None and outcome.cell.strategy not in modelled:
                continue
            record = _measured_columns(predictor, outcome)
            record["base_step_s"] = base_step_s(outcome, by_id)
            try:
                workload = inputs.workload(outcome.cell)
                record["profile_runs"] = workload.runs
                plan = plan_of(outcome.cell)
                prediction = predicted(name, workload, plan, here)
            except ConfigError as error:
                reasons.append(error)
                record["notes"] = str(error)
            else:
                record |= _predicted_columns(prediction, record["measured_step_s"])
                room = room_of(workload, plan, prediction.memory_bytes, site)
                if room:
                    record |= {"predicted_memory_bytes": room.needed_bytes, "fits": room.fits}
            records.append(record)
    if reasons and len(reasons) == len(records):
        raise reasons[0]
    frame = pd.DataFrame(records, columns=list(COLUMNS))
    numbers = [column for column in COLUMNS if column.endswith(("_s", "_bytes", "_error"))]
    return frame.astype(dict.fromkeys([*numbers, "repeat_spread"], float))


def _measured_columns(predictor: Predictor, outcome: Outcome) -> dict[str, Any]:
    cell, steps = outcome.cell, outcome.steps(without_first=predictor.uses_first_repeat)
    size = ("strategy", "dataset", "network", "nodes", "devices_per_node", "batch_size", "fabric")
    columns: dict[str, Any] = {
        "predictor": predictor.name,
        "cell_id": cell.id,
        **{name: getattr(cell, name) for name in size},
        "options": ",".join(f"{name}={setting_text(value)}" for name, value in cell.options),
        "synchronous": strategy_of(cell.strategy).is_synchronous(cell),
        "baseline": predictor.baseline,
        "status": outcome.status,
        "measured_step_s": None,
        "repeats": 0,
        "measured_memory_bytes": outcome.memory_bytes,
        "measured_wait_s": median(outcome.wait_s.values()) if outcome.wait_s else None,
        "limits": "",
        "notes": "",
    }
    if steps is not None:
        every = outcome.steps()  # how far repeats differ does not depend on who predicts
        columns |= {
            "measured_step_s": steps.step_s,
            "measured_low_s": steps.low_s,
            "measured_high_s": steps.high_s,
            "repeats": steps.repeats,
            "repeat_spread": every.spread if every else steps.spread,
        }
    return columns


def _predicted_columns(prediction: Prediction, measured_s: float | None) -> dict[str, Any]:
    low_s, high_s = prediction.interval_s or (None, None)
    return {
        "predicted_step_s": prediction.step_s,
        "predicted_low_s": low_s,
        "predicted_high_s": high_s,
        "signed_error": (prediction.step_s - measured_s) / measured_s if measured_s else None,
        **{name: getattr(prediction, name) for name in PARTS},
        "limits": NOTE_BREAK.join(prediction.limits),
        "notes": NOTE_BREAK.join(prediction.notes),
    }
