"""Statistics of measured numbers.

Confidence intervals assume no distribution (Hoefler and Belli 2015, rules 5 and 6)::

    sorted runs    x1  x2  x3  x4  x5  x6  x7  x8  x9
                       |-----------+-----------|
                      low        median       high      95 %: ranks from the binomial

The intervals of means and of ratios of medians are from a seeded bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, TypeVar

import numpy as np

Key = TypeVar("Key")
Value = TypeVar("Value")

CONFIDENCE = 0.95
_RESAMPLES = 9_999
_SEED = 20_200_501
_FEWEST_FOR_MEAN = 6
_MANY = 10_000  # exact integers take too long for more values


@dataclass(frozen=True)
class Interval:
    """An interval that holds the median with probability ``coverage``."""

    median: float
    low: float
    high: float
    coverage: float

    def ends(self) -> tuple[float, float] | None:
        """Both ends; None if the coverage is below :data:`CONFIDENCE`."""
        return (self.low, self.high) if self.coverage >= CONFIDENCE else None


def round_means(steps_s: Sequence[float] | np.ndarray, round_steps: int) -> np.ndarray:
    """The mean step of each whole round of ``round_steps`` steps; a part of a round is left out."""
    values = np.asarray(steps_s, dtype=float)
    whole = len(values) // round_steps * round_steps
    means: np.ndarray = values[:whole].reshape(-1, round_steps).mean(axis=1)
    return means


def median_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Order-statistic interval of the median.

    Fewer than six values cannot give 95 %; the interval is then their range, with its coverage. The
    ends are NaN for a single value.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    median = float(np.median(ordered))
    if count == 1:
        return Interval(median, float("nan"), float("nan"), float("nan"))
    rank, tail = _rank(count)
    return Interval(median, float(ordered[rank - 1]), float(ordered[-rank]), 1 - 2 * tail)


def scaled(value: float, median: float, low: float, high: float) -> Interval:
    """``value`` with the relative interval of another median: of its steps, for an epoch."""
    if not (median > 0 and low <= median <= high):
        return Interval(value, float("nan"), float("nan"), float("nan"))
    return Interval(value, value * (low / median), value * (high / median), CONFIDENCE)


def ratio_interval(base: Sequence[float], cell: Sequence[float]) -> Interval:
    """Ratio of medians, base over cell, with a bootstrap interval over paired repeats."""
    over, under = np.asarray(base, dtype=float), np.asarray(cell, dtype=float)
    ratio = float(np.median(over) / np.median(under))
    low, high = _bootstrap((over, under), _ratio_of_medians, paired=True)
    return Interval(ratio, min(low, ratio), max(high, ratio), ratio_coverage(len(over)))


def ratio_coverage(pairs: int) -> float:
    """How often the interval of a ratio of so many pairs holds the true ratio.

    As in :func:`median_interval`, fewer than six pairs cannot give 95 %: all of them lie on one
    side of the truth too often.
    """
    return min(CONFIDENCE, 1 - 2.0 ** (1 - pairs))


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """Bootstrap interval of the mean; None for fewer than six values, which cannot give 95 %.

    The percentiles of means of n values lie too close together, by sqrt(1 - 1/n) and by normal in
    place of Student's quantiles, and are taken further out (Hesterberg, "What Teachers Should Know
    about the Bootstrap", 2015, section 3.3).
    """
    from scipy.special import ndtr, stdtrit  # noqa: PLC0415 - slow to import

    count = len(values)
    if count < _FEWEST_FOR_MEAN:
        return None
    quantile = stdtrit(count - 1, (1 + CONFIDENCE) / 2) * math.sqrt(count / (count - 1))
    level = float(2 * ndtr(quantile) - 1)
    return _bootstrap((np.asarray(values, dtype=float),), np.mean, level=level)


def _bootstrap(
    samples: tuple[np.ndarray, ...],
    statistic: Callable[..., np.ndarray],
    *,
    paired: bool = False,
    level: float = CONFIDENCE,
) -> tuple[float, float]:
    from scipy import stats  # noqa: PLC0415 - slow to import

    interval = stats.bootstrap(
        samples,
        statistic,
        paired=paired,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _ratio_of_medians(over: np.ndarray, under: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(over, axis=axis) / np.median(under, axis=axis)


@cache
def _rank(count: int) -> tuple[int, float]:
    """The largest rank with an allowed lower tail P(X < rank), X ~ B(count, 1/2), and that tail."""
    allowed = (1 - CONFIDENCE) / 2
    if count > _MANY:
        from scipy.special import bdtr  # noqa: PLC0415 - slow to import

        tails = bdtr(np.arange(count), count, 0.5)
        rank = int(np.searchsorted(tails, allowed, side="right"))
        return rank, float(tails[rank - 1])
    # Exact integers, as binomial coefficients of thousands exceed any float.
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
    """Whether there were enough values for an interval."""
    return not math.isnan(interval.low)


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Key -> all its values, both in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def medians(pairs: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    """Key -> median of all its values."""
    return {key: median(values) for key, values in grouped(pairs).items()}


def doubled(first: int, most: int) -> Iterator[int]:
    """``first``, twice that, four times that, ... up to ``most``."""
    while first <= most:
        yield first
        first *= 2
