"""Candidates and their ranking: the fastest first, each with its chance to be it.

::

    candidates -> predictions within their bound -> measured steps move the other beliefs
               -> steps and chances, within the bound -> order: ranked by step, then the others

The step of a candidate (:meth:`Ranking.step_s`) is what is believed of it: it decides the place, it
is shown, and speed-ups are ratios of it. The step that the model alone predicts stays beside it.

What is known of a step decides how probably its candidate is the fastest::

    measured here       median of the runs        spread of the runs, as their median has it
    calibrated          the prediction            ratio of its 90 % interval
    predicted before    the prediction            root mean square of its errors on cells here,
                                                  wider where they are few
    nothing known       the prediction            a factor of 1.39 in 90 % of cases: an assumption;
                                                  more where those of other strategies were worse

The logarithm of a step is taken as normal, and candidates as independent but for their limit
(:func:`races`).

Few runs say little of their spread, so it is drawn to 5 % as if two more runs had shown that: three
repeats on the project's test bed lie 7.3 % apart (docs/validation), which is a standard deviation
of 4.3 %.

Predictions of one case err alike: what slows one pipeline down on a machine slows its siblings down
too. So a measured candidate moves the others::

    log step = log predicted + error        error ~ N(0, S R S)

    S    spread of each prediction
    R    correlation of two errors: how alike the candidates are

    given the errors r of the measured ones M (each known to the spread of its runs, E):

    mean of the others      C_oM (C_MM + E)^-1 r
    covariance of them      C_oo - C_oM (C_MM + E)^-1 C_Mo           C = S R S

This is the regression that Gaussian processes make (Rasmussen and Williams 2006, eq. 2.22 to 2.24)
with the prediction as their mean. An error beyond three spreads counts as three: it tells of its
own candidate more than of the others. What stays correlated among the others is left out
afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal

import numpy as np

from ddlbench.common.run_noise import median_weight, t_quantile
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Reason, code_of
from ddlbench.planning.memory import Room
from ddlbench.planning.strategy import known_strategy
from ddlbench.predict.prediction import PARTS, Prediction

Basis = Literal["measured", "predicted"]

Z90 = 1.645  # 90 % of a normal distribution lie within so many standard deviations
UNKNOWN = 0.2  # spread of a prediction of which nothing is known
_RUN = 0.05  # spread of one run
_PRIOR_RUNS = 2
_FEWEST_ERRORS = 3
_DRAWS = 20_000  # a probability is known to a third of a percent


@dataclass(frozen=True)
class Belief:
    """A step and how well it is known.

    Args:
        step_s: median.
        spread: standard deviation of the logarithm of the step.
        basis: measured or predicted.
        runs: measured ones.
    """

    step_s: float
    spread: float
    basis: Basis
    runs: int = 0

    @property
    def interval_s(self) -> tuple[float, float]:
        """Holds the step in 90 % of cases."""
        ratio = math.exp(Z90 * self.spread)
        return self.step_s / ratio, self.step_s * ratio


def from_runs(steps_s: Sequence[float]) -> Belief:
    """From the median steps of at least one run."""
    logs = [math.log(step_s) for step_s in steps_s]
    middle = fmean(logs)
    squares = sum((value - middle) ** 2 for value in logs) + _PRIOR_RUNS * _RUN**2
    variance = squares / (_PRIOR_RUNS + len(logs) - 1)
    spread = math.sqrt(variance * median_weight(len(logs)))
    return Belief(median(steps_s), spread, "measured", len(logs))


def from_prediction(
    step_s: float, ratio: float | None, errors: Sequence[float], site_errors: Sequence[float] = ()
) -> Belief:
    """From a prediction.

    ``ratio`` is of its 90 % interval, if it was calibrated. Errors are signed and relative, of
    predictions at the site: ``errors`` of this strategy, ``site_errors`` of all strategies. Fewer
    than three of this strategy, and those of others, can only widen the interval.
    """
    if ratio is not None:
        spread = math.log(ratio) / Z90
    elif len(errors) >= _FEWEST_ERRORS:
        # Few errors say little of how large they are, so that 90 % lie further out (Student's t).
        spread = _typical(errors) * t_quantile(len(errors), 0.9) / Z90
    else:
        spread = max(UNKNOWN, _typical(errors), _typical(site_errors))
    return Belief(step_s, max(spread, 1e-6), "predicted")


def _typical(errors: Sequence[float]) -> float:
    """Root mean square of relative errors, as logarithms."""
    return math.sqrt(fmean(math.log1p(error) ** 2 for error in errors)) if errors else 0.0


@dataclass(frozen=True)
class Race:
    """Probabilities of one candidate.

    Args:
        fastest: that its step is the shortest; those of all candidates add up to 1.
        beats_first: that it is shorter than the first candidate's.
        beats_base: that it is shorter than the base's; None without a base.
    """

    fastest: float
    beats_first: float
    beats_base: float | None


def races(beliefs: Sequence[Belief], shares: Sequence[float], base: int | None) -> list[Race]:
    """How probably each candidate is the fastest.

    ::

        draw of candidate i     x_i = max(exp(m_i + s_i z), share_i x_base)      z ~ N(0, 1)

    A share is the part of the base's step that a candidate needs at least. So a candidate of share
    1 never beats the base, however little is known of it. Several that are equally short at their
    limit share the draw. The same draws are made every time.

    A share of 0 is no limit; without a base nothing limits anybody.
    """
    if not beliefs:
        return []
    draws = np.random.default_rng(0).standard_normal((len(beliefs), _DRAWS))
    middles = np.log([belief.step_s for belief in beliefs])
    spreads = np.array([belief.spread for belief in beliefs])
    steps_s = np.exp(middles[:, None] + spreads[:, None] * draws)
    if base is not None:
        steps_s = np.maximum(steps_s, np.array(shares)[:, None] * steps_s[base])
    shortest = steps_s == steps_s.min(axis=0)
    if base is not None:  # who is only as fast as one device wins nothing
        shortest &= ~shortest[base]
        shortest[base] = ~shortest.any(axis=0)
    fastest = (shortest / shortest.sum(axis=0)).mean(axis=1)
    gains = np.ones_like(shortest) if base is None else steps_s < steps_s[base]
    beats = None if base is None else gains.mean(axis=1)
    ahead = steps_s < steps_s[0]
    if base is not None:  # as above
        ahead &= gains | (np.arange(len(beliefs)) == base)[:, None]
    first = ahead.mean(axis=1)
    return [
        Race(float(fastest[i]), float(first[i]), None if beats is None else float(beats[i]))
        for i in range(len(beliefs))
    ]


SAME_FAMILY = 0.7
OTHER_FAMILY = 0.3
_LEAST_SPREAD = 0.01
_SURPRISE = 3.0  # spreads


def error_correlation(families: Sequence[str]) -> np.ndarray:
    """Correlation of the errors of strategies, by family; an assumption until cells tell."""
    names = np.asarray(families)
    same = names[:, None] == names[None, :]
    matrix = np.where(same, SAME_FAMILY, OTHER_FAMILY).astype(float)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def informed(
    expected: Sequence[Belief], measured: Mapping[int, Belief], correlation: np.ndarray
) -> list[Belief]:
    """Beliefs after some candidates were measured.

    Args:
        expected: each candidate's step by its prediction alone.
        measured: what runs say, by the candidate's index.
        correlation: of the errors of predictions, (candidates, candidates).

    Returns:
        Measured candidates as they were measured; the others moved, and better known.
    """
    if not measured:
        return list(expected)
    spreads = np.array([belief.spread for belief in expected])
    covariance = correlation * np.outer(spreads, spreads)
    known = sorted(measured)
    errors = np.array([math.log(measured[i].step_s / expected[i].step_s) for i in known])
    noise = np.diag([measured[i].spread ** 2 for i in known])
    most = _SURPRISE * np.sqrt(np.diag(covariance)[known] + np.diag(noise))
    errors = np.clip(errors, -most, most)
    gain = np.linalg.solve(covariance[np.ix_(known, known)] + noise, covariance[known]).T
    shift = gain @ errors
    variance = np.diag(covariance) - np.einsum("ij,ji->i", gain, covariance[known])
    return [
        measured[i]
        if i in measured
        else replace(
            belief,
            step_s=belief.step_s * math.exp(shift[i]),
            spread=max(_LEAST_SPREAD, math.sqrt(max(0.0, variance[i]))),
        )
        for i, belief in enumerate(expected)
    ]


@dataclass(frozen=True)
class Candidate:
    """One cell among those that may be chosen.

    Args:
        cell: the cell that would be run.
        label: the strategy's name in figures, with what the plan makes of it.
        bound: highest speed-up over one device that it can reach; None if it cannot run.
        prediction: of its predictor; None if it cannot run or has no prediction.
        predicted_s: its predicted step, at least what the bound allows; None without a prediction.
        room: memory that its fullest device needs and has; None if unknown.
        measured_s: median steps of its runs at the site.
        expected: its step by the prediction alone; None without one.
        belief: what is known of its step: by its runs, else by the prediction and by the runs of
            other candidates; None if nothing is.
        reason: why it is not ranked; empty if it is.
        unpredicted: why it has no prediction, also where its runs rank it; else empty.
        beyond: why only its prediction is known: the site is too small to run it; else empty.
        diverged: the note of a run at the site that its loss is no number; empty if none has one.
        chance: probability that it is the fastest of the ranked ones; None if it is not ranked.
        chance_to_win: probability that it is faster than the first of the ranking.
        chance_to_gain: probability that it is faster than one device; None if that is unknown.
    """

    cell: Cell
    label: str
    bound: float | None = None
    prediction: Prediction | None = None
    predicted_s: float | None = None
    room: Room | None = None
    measured_s: tuple[float, ...] = ()
    expected: Belief | None = None
    belief: Belief | None = None
    reason: str = ""
    unpredicted: str = ""
    beyond: str = ""
    diverged: str = ""
    chance: float | None = None
    chance_to_win: float = 0.0
    chance_to_gain: float | None = None

    @property
    def strategy(self) -> str:
        return self.cell.strategy

    @property
    def beyond_sentence(self) -> str:
        """The remark on ``beyond``."""
        return f"Predicted beyond what can be measured: {self.beyond}."

    @property
    def ranked(self) -> bool:
        """Whether it may be recommended: its step is known, and nothing speaks against it."""
        return self.belief is not None and not self.reason

    @property
    def fits(self) -> bool | None:
        """Whether it fits into the memory of its devices; None if that is unknown."""
        return self.room.fits if self.room else None

    @property
    def memory_bytes(self) -> int | None:
        """Predicted bytes of its fullest device (on CPU: process)."""
        return self.room.needed_bytes if self.room else None

    @property
    def basis(self) -> str | None:
        """``measured`` or ``predicted``: what its place in the ranking rests on."""
        return self.belief.basis if self.belief else None

    @property
    def code(self) -> str:
        """The kind of its reason, as docs/reference/reasons.csv lists them."""
        return code_of(self.reason)

    def limited(self, base: Candidate | None) -> Candidate:
        """The candidate, its prediction within what the bound allows over the base's prediction."""
        if self.predicted_s is None or self.bound is None or self.expected is None:
            return self
        if base is None or base.predicted_s is None:
            return self
        least_s = base.predicted_s / self.bound
        if self.predicted_s >= least_s:
            return self
        # What is cut off tells how wrong the model is.
        spread = math.hypot(self.expected.spread, math.log(least_s / self.predicted_s))
        expected = replace(self.expected, step_s=least_s, spread=spread)
        belief = expected if self.basis == "predicted" else self.belief
        return replace(self, predicted_s=least_s, expected=expected, belief=belief)


