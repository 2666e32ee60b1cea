"""Intervals without assuming a distribution (Hoefler and Belli 2015, rules 5 and 6).

::

    sorted runs    x1  x2  x3  x4  x5  x6  x7  x8  x9
                       |-----------+-----------|
                      low        median       high      95 %: ranks from the binomial
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CONFIDENCE", "Interval", "median_interval", "ratio_interval", "scaled"]

CONFIDENCE = 0.95
_RESAMPLES = 9_999
_SEED = 20_200_501


@dataclass(frozen=True)
class Interval:
    """A median and how far it can be trusted; ``coverage`` is the probability to hold it."""

    median: float
    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float]) -> Interval:
    """Order-statistic interval of the median.

    Fewer than six values cannot give 95 %: their whole range is returned with the coverage
    that it has, and a single value has no interval.
    """
    from scipy import stats  # noqa: PLC0415 - slow to import, and no figure needs it

    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    median = float(np.median(ordered))
    if count == 1:
        return Interval(median, float("nan"), float("nan"), float("nan"))
    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))
    if stats.binom.cdf(rank, count, 0.5) <= (1 - CONFIDENCE) / 2:
        rank += 1
    rank = max(rank, 1)
    coverage = 1 - 2 * float(stats.binom.cdf(rank - 1, count, 0.5))
    return Interval(median, float(ordered[rank - 1]), float(ordered[-rank]), coverage)


def ratio_interval(base: Sequence[float], cell: Sequence[float]) -> Interval:
    """Ratio of medians, base over cell, with a seeded bootstrap over their paired repeats."""
    from scipy import stats  # noqa: PLC0415 - as above

    over = np.asarray(base, dtype=float)
    under = np.asarray(cell, dtype=float)
    ratio = float(np.median(over) / np.median(under))
    found = stats.bootstrap(
        (over, under),
        _ratio_of_medians,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Interval(ratio, min(float(found.low), ratio), max(float(found.high), ratio), CONFIDENCE)


def scaled(value: float, median: float, low: float, high: float) -> Interval:
    """``value`` with the relative interval of another median: a run's steps stand for its epoch."""
    if not (median > 0 and low <= median <= high):
        return Interval(value, float("nan"), float("nan"), float("nan"))
    return Interval(value, value * (low / median), value * (high / median), CONFIDENCE)


def _ratio_of_medians(over: np.ndarray, under: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(over, axis=axis) / np.median(under, axis=axis)
