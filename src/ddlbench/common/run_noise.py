"""Ratios of times that were measured in several runs, with the noise of steps and of runs.

::

    run 1   s s s s s s s s s s       steps of a run: neighbours are alike, so blocks are resampled
    run 2       s s s s s s s s s s   runs lie apart by more than their steps tell: the run is the
    run 3    s s s s s s s s s s      unit of noise

Numbers are logarithms of seconds, so that a spread is a share of the time. A ratio of medians has a
t interval. Its variance comes from the first of these that there is:

* repeats of the configuration in both trees, joined with those of other configurations by an
  empirical prior (Smyth 2004, section 6), as two or three repeats alone tell little;
* repeats of other configurations;
* the stated spread.

Where a tree has a single run, the error of its median step is added, from the steps within it
(circular block bootstrap, Politis and Romano 1992; length of a block by Carlstein 1986 for a
first-order autoregression).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ddlbench.common.statistics import CONFIDENCE

_RESAMPLES = 399  # give a standard error within 4 %
_SEED = 20_200_501
_MOST_AT_ONCE = 2_000_000  # steps of resamples in memory
_LARGEST_CORRELATION = 0.97
_FEWEST_STEPS = 4
_FEWEST_FOR_PRIOR = 3  # configurations with repeats; fewer have a pooled spread, and no prior


def block_length(values: np.ndarray) -> int:
    """Length of blocks that keep most of the correlation of neighbouring values.

    Carlstein (1986), for a first-order autoregression; blocks that overlap are longer by the third
    root of 3/2 (Künsch 1989). The estimated correlation is corrected for its bias in short series
    (Kendall 1954).
    """
    count = len(values)
    centred = values - values.mean()
    total = float(centred @ centred)
    if total <= 0:
        return 1
    correlation = float(centred[1:] @ centred[:-1]) / total
    correlation += (1 + 4 * correlation) / count
    correlation = min(max(correlation, 0.0), _LARGEST_CORRELATION)
    ratio = math.sqrt(6) * correlation / (1 - correlation**2)
    return max(1, min(math.ceil(ratio ** (2 / 3) * count ** (1 / 3)), count // 2))


def median_error(steps_s: Sequence[float] | np.ndarray) -> float | None:
    """Relative standard error of the median of autocorrelated steps, by a block bootstrap.

    None for fewer than four steps, or if a step took no time.
    """
    values = np.asarray(steps_s, dtype=float)
    count = len(values)
    if count < _FEWEST_STEPS or not (values > 0).all():
        return None
    values = np.log(values)
    length = block_length(values)
    blocks = -(-count // length)
    random = np.random.default_rng(_SEED)
    medians: list[float] = []
    while len(medians) < _RESAMPLES:
        resamples = max(1, min(_RESAMPLES - len(medians), _MOST_AT_ONCE // count))
        starts = random.integers(0, count, (resamples, blocks, 1))
        places = (starts + np.arange(length)).reshape(resamples, -1)[:, :count] % count
        medians.extend(np.median(values[places], axis=1))
    return float(np.std(medians, ddof=1)) * math.sqrt(count / (count - 1))


def median_weight(runs: int) -> float:
    """Variance of the median of so many runs, in variances of one run.

    For normal runs it is exact for one, two and many. Between, it is within 3 % for an odd number
    of runs, and up to a fifth too large for an even number.
    """
    half_pi = math.pi / 2
    return half_pi / (runs + half_pi - 1) if runs > 2 else 1 / runs


@dataclass(frozen=True)
class Sample:
    """The runs of one configuration in one tree.

    Args:
        median_s: median over the runs of their steps.
        runs: how many.
        spread: standard deviation of the logarithms of the runs' steps; None for a single run.
        step_error: relative standard error of a run's median step, from the steps within the run;
            None if unknown.
    """

    median_s: float
    runs: int
    spread: float | None
    step_error: float | None

    @classmethod
    def of(cls, steps_s: Sequence[float], step_errors: Sequence[float | None] = ()) -> Sample:
        """The sample of runs, by the median step of each, above zero, and its error."""
        logs = np.log(np.asarray(steps_s, dtype=float))
        known = [error**2 for error in step_errors if error is not None]
        return cls(
            float(np.median(steps_s)),
            len(logs),
            float(np.std(logs, ddof=1)) if len(logs) > 1 else None,
            math.sqrt(fmean(known)) if known else None,
        )

    def scaled(self, factor: float) -> Sample:
        return replace(self, median_s=self.median_s * factor)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the spread."""
        return self.runs - 1

    @property
    def weight(self) -> float:
        """Variance of the median of the runs, in variances of one run."""
        return median_weight(self.runs)


Pair = tuple[Sample, Sample]


@dataclass(frozen=True)
class Noise:
    """Variance of one run about its configuration.

    Args:
        variance: of the logarithm of its step.
        freedom: degrees of freedom of the variance; infinite if it is stated.
        source: where the variance comes from: ``repeats``, ``other repeats``, ``stated``.
    """

    variance: float
    freedom: float
    source: str


