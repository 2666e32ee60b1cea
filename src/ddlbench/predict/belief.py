"""What is known of a candidate's step, and how probably each candidate is the fastest.

::

    measured here       median of the runs        spread of the runs / sqrt(runs)
    calibrated          the prediction            ratio of its 90 % interval
    predicted before    the prediction            root mean square of its errors on cells here
    nothing known       the prediction            a factor of 1.39 in 90 % of cases: an assumption

The logarithm of a step is taken as normal, and candidates as independent::

    P(i is fastest) = integral  f_i(x)  product over j != i of (1 - F_j(x))  dx

Few runs say little of their spread, so it is drawn to 5 % as if two more runs had shown that: three
repeats on the project's test bed lie 7.3 % apart (docs/validation, repeatability), which is a
standard deviation of 4.3 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import numpy as np
from scipy.special import ndtr

Basis = Literal["measured", "predicted"]

_Z90 = 1.645  # 90 % of a normal distribution lie within so many standard deviations
_UNKNOWN = 0.2  # spread of a prediction of which nothing is known
_RUN = 0.05  # spread of one run
_PRIOR_RUNS = 2
_FEWEST_ERRORS = 3
_POINTS = 801
_REACH = 6.0  # standard deviations


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
        ratio = math.exp(_Z90 * self.spread)
        return self.step_s / ratio, self.step_s * ratio

    def beats(self, other: Belief) -> float:
        """Probability that this step is the shorter one."""
        spread = math.hypot(self.spread, other.spread)
        return float(ndtr(math.log(other.step_s / self.step_s) / spread))


def from_runs(steps_s: Sequence[float]) -> Belief:
    """From the median steps of at least one run."""
    logs = [math.log(step_s) for step_s in steps_s]
    middle = fmean(logs)
    squares = sum((value - middle) ** 2 for value in logs) + _PRIOR_RUNS * _RUN**2
    variance = squares / (_PRIOR_RUNS + len(logs) - 1)
    return Belief(median(steps_s), math.sqrt(variance / len(logs)), "measured", len(logs))


def from_prediction(step_s: float, ratio: float | None, errors: Sequence[float]) -> Belief:
    """From a prediction.

    Args:
        step_s: predicted.
        ratio: of its 90 % interval, if it was calibrated.
        errors: signed, relative, of such predictions here; used from three on.
    """
    spread = _UNKNOWN
    if ratio is not None:
        spread = math.log(ratio) / _Z90
    elif len(errors) >= _FEWEST_ERRORS:
        spread = math.sqrt(fmean(math.log1p(error) ** 2 for error in errors))
    return Belief(step_s, max(spread, 1e-6), "predicted")


def fastest(beliefs: Sequence[Belief]) -> list[float]:
    """Probability of each that its step is the shortest; they add up to 1."""
    if not beliefs:
        return []
    middles = np.log([belief.step_s for belief in beliefs])
    spreads = np.array([belief.spread for belief in beliefs])
    # Each candidate has a grid of its own, as spreads differ by orders of magnitude.
    places = np.linspace(-_REACH, _REACH, _POINTS)
    weights = np.exp(-(places**2) / 2)
    weights /= weights.sum()
    found = []
    for index, (middle, spread) in enumerate(zip(middles, spreads, strict=True)):
        at = middle + spread * places
        longer = ndtr((middles[:, None] - at) / spreads[:, None])  # the others take longer than x
        longer[index] = 1.0
        found.append(float(weights @ longer.prod(axis=0)))
    whole = sum(found)
    return [one / whole for one in found]
