"""Rank-based intervals of a median (Hoefler and Belli 2015, rules 5 and 6).

::

    sorted runs    x1  x2  x3  x4  x5  x6  x7  x8  x9
                       |-----------+-----------|
                      low        median       high      95 %: ranks from the binomial
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CONFIDENCE", "Interval", "is_known", "median_interval"]

CONFIDENCE = 0.95


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
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    median = float(np.median(ordered))
    if count == 1:
        return Interval(median, float("nan"), float("nan"), float("nan"))
    rank, tail = _rank(count)
    return Interval(median, float(ordered[rank - 1]), float(ordered[-rank]), 1 - 2 * tail)


def _rank(count: int) -> tuple[int, float]:
    """The largest rank whose lower tail P(X < rank), X ~ B(count, 1/2), is allowed, and that tail.

    Whole numbers, as a binomial coefficient of thousands exceeds any float.
    """
    whole = 2**count
    allowed = (1 - CONFIDENCE) / 2
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