class RunNoise:
    """How far runs of one configuration lie apart, estimated from all pairs of a comparison.

    Args:
        pairs: samples of both trees, a pair per configuration.
        stated: spread where no configuration has repeats.
    """

    def __init__(self, pairs: Sequence[Pair], stated: float) -> None:
        self._stated = stated
        pooled = [_pooled(pair) for pair in pairs]
        repeated = [(variance, freedom) for variance, freedom in pooled if freedom]
        self._freedom = sum(freedom for _, freedom in repeated)
        self._repeated = len(repeated)
        self._pooled = _mean_variance(repeated)
        self._prior = _prior(repeated) if len(repeated) >= _FEWEST_FOR_PRIOR else None

    def of(self, pair: Pair) -> Noise:
        variance, freedom = _pooled(pair)
        if freedom and self._prior is not None:
            prior, prior_freedom = self._prior
            if math.isinf(prior_freedom):
                return Noise(prior, self._freedom, "repeats")
            joined = (prior_freedom * prior + freedom * variance) / (prior_freedom + freedom)
            return Noise(joined, min(prior_freedom + freedom, self._freedom), "repeats")
        if freedom:
            return Noise(variance, freedom, "repeats")
        if self._prior is not None:
            prior, prior_freedom = self._prior
            return Noise(prior, min(prior_freedom, self._freedom), "other repeats")
        if self._repeated:
            return Noise(self._pooled, self._freedom, "other repeats")
        return Noise(self._stated**2, math.inf, "stated")

    def ratio(self, pair: Pair) -> Ratio:
        """The second sample over the first."""
        first, second = pair
        noise = self.of(pair)
        variance = noise.variance * (first.weight + second.weight)
        if first.spread is not None and second.spread is not None and first.runs != second.runs:
            # One tree may be noisier than the other (Welch 1947).
            variances = [sample.weight * (sample.spread or 0.0) ** 2 for sample in pair]
            variance = max(variance, sum(variances))
        # A single run has the error of its median step, too: others may have had more steps.
        single = sum((sample.step_error or 0.0) ** 2 for sample in pair if sample.runs == 1)
        half = t_quantile(noise.freedom) * math.sqrt(variance + single)
        if noise.source == "repeats" and noise.variance <= self._stated**2:
            # Few repeats that agree must not give a wider interval than no repeats at all.
            stated = self._stated**2 * (first.weight + second.weight) + single
            half = min(half, t_quantile(math.inf) * math.sqrt(stated))
        middle = math.log(second.median_s / first.median_s)
        low, high = (math.exp(middle + sign * half) for sign in (-1, 1))
        return Ratio(math.exp(middle), low, high, noise)


@dataclass(frozen=True)
class Ratio:
    """A ratio of times with the ends of its 95 % interval."""

    ratio: float
    low: float
    high: float
    noise: Noise | None = None


def repeats_to_tell(noise: Noise, margin: float) -> int:
    """Repeats per tree for an interval about ratio 1 that fits into a margin of, say, 0.05."""
    half = math.log1p(margin) / t_quantile(math.inf)
    return max(2, math.ceil(math.pi * noise.variance / half**2))


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The quantile of Student's t at the upper end of an interval round the middle."""
    from scipy.special import ndtri, stdtrit  # noqa: PLC0415 - slow to import

    at = (1 + confidence) / 2
    return float(ndtri(at) if math.isinf(freedom) else stdtrit(freedom, at))


def _pooled(pair: Pair) -> tuple[float, int]:
    """Variance of runs within both trees, and its degrees of freedom."""
    variances = [((sample.spread or 0.0) ** 2, sample.freedom) for sample in pair if sample.freedom]
    return _mean_variance(variances), sum(freedom for _, freedom in variances)


def _mean_variance(variances: Sequence[tuple[float, int]]) -> float:
    freedom = sum(degrees for _, degrees in variances)
    total = sum(variance * degrees for variance, degrees in variances)
    return total / freedom if freedom else 0.0


def _prior(repeated: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Scale and degrees of freedom of the variances of configurations (Smyth 2004, section 6.2).

    Few configurations tell little of how variances differ, so the prior has at most as many
    degrees of freedom as there are configurations.
    """
    from scipy.special import digamma, polygamma  # noqa: PLC0415 - slow to import

    variances = np.array([variance for variance, _ in repeated])
    half = np.array([freedom / 2 for _, freedom in repeated])
    least = 1e-5 * float(np.median(variances))
    if least <= 0:
        return _mean_variance(repeated), math.inf
    unbiased = np.log(np.maximum(variances, least)) - digamma(half) + np.log(half)
    excess = float(np.var(unbiased, ddof=1) - polygamma(1, half).mean())
    freedom = 2 * _trigamma_inverse(excess) if excess > 0 else math.inf
    freedom = min(freedom, float(len(repeated)))
    scale = math.exp(unbiased.mean() + digamma(freedom / 2) - math.log(freedom / 2))
    return scale, freedom


def _trigamma_inverse(value: float) -> float:
    """Newton's method on 1 / trigamma, which is convex (Smyth 2004, appendix)."""
    from scipy.special import polygamma  # noqa: PLC0415 - slow to import

    root = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, root))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, root))
        root += step
        if -step / root < 1e-8:
            break
    return root
