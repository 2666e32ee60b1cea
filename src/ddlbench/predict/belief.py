"""What is known of a candidate's step, and how probably each candidate is the fastest.

::

    measured here       median of the runs        spread of the runs / sqrt(runs)
    calibrated          the prediction            ratio of its 90 % interval
    predicted before    the prediction            root mean square of its errors on cells here
    nothing known       the prediction            a factor of 1.39 in 90 % of cases: an assumption

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

import numpy as np

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
    return Belief(median(steps_s), math.sqrt(variance / len(logs)), "measured", len(logs))


def from_prediction(step_s: float, ratio: float | None, errors: Sequence[float]) -> Belief:
    """From a prediction.

    ``ratio`` is of its 90 % interval, if it was calibrated; ``errors`` are signed and relative, of
    such predictions here. Fewer than three only widen it.
    """
    spread = UNKNOWN
    if ratio is not None:
        spread = math.log(ratio) / Z90
    elif errors:
        typical = math.sqrt(fmean(math.log1p(error) ** 2 for error in errors))
        # One or two errors may show that a prediction is bad, not that it is good.
        spread = typical if len(errors) >= _FEWEST_ERRORS else max(spread, typical)
    return Belief(step_s, max(spread, 1e-6), "predicted")


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


def alike(families: Sequence[str]) -> np.ndarray:
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
