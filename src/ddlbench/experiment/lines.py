"""A straight line with no negative coefficient, the one shape of every fit here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlbench.experiment.errors import ConfigError

__all__ = ["Floats", "Timing", "non_negative"]

Floats = NDArray[np.float64]


def non_negative(columns: Floats, weights: Floats) -> tuple[float, float]:
    """Weighted least squares of ``columns @ (a, b) = 1`` with neither below zero.

    Args:
        columns: (points, 2); dividing both columns by the measured value makes errors relative.
        weights: (points,), above zero.
    """
    ones, slopes = columns[:, 0], columns[:, 1]
    a11, a12, a22 = (
        float(weights @ (x * y)) for x, y in ((ones, ones), (ones, slopes), (slopes, slopes))
    )
    b1, b2 = float(weights @ ones), float(weights @ slopes)
    determinant = a11 * a22 - a12 * a12
    if determinant > 1e-12 * a11 * a22:
        first, second = (b1 * a22 - b2 * a12) / determinant, (b2 * a11 - b1 * a12) / determinant
        if first >= 0 and second >= 0:
            return first, second
        if first < 0:
            return 0.0, b2 / a22
    return b1 / a11, 0.0


@dataclass(frozen=True)
class Timing:
    """Seconds over batch size: what was measured, and ``fixed_s + batch * per_sample_s`` between.

    A measured size gives its own measurement; a single one is taken to be proportional.
    """

    measured_s: dict[int, float]
    fixed_s: float
    per_sample_s: float

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]], what: str) -> Timing:
        """Fit (batch size, seconds) pairs.

        Raises:
            ConfigError: there are none, or a time is below zero.
        """
        if not points:
            raise ConfigError(f"{what} was timed at no batch size; make its profile again")
        for batch_size, seconds in points:
            if not seconds >= 0:
                raise ConfigError(f"{what}: {seconds} s at batch {batch_size} is below zero")
        measured = dict(points)
        useful = [(batch, seconds) for batch, seconds in points if seconds > 0]
        if not useful:
            return cls(measured, 0.0, 0.0)
        if len(useful) == 1:
            batch_size, seconds = useful[0]
            return cls(measured, 0.0, seconds / batch_size)
        batches, times = np.array(useful, dtype=float).T
        columns = np.stack([1 / times, batches / times], axis=1)
        return cls(measured, *non_negative(columns, np.ones(len(useful))))

    def at(self, batch_size: float) -> float:
        """Seconds at a batch size."""
        measured = self.measured_s.get(int(batch_size)) if batch_size == int(batch_size) else None
        if measured is not None:
            return measured
        return self.fixed_s + self.per_sample_s * batch_size

    def extrapolates(self, batch_size: float) -> bool:
        """Whether a batch size lies outside what was measured."""
        return not min(self.measured_s) <= batch_size <= max(self.measured_s)
