"""Candidates of a recommendation: a strategy's cell, what is known of its step, and its place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.planning.strategy import can_gain, known_strategy
from ddlbench.predict.belief import Belief, fastest, from_prediction, from_runs
from ddlbench.predict.calibration import Calibration
from ddlbench.predict.prediction import History, Prediction, steps_measured
from ddlbench.predict.siblings import alike, informed

if TYPE_CHECKING:
    from ddlbench.predict.accuracy import SignedErrors

FAILED_HERE = "measured here: it ended without a step"
_TIE = 0.25


@dataclass(frozen=True)
class Candidate:
    """One strategy's place in the ranking.

    Args:
        cell: the cell that would be run.
        label: the strategy's name in figures.
        synchronous: its updates use gradients of the current weights.
        prediction: None if it cannot run or has no prediction.
        memory_bytes: of the fullest device (on CPU: process); None if unknown.
        capacity_bytes: memory of one device; None if unknown.
        fits: None if memory or capacity is unknown.
        why: the reason for its place, in one sentence.
        measured_s: median steps of its runs at the site.
        expected: its step by the prediction alone; None without one.
        belief: what is known of its step: by runs, else by the prediction and by the runs of other
            candidates; None if nothing is.
        fastest: probability that it is the fastest of those that fit; None if it is not ranked.
    """

    cell: Cell
    label: str
    synchronous: bool
    prediction: Prediction | None
    memory_bytes: int | None
    capacity_bytes: float | None
    fits: bool | None
    why: str
    measured_s: tuple[float, ...] = ()
    expected: Belief | None = None
    belief: Belief | None = None
    fastest: float | None = None

    @property
    def ranked(self) -> bool:
        """Whether it may be recommended: its time is known, and it is not known to be too large."""
        return self.belief is not None and self.fits is not False

    @property
    def step_s(self) -> float:
        """Seconds of its step, measured or else predicted."""
        assert self.belief is not None
        return self.belief.step_s

    def to_dict(self) -> dict[str, Any]:
        prediction = self.prediction
        interval_s = self.belief.interval_s if self.belief else None
        parts = ("compute_s", "communication_s", "exposed_communication_s", "bubble_s")
        return {
            "strategy": self.cell.strategy,
            "cell_id": self.cell.id,
            "synchronous": self.synchronous,
            "predictor": prediction.predictor if prediction else None,
            "predicted_step_s": prediction.step_s if prediction else None,
            "measured_step_s": median(self.measured_s) if self.measured_s else None,
            "runs": len(self.measured_s),
            "basis": self.belief.basis if self.belief else None,
            "interval_s": list(interval_s) if interval_s else None,
            "fastest": self.fastest,
            "samples_per_s": self.cell.batch_size / self.step_s if self.belief else None,
            **{name: getattr(prediction, name, None) for name in parts},
            "memory_bytes": self.memory_bytes,
            "device_memory_bytes": self.capacity_bytes,
            "fits": self.fits,
            "why": self.why,
            "limits": list(prediction.limits) if prediction else [],
            "notes": list(prediction.notes) if prediction else [],
        }


@dataclass(frozen=True)
class Recommendation:
    """The candidates, best first."""

    recommender: str
    ranking: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The fastest that can run and is not known to be too large; None if there is none."""
        first = self.ranking[0] if self.ranking else None
        return first if first and first.ranked else None

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """The best, and all that are faster than it with a probability of a quarter or more."""
        best = self.best
        if best is None or best.belief is None:
            return ()
        if best.fastest is None:  # a rule placed it
            return (best,)
        return tuple(
            c for c in self.ranking
            if c.ranked and c.belief and (c is best or c.belief.beats(best.belief) >= _TIE)
        )  # fmt: skip

    def without(self, strategies: Collection[str]) -> Recommendation:
        """The ranking after some candidates could not run; the others' chances grow."""
        if not strategies:
            return self
        left = [
            replace(c, belief=None, fastest=None, why=FAILED_HERE)
            if c.cell.strategy in strategies
            else c
            for c in self.ranking
        ]
        return replace(self, ranking=tuple(sorted(with_chances(left), key=rank)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "recommender": self.recommender,
            "recommended": self.best.cell.strategy if self.best else None,
            "ranking": [candidate.to_dict() for candidate in self.ranking],
        }


def with_belief(
    candidate: Candidate,
    calibration: Calibration | None,
    history: History,
    errors: SignedErrors,
    *,
    by_runs: bool,
) -> Candidate:
    """What is known of its step: measured runs if ``by_runs``, else the prediction."""
    cell, prediction = candidate.cell, candidate.prediction
    runs = tuple(steps_measured(history, cell))
    expected = None
    if prediction is not None:
        constants = calibration.of(cell.strategy) if calibration else None
        ratio = constants.ratio if constants else None
        known_errors = errors.get((prediction.predictor, cell.strategy), ())
        expected = from_prediction(prediction.step_s, ratio, known_errors)
    # Faster than its schedule allows is drift: such runs are shown, but decide nothing.
    decides = by_runs and (cell.strategy == BASE or can_gain(cell))
    belief = from_runs(runs) if runs and decides else expected
    return replace(candidate, measured_s=runs, expected=expected, belief=belief)


def with_siblings(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates; the runs of those that were measured move what is believed of the others."""
    told = [c for c in candidates if c.expected is not None and c.belief is not None]
    expected = [c.expected for c in told if c.expected is not None]
    measured = {
        place: c.belief
        for place, c in enumerate(told)
        if c.belief is not None and c.belief.basis == "measured"
    }
    beliefs = iter(informed(expected, measured, alike([_family(c) for c in told])))
    return [replace(c, belief=next(beliefs)) if c in told else c for c in candidates]


def _family(candidate: Candidate) -> str:
    strategy = known_strategy(candidate.cell.strategy)
    return candidate.cell.strategy if strategy is None else strategy.family


def with_chances(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, those that are ranked with the probability that they are the fastest."""
    ranked = [candidate for candidate in candidates if candidate.ranked]
    chances = fastest([c.belief for c in ranked if c.belief is not None])
    others = [candidate for candidate in candidates if not candidate.ranked]
    return [*(replace(c, fastest=p) for c, p in zip(ranked, chances, strict=True)), *others]


def rank(candidate: Candidate) -> tuple[int, float, str]:
    """Sort key: what fits by time, then what does not fit, then what nothing is known of."""
    if candidate.belief is None:
        return (2, 0.0, candidate.cell.strategy)
    group = 1 if candidate.fits is False else 0
    return (group, candidate.step_s, candidate.cell.strategy)