TIE = 0.25
"""Probability to be faster than the first from which a candidate is tied with it."""
_ROUNDING = 1e-9
_FAILED = Reason("no_step", "failed here: its cell ended without a step")


@dataclass(frozen=True)
class Speedup:
    """One device's step over a candidate's; measured if both steps are."""

    ratio: float
    basis: Basis


@dataclass(frozen=True)
class Ranking:
    """The candidates of a question, best first."""

    recommender: str
    candidates: tuple[Candidate, ...]

    @cached_property
    def ranked(self) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if c.ranked)

    @cached_property
    def not_ranked(self) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if not c.ranked)

    @cached_property
    def best(self) -> Candidate | None:
        """The fastest that can run and is not known to be too large; None if there is none."""
        return next(iter(self.ranked), None)

    @cached_property
    def base(self) -> Candidate | None:
        """One device; None if nothing is known of it."""
        return next((c for c in self.ranked if c.strategy == BASE), None)

    @cached_property
    def tied(self) -> tuple[Candidate, ...]:
        """The best, and all that are faster than it with a probability of a quarter or more."""
        best = self.best
        if best is None:
            return ()
        if best.chance is None:  # a rule placed it
            return (best,)
        return tuple(c for c in self.ranked if c is best or c.chance_to_win >= TIE)

    @cached_property
    def reference(self) -> Candidate | None:
        """One device, which speed-ups are ratios to; also one whose memory is too small."""
        return _reference(self.candidates)

    def step_s(self, candidate: Candidate) -> float:
        """Seconds of its step: the measured median, else what is believed within its bound."""
        assert candidate.belief is not None
        if candidate.basis == "measured":
            return candidate.belief.step_s
        return max(candidate.belief.step_s, _least_s(candidate, self.reference))

    def interval_s(self, candidate: Candidate) -> tuple[float, float]:
        """Holds the step in 90 % of cases; of a prediction, both ends are within the bound."""
        assert candidate.belief is not None
        low, high = candidate.belief.interval_s
        base = self.reference
        if candidate.basis == "measured" or base is None or base.belief is None:
            return low, high
        least_s, most_s = (_share(candidate) * end_s for end_s in base.belief.interval_s)
        return max(low, least_s), max(high, most_s)

    def speedup(self, candidate: Candidate) -> Speedup | None:
        """Speed-up over one device, within the bound if a step is predicted; None if unknown."""
        base = self.reference
        if base is None or base.belief is None or candidate.belief is None:
            return None
        ratio = self.step_s(base) / self.step_s(candidate)
        if candidate.basis == base.basis == "measured":
            return Speedup(ratio, "measured")
        return Speedup(min(ratio, candidate.bound or math.inf), "predicted")

    def above_bound(self, candidate: Candidate) -> bool:
        """Whether it was measured faster than it can be."""
        speedup = self.speedup(candidate)
        if speedup is None or speedup.basis != "measured" or candidate.bound is None:
            return False
        return candidate.strategy != BASE and speedup.ratio > candidate.bound * (1 + _ROUNDING)

    def without(self, strategies: Collection[str]) -> Ranking:
        """The ranking after some candidates could not run; the others' chances grow."""
        if not strategies:
            return self
        left = [
            replace(c, belief=None, chance=None, reason=_FAILED) if c.strategy in strategies else c
            for c in self.candidates
        ]
        return replace(self, candidates=tuple(_ordered(left)))


