"""Intervals without assuming a distribution (Hoefler and Belli 2015, rules 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlbench.experiment.intervals import CONFIDENCE, Interval, median_interval

__all__ = [
    "CONFIDENCE",
    "Interval",
    "mean_interval",
    "median_interval",
    "ratio_interval",
    "scaled",
]

_RESAMPLES = 9_999
_SEED = 20_200_501


def ratio_interval(base: Sequence[float], cell: Sequence[float]) -> Interval:
    """Ratio of medians, base over cell, with a seeded bootstrap over their paired repeats."""
    from scipy import stats  # noqa: PLC0415 - slow to import, and no figure needs it

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


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """Ends of a mean's seeded bootstrap interval; None for fewer than 3 values."""
    if len(values) < 3:
        return None
    from scipy import stats  # noqa: PLC0415 - slow to import

    found = stats.bootstrap(
        (np.asarray(values, dtype=float),),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(found.low), float(found.high)
