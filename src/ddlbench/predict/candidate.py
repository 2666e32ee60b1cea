"""What is known of a candidate: one cell, before somebody decides for it.

::

    cell -> can it run here? -> plan -> predicted step, 90 % -> memory -> fits? -> measured steps
             |                   |       |                                |
             `-------------------`-------`--------------------------------`--> why it is not ranked

``recommend``, ``recommend tune``, ``recommend largest-batch`` and ``predict`` read candidates. A
candidate fails alone: what is wrong with a strategy is the reason why that strategy is not ranked.

What physics forbids is not believed: a predicted step is at least as long as the predicted step of
one device over the highest speed-up that the cell can reach
(:meth:`ddlbench.planning.strategy.Strategy.most_speedup`). Only a measurement may be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import size_text
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason, code_of
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.matrix import why_unsupported
from ddlbench.planning.memory import room_of
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import StrategyPlan, make_plan
from ddlbench.planning.strategy import Strategy, strategy_of
from ddlbench.planning.trainable import why_not_as_tried
from ddlbench.planning.workload import Workload
from ddlbench.predict.calibration import calibrated
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import (
    DEFAULT_RECOMMENDER,
    MEASURED_LINKS,
    NO_HISTORY,
    UNLESS_OOM,
    Departure,
    History,
    Prediction,
    ask,
    predictor_for,
    predictor_of,
    same_step,
    steps_measured,
)
from ddlbench.predict.ranking import Candidate, from_prediction, from_runs

if TYPE_CHECKING:
    from ddlbench.predict.accuracy import SignedErrors

_OTHER_UPDATES = ("old_weights", "other_update")
"""Codes of candidates whose update is not that of one device; their steps are not compared."""


@dataclass(frozen=True)
class Knowledge:
    """What is known at a site.

    Args:
        site: the machine.
        inputs: its profiles, links and calibration.
        history: its measured cells.
        errors: of its predictions, see :func:`ddlbench.predict.accuracy.errors_at`.
        recommender: names the predictors; only the default takes measured steps before predictions.
        device_memory_bytes: memory of one device; None takes that of the profile or the site.
        allow_stale: strategies whose updates use gradients of older weights are candidates, too.
        departures: its measured cells that do not train as one device does.
        divergences: its measured cells whose loss is no number any more.
        spread_of: standard deviation of the logarithm of a predicted step, for a machine that is
            described by data sheets; what is installed here does not matter then. None for a site.
    """

    site: Site
    inputs: Inputs
    history: History = NO_HISTORY
    errors: SignedErrors = field(default_factory=dict)
    recommender: str = DEFAULT_RECOMMENDER
    device_memory_bytes: float | None = None
    allow_stale: bool = False
    departures: tuple[Departure, ...] = ()
    divergences: tuple[Departure, ...] = ()
    spread_of: Callable[[Prediction], float] | None = None

    @property
    def by_runs(self) -> bool:
        """Whether measured steps go before predictions."""
        return self.recommender == DEFAULT_RECOMMENDER

    def errors_of(self, predictor: str) -> list[float]:
        """Errors of a predictor at the site, whatever the strategy."""
        return [
            error
            for (name, _), errors in self.errors.items()
            if name == predictor
            for error in errors
        ]


def check_askable(cells: Sequence[Cell], known: Knowledge) -> None:
    """Raise ConfigError if none of the cells can be predicted: it names the first thing to do.

    That is a smaller geometry, then what an emulated accelerator lacks, then the profile and links
    that are missing.
    """
    parallel = [cell for cell in cells if cell.devices > 1] or cells
    too_small = [None if known.site.scales else known.site.why_too_small(c) for c in parallel]
    if all(too_small):
        raise ConfigError(f"{too_small[0]}; write a smaller --geometry, or another --site")
    accelerator = known.site.accelerator
    if accelerator and all(lacks := [accelerator.supports(cell) for cell in cells]):
        raise ConfigError(str(lacks[0]))
    known.inputs.check(cells)


def assess(cell: Cell, known: Knowledge) -> Candidate:
    """All that is known of a cell of any strategy; whatever is wrong with it is its reason."""
    try:
        candidate = _assessed(cell, known)
    except ConfigError as error:
        candidate = _unpredicted(Candidate(cell, strategy_label(cell.strategy)), str(error))
    except Exception as error:
        fault = f"fault in its code: {type(error).__name__}: {error}"
        return Candidate(cell, strategy_label(cell.strategy), reason=Reason("fault", fault))
    return _with_runs(candidate, known)


def _assessed(cell: Cell, known: Knowledge) -> Candidate:
    site, compute_kind = known.site, known.site.compute_kind
    strategy = strategy_of(cell.strategy, site.accelerator)
    candidate = Candidate(cell, strategy.label)
    reason = why_unsupported(cell, site)
    if known.spread_of is not None and code_of(reason or "") == "package_missing":
        reason = None
    if reason is not None and site.scales and (beyond := site.why_too_small(cell)):
        reason = why_unsupported(cell, site.grown_to(cell))
        candidate = replace(candidate, beyond=str(beyond))
    reason = reason or why_not_as_tried(cell, site)
    if reason is not None:
        return replace(candidate, reason=Reason(code_of(reason), f"cannot run: {reason}"))
    plan = make_plan(cell, known.inputs.block_source(cell), site.accelerator)
    candidate = replace(candidate, bound=strategy.most_speedup(cell, compute_kind))
    if ran_as := strategy.ran_as(cell, plan.details):
        candidate = replace(candidate, label=f"{strategy.label} ({ran_as})")
    if reason := _why_other_update(strategy, plan, known):
        return replace(candidate, reason=reason)
    # A rule of thumb decides the order; the times beside it come from measured links.
    named = MEASURED_LINKS if known.recommender == UNLESS_OOM else known.recommender
    try:
        predictor = predictor_for(named, cell.strategy, compute_kind)
        if predictor is None:
            why = f"recommender {known.recommender} has no predictor for it on {compute_kind}"
            return _unpredicted(candidate, why)
        workload = known.inputs.workload(cell)
        prediction = predicted(predictor, workload, plan, known)
    except ConfigError as error:  # measured steps may still rank it
        return _unpredicted(candidate, str(error))
    return _with_prediction(candidate, prediction, workload, plan, known)


def _unpredicted(candidate: Candidate, why: str) -> Candidate:
    reason = Reason("no_prediction", f"no prediction: {why}")
    return replace(candidate, reason=reason, unpredicted=why)


def predicted(
    predictor: str, workload: Workload, plan: StrategyPlan, known: Knowledge
) -> Prediction:
    """What one predictor says of a plan's cell, with the constants of the site's calibration.

    Raises:
        NotPredictable: the predictor does not model this cell.
        ConfigError: a file is missing, or lacks what the predictor needs.
    """
    cell, inputs = plan.cell, known.inputs
    prediction = ask(predictor_of(predictor), workload, inputs.links(cell), plan, known.history)
    return calibrated(prediction, cell.strategy, inputs.calibration)


def _why_other_update(strategy: Strategy, plan: Plan, known: Knowledge) -> str:
    """How the update differs from that of one device; empty if it does not."""
    cell = plan.cell
    if not (known.allow_stale or strategy.is_synchronous(cell, plan.details)):
        return Reason("old_weights", "updates with old weights: --allow-stale ranks it, too")
    samples = strategy.samples_per_update(cell, plan.details)
    if samples != cell.batch_size:
        return Reason(
            "other_update",
            f"another update: it sums the gradients of {samples} samples, not of {cell.batch_size}",
        )
    return ""


def _with_prediction(
    candidate: Candidate, prediction: Prediction, workload: Workload, plan: Plan, known: Knowledge
) -> Candidate:
    strategy, calibration = candidate.strategy, known.inputs.calibration
    constants = calibration.of(strategy) if calibration else None
    expected = from_prediction(
        prediction.step_s,
        constants.ratio if constants else None,
        known.errors.get((prediction.predictor, strategy), ()),
        known.errors_of(prediction.predictor),
    )
    if known.spread_of is not None:
        expected = replace(expected, spread=known.spread_of(prediction))
    room = room_of(workload, plan, prediction.memory_bytes, known.site, known.device_memory_bytes)
    reason = ""
    if room is not None and room.fits is False:
        assert room.held_bytes is not None
        holder = "a device has" if room.devices == 1 else f"{room.devices} devices have"
        reason = Reason(
            "too_large",
            f"does not fit: {size_text(room.needed_bytes)} needed, {holder} "
            f"{size_text(room.held_bytes)}",
        )
    return replace(
        candidate,
        prediction=prediction,
        predicted_s=prediction.step_s,
        room=room,
        expected=expected,
        belief=expected,
        reason=reason,
    )


def _with_runs(candidate: Candidate, known: Knowledge) -> Candidate:
    """The candidate with its measured steps, which go before the prediction.

    A candidate that does not train as one device does is not ranked, however fast it is.
    """
    code = candidate.code
    if code in _OTHER_UPDATES:
        return candidate
    if departure := _departure(known.departures, candidate.cell):
        return replace(candidate, reason=Reason("other_training", departure))
    candidate = replace(candidate, diverged=_departure(known.divergences, candidate.cell))
    runs = tuple(steps_measured(known.history, candidate.cell))
    if not runs or not known.by_runs:
        return replace(candidate, measured_s=runs)
    # It ran, so the lack of a prediction does not speak against it.
    reason = "" if code == "no_prediction" else candidate.reason
    return replace(candidate, measured_s=runs, belief=from_runs(runs), reason=reason)


def _departure(departures: Sequence[Departure], cell: Cell) -> str:
    """How a cell that does the same work a step departs; empty if none does."""
    return next((each.sentence for each in departures if same_step(each.cell, cell)), "")