def rank(candidates: Sequence[Candidate], recommender: str, *, by_rule: bool = False) -> Ranking:
    """Rank the candidates of one question.

    Args:
        candidates: in any order; sequential training, if it is among them, is the base.
        recommender: its name.
        by_rule: Horovod goes first, or GPipe where Horovod cannot; without chances.
    """
    base = next((c for c in candidates if c.strategy == BASE), None)
    ordered = _ordered(_with_siblings([c.limited(base) for c in candidates]))
    return Ranking(recommender, tuple(_by_the_rule(ordered) if by_rule else ordered))


def _with_siblings(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates; the runs of those that were measured move what is believed of the others."""
    known = [c for c in candidates if c.expected is not None and c.belief is not None]
    expected = [c.expected for c in known if c.expected is not None]
    measured = {
        place: c.belief
        for place, c in enumerate(known)
        if c.belief is not None and c.belief.basis == "measured"
    }
    beliefs = iter(
        informed(
            expected,
            measured,
            error_correlation([known_strategy(c.strategy).family for c in known]),
        )
    )
    return [replace(c, belief=next(beliefs)) if c in known else c for c in candidates]


def _reference(candidates: Sequence[Candidate]) -> Candidate | None:
    base = next((c for c in candidates if c.strategy == BASE), None)
    return base if base and (base.ranked or base.code == "too_large") else None


def _ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    reference = _reference(candidates)
    base = reference if reference and reference.ranked else None
    ranked = sorted((c for c in candidates if c.ranked), key=lambda c: _place(c, reference))
    # What would be known, but does not fit, goes first.
    others = sorted(
        (c for c in candidates if not c.ranked), key=lambda c: (c.belief is None, c.strategy)
    )
    won = races(
        [c.belief for c in ranked if c.belief is not None],
        [_share(c) for c in ranked],
        ranked.index(base) if base is not None else None,
    )
    return [
        *(
            replace(
                c,
                chance=race.fastest,
                chance_to_win=race.beats_first,
                chance_to_gain=race.beats_base,
            )
            for c, race in zip(ranked, won, strict=True)
        ),
        *others,
    ]


def _share(candidate: Candidate) -> float:
    """The part of one device's step that the candidate needs at least; see :func:`races`.

    Measured steps may be shorter, but for a candidate that can gain nothing.
    """
    if candidate.strategy == BASE or not candidate.bound:
        return 0.0
    if candidate.basis == "measured" and candidate.bound > 1:
        return 0.0
    return 1 / candidate.bound


def _least_s(candidate: Candidate, base: Candidate | None) -> float:
    """The step that the bound allows over what is believed of one device's."""
    return _share(candidate) * base.belief.step_s if base and base.belief else 0.0


def _place(candidate: Candidate, base: Candidate | None) -> tuple[float, bool, float]:
    """By time within the bound; one device before what can only be as fast."""
    assert candidate.belief is not None
    step_s = candidate.belief.step_s
    return (max(step_s, _least_s(candidate, base)), candidate.strategy != BASE, step_s)


def _by_the_rule(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Horovod, or GPipe where Horovod does not fit, before all others; without chances."""
    placed = {c.strategy: c for c in candidates if c.ranked}
    first = placed.get("horovod") or placed.get("gpipe")
    return [
        replace(candidate, chance=None)
        for candidate in sorted(candidates, key=lambda candidate: candidate is not first)
    ]


def prediction_interval_s(ranking: Ranking, strategy: str) -> tuple[float, float] | None:
    """Holds the predicted step of a strategy in 90 % of cases; None if it has no prediction.

    By the prediction alone, whatever was measured of this strategy.
    """
    candidates = tuple(replace(c, belief=c.expected) for c in ranking.candidates)
    candidate = next((c for c in candidates if c.strategy == strategy), None)
    if candidate is None or candidate.belief is None:
        return None
    return replace(ranking, candidates=candidates).interval_s(candidate)


def candidate_dict(ranking: Ranking, candidate: Candidate) -> dict[str, Any]:
    """A ranked candidate as JSON values."""
    speedup = ranking.speedup(candidate)
    prediction = candidate.prediction
    return {
        "strategy": candidate.strategy,
        "geometry": candidate.cell.geometry,
        "step_s": ranking.step_s(candidate),
        "interval_s": list(ranking.interval_s(candidate)),
        "basis": candidate.basis,
        "speedup": speedup.ratio if speedup else None,
        "speedup_basis": speedup.basis if speedup else None,
        "bound": candidate.bound,
        "chance": candidate.chance,
        "fits": candidate.fits,
        "label": candidate.label,
        "cell_id": candidate.cell.id,
        "predicted_step_s": candidate.predicted_s,
        "predicted_interval_s": list(candidate.expected.interval_s) if candidate.expected else None,
        "measured_step_s": median(candidate.measured_s) if candidate.measured_s else None,
        "runs": len(candidate.measured_s),
        "predictor": prediction.predictor if prediction else None,
        **{name: getattr(prediction, name, None) for name in PARTS},
        "memory_bytes": candidate.memory_bytes,
        "device_memory_bytes": candidate.room.capacity_bytes if candidate.room else None,
        "limits": list(prediction.limits) if prediction else [],
        "notes": list(prediction.notes) if prediction else [],
    }
