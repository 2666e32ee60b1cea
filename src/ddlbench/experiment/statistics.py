"""Intervals without assuming a distribution (Hoefler and Belli 2015, rules 5 and 6).

::

    sorted runs    x1  x2  x3  x4  x5  x6  x7  x8  x9
                       |-----------+-----------|
                      low        median       high      95 %: ranks from the binomial

Of a mean and of a ratio of medians the interval is a seeded bootstrap's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 9_999
_SEED = 20_200_501
_MANY = 10_000  # values for which whole numbers take too long


@dataclass(frozen=True)
class Interval:
    """A median and how far it can be trusted; ``coverage`` is the probability to hold it."""

    median: float
    low: float
    high: float
    coverage: float

    def ends(self) -> tuple[float, float] | None:
        """Both ends where they hold the median with :data:`CONFIDENCE`; None where they do not."""
        return (self.low, self.high) if self.coverage >= CONFIDENCE else None


def median_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Order-statistic interval of the median.

    Fewer than six values cannot give 95 %: their whole range is returned with the coverage
    that it has, and a single value has no interval.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    median = float(np.median(ordered))
    if count == 1:
        return Interval(median, float("nan"), float("nan"), float("nan"))
    rank, tail = _rank(count)
    return Interval(median, float(ordered[rank - 1]), float(ordered[-rank]), 1 - 2 * tail)


def scaled(value: float, median: float, low: float, high: float) -> Interval:
    """``value`` with the relative interval of another median: a run's steps stand for its epoch."""
    if not (median > 0 and low <= median <= high):
        return Interval(value, float("nan"), float("nan"), float("nan"))
    return Interval(value, value * (low / median), value * (high / median), CONFIDENCE)


def ratio_interval(base: Sequence[float], cell: Sequence[float]) -> Interval:
    """Ratio of medians, base over cell, with a seeded bootstrap over their paired repeats."""
    over, under = np.asarray(base, dtype=float), np.asarray(cell, dtype=float)
    ratio = float(np.median(over) / np.median(under))
    low, high = _bootstrap((over, under), _ratio_of_medians, paired=True)
    return Interval(ratio, min(low, ratio), max(high, ratio), CONFIDENCE)


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """Ends of a mean's seeded bootstrap interval; None for fewer than 3 values."""
    if len(values) < 3:
        return None
    return _bootstrap((np.asarray(values, dtype=float),), np.mean)


def _bootstrap(
    samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], *, paired: bool = False
) -> tuple[float, float]:
    from scipy import stats  # noqa: PLC0415 - slow to import, and no figure needs it

    found = stats.bootstrap(
        samples,
        statistic,
        paired=paired,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


def _ratio_of_medians(over: np.ndarray, under: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(over, axis=axis) / np.median(under, axis=axis)


@cache
def _rank(count: int) -> tuple[int, float]:
    """The largest rank whose lower tail P(X < rank), X ~ B(count, 1/2), is allowed, and that tail.

    Whole numbers, as a binomial coefficient of thousands exceeds any float.
    """
    allowed = (1 - CONFIDENCE) / 2
    if count > _MANY:
        from scipy.special import bdtr  # noqa: PLC0415 - slow to import

        tails = bdtr(np.arange(count), count, 0.5)
        rank = int(np.searchsorted(tails, allowed, side="right"))
        return rank, float(tails[rank - 1])
    whole = 2**count
    below, term, rank = 0, 1, 0
    while (below + term) / whole <= allowed:
        below += term
        rank += 1
        term = term * (count - rank + 1) // rank
    if rank == 0:
        return 1, 1 / whole
    return rank, below / whole


def is_known(interval: Interval) -> bool:
    """Whether there were enough values for an interval at all."""
    return not math.isnan(interval.low)
