"""Fits of message times over message sizes, and of seconds over batch sizes.

::

    time  |                 ____/        time = alpha + beta * message_bytes in each piece
          |           ___/ |             (Hockney 1994); pieces end where the transport changes
          |  ________/     |             its protocol
          +---------|------|------ message_bytes

Errors are relative, as a sweep spans five decades. Outliers weigh less (Huber). The Bayesian
information criterion chooses the number of pieces, in its form for breaks that are searched for in
the data (Zhang and Siegmund 2007). No coefficient is negative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Amount, Form, Interval

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
    """Seconds over batch size: ``fixed_s + batch * per_sample_s``, exact at measured sizes.

    With a single measured size, seconds are proportional to the batch size.
    """

    measured_s: dict[int, float]
    fixed_s: float
    per_sample_s: float

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]], name: str) -> Timing:
        """Fit (batch size, seconds) pairs; ``name`` is for messages.

        Raises:
            ConfigError: there are none, or a time is below zero.
        """
        if not points:
            raise ConfigError(f"{name} was timed at no batch size; make its profile again")
        for batch_size, seconds in points:
            if not seconds >= 0:
                raise ConfigError(f"{name}: {seconds} s at batch {batch_size} is below zero")
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
        measured = self.measured_s.get(int(batch_size)) if batch_size == int(batch_size) else None
        if measured is not None:
            return measured
        return self.fixed_s + self.per_sample_s * batch_size

    def between(self, batch_size: float) -> float:
        """Seconds as of :meth:`at`, but on straight lines between neighbouring measured sizes.

        Outside them it is the line through all sizes, scaled to meet the nearest one. A whole step
        on a GPU bends where its work takes longer than the launches
        (docs/validation/README.md#one-gpu).
        Single blocks keep to the line, because their times are noisier.
        """
        sizes = sorted(size for size, seconds in self.measured_s.items() if seconds > 0)
        if len(sizes) < 2 or batch_size in self.measured_s:
            return self.at(batch_size)
        if sizes[0] < batch_size < sizes[-1]:
            seconds = [self.measured_s[size] for size in sizes]
            return float(np.interp(batch_size, sizes, seconds))
        nearest = sizes[0] if batch_size < sizes[0] else sizes[-1]
        line_s = self.fixed_s + self.per_sample_s * nearest
        return self.at(batch_size) * self.measured_s[nearest] / line_s

    def divided(self, factor: float) -> Timing:
        """The timing with all seconds divided by a factor."""
        measured_s = {size: seconds / factor for size, seconds in self.measured_s.items()}
        return Timing(measured_s, self.fixed_s / factor, self.per_sample_s / factor)

    def then(self, later: Timing) -> Timing:
        """The timing of this work and another one after it."""
        sizes = {*self.measured_s, *later.measured_s}
        measured_s = {size: self.at(size) + later.at(size) for size in sizes}
        fixed_s = self.fixed_s + later.fixed_s
        return Timing(measured_s, fixed_s, self.per_sample_s + later.per_sample_s)

    def extrapolates(self, batch_size: float) -> bool:
        """Whether a batch size is outside the measured range."""
        return not min(self.measured_s) <= batch_size <= max(self.measured_s)


# A piece of fewer sizes would fit anything.
_LEAST_SIZES = 3
# Smaller relative residuals are below the resolution of timers and must not justify a piece.
_FINEST_RESIDUAL = 1e-3
# In standard deviations: larger errors are outliers (95 % efficiency on normal errors).
_HUBER = 1.345
_ROUNDS = 20
_LARGEST_CORRECTION = 2.0  # of the penalty for parameters with few points


class MessageTime(Protocol):
    """A measured message: its bytes and its seconds."""

    @property
    def message_bytes(self) -> int:
        """Size."""

    @property
    def time_s(self) -> float:
        """Time."""


@dataclass(frozen=True)
class HockneyPiece(Form):
    """``alpha + beta * bytes`` in a range of message sizes; ``to_bytes`` None: no upper end."""

    from_bytes: Amount
    to_bytes: Amount | None
    """Null: no end."""
    alpha_s: Amount
    beta_s_per_byte: Amount
    alpha_interval_s: Interval | None
    """95 %."""
    beta_interval_s_per_byte: Interval | None
    """95 %."""


@dataclass(frozen=True)
class HockneyFit(Form):
    """The ``fit`` object of links.json: pieces from 0 bytes on, and their residuals."""

    model: Literal["piecewise-hockney"]
    """Time = alpha + beta * message_bytes in each piece."""
    pieces: Annotated[tuple[HockneyPiece, ...], MinLen(1)]
    median_relative_residual: Amount
    largest_relative_residual: Amount

    def time_s(self, message_bytes: float) -> float:
        """Time of one message; the outer pieces extrapolate beyond the sweep."""
        alpha_s, beta_s_per_byte = self.terms(message_bytes)
        return alpha_s + beta_s_per_byte * message_bytes

    def terms(self, message_bytes: float) -> tuple[float, float]:
        """Alpha and beta of the piece that a message falls into."""
        inner = (p for p in self.pieces[:-1] if message_bytes < (p.to_bytes or 0))
        piece = next(inner, self.pieces[-1])
        return float(piece.alpha_s), float(piece.beta_s_per_byte)


@dataclass(frozen=True)
class _Line:
    """A fitted piece over points ``first`` to ``last`` (exclusive), sorted by size."""

    first: int
    last: int
    alpha_s: float
    beta_s_per_byte: float
    alpha_interval_s: Interval | None
    beta_interval_s_per_byte: Interval | None
    residuals: Floats


def fit_hockney(points: Sequence[MessageTime], max_pieces: int = 3) -> HockneyFit:
    """Fit ``time = alpha + beta * bytes`` in one to ``max_pieces`` pieces.

    Args:
        points: of a sweep of links.json, in any order; a size may appear more than once.
        max_pieces: most pieces to try.

    Returns:
        pieces with alpha in s and beta in s per byte, neither negative, each with its 95 % interval
        (None without degrees of freedom), and the median and largest relative residual.

    Raises:
        ConfigError: fewer than two sizes, a size below zero, or a time not above zero.
    """
    sizes, times = _columns(points)
    edges = np.flatnonzero(np.diff(sizes)) + 1  # equal sizes stay in one piece
    starts = [0, *(int(edge) for edge in edges)]
    ends = [*starts[1:], len(sizes)]
    lines: dict[tuple[int, int], _Line] = {}
    best: tuple[float, list[_Line]] | None = None
    for pieces in range(1, max_pieces + 1):
        for cuts in _cuts(len(starts), pieces):
            chosen = []
            for begin, end in itertools.pairwise((0, *cuts, len(starts))):
                key = (starts[begin], ends[end - 1])
                if key not in lines:
                    lines[key] = _fit_line(sizes, times, *key)
                chosen.append(lines[key])
            score = _score(chosen)
            if best is None or score < best[0]:
                best = (score, chosen)
    assert best is not None  # one piece is always tried
    return _as_fit(best[1], sizes)


def given_hockney(latency_s: float, bandwidth_bytes_per_s: float) -> HockneyFit:
    """The fit object of a link with a speed given by hand: one piece, nothing fitted.

    Raises:
        ConfigError: a latency below zero, or a bandwidth not above it.
    """
    if not latency_s >= 0:
        raise ConfigError(f"latency {latency_s} s: a latency is not below zero; give seconds")
    if not bandwidth_bytes_per_s > 0:
        raise ConfigError(
            f"bandwidth {bandwidth_bytes_per_s} bytes/s: a bandwidth is above zero; "
            "give bytes per second"
        )
    nothing = np.zeros(1)
    line = _Line(0, 1, latency_s, 1 / bandwidth_bytes_per_s, None, None, nothing)
    return _as_fit([line], nothing)


def _columns(points: Sequence[MessageTime]) -> tuple[Floats, Floats]:
    sizes = np.array([point.message_bytes for point in points], dtype=float)
    times = np.array([point.time_s for point in points], dtype=float)
    if len(np.unique(sizes)) < 2:
        raise ConfigError(
            "a latency and a bandwidth cannot be fitted to fewer than two message sizes; "
            f"the sweep has {len(np.unique(sizes))}"
        )
    for size, time in zip(sizes, times, strict=True):
        if not (size >= 0 and 0 < time < math.inf):
            raise ConfigError(
                f"a message of {size:g} bytes in {time:g} s: sizes are not below zero and times "
                "above zero; measure that point again"
            )
    order = np.argsort(sizes, kind="stable")
    return sizes[order], times[order]


def _cuts(sizes: int, pieces: int) -> Iterable[tuple[int, ...]]:
    """All ways to divide the sizes into pieces of at least three."""
    if pieces == 1:
        return [()]
    return (
        cuts
        for cuts in itertools.combinations(range(_LEAST_SIZES, sizes), pieces - 1)
        if all(b - a >= _LEAST_SIZES for a, b in itertools.pairwise((0, *cuts, sizes)))
    )


def _fit_line(sizes: Floats, times: Floats, first: int, last: int) -> _Line:
    """Fit a non-negative line by relative errors; outliers weigh less."""
    columns = np.stack([np.ones(last - first), sizes[first:last]], axis=1)
    columns = columns / times[first:last, None]  # so that the target is 1, the error relative
    weights = np.ones(last - first)
    for _ in range(_ROUNDS):
        alpha, beta = non_negative(columns, weights)
        residuals = columns @ np.array([alpha, beta]) - 1
        spread = max(float(np.median(np.abs(residuals))) / 0.6745, _FINEST_RESIDUAL)
        previous, weights = weights, np.minimum(1, _HUBER * spread / np.abs(residuals).clip(1e-300))
        if np.allclose(previous, weights, rtol=1e-3):
            break
    intervals = _intervals(columns, weights, residuals, (alpha, beta))
    return _Line(first, last, alpha, beta, intervals[0], intervals[1], residuals)


def _intervals(
    columns: Floats, weights: Floats, residuals: Floats, values: tuple[float, float]
) -> list[Interval | None]:
    """95 % intervals (Student's t) of alpha and beta, cut at zero.

    Errors of outliers weigh less, but so does what is known from them: the variance is that of
    Huber's estimates (Huber and Ronchetti 2009, equations 7.81 to 7.83).
    """
    from scipy.stats import t as student  # noqa: PLC0415 - slow to import, and only fitting needs it

    count = len(residuals)
    freedom = count - 2
    matrix = columns.T @ columns
    scale = np.sqrt(np.diag(matrix))
    if freedom < 1 or np.any(scale == 0):
        return [None, None]
    # Scaled to ones on the diagonal, as alpha and beta differ by ten decades.
    inverse = np.linalg.pinv(matrix / np.outer(scale, scale)) / np.outer(scale, scale)
    inliers = float(np.mean(weights >= 1))
    correction = 1 + 2 / count * (1 - inliers) / inliers
    variance = correction**2 * float(np.sum((weights * residuals) ** 2)) / freedom / inliers**2
    reach = student.ppf(0.975, freedom) * np.sqrt(variance * np.diag(inverse))
    return [
        (max(0.0, value - float(half)), value + float(half))
        for value, half in zip(values, reach, strict=True)
    ]


def _score(lines: Sequence[_Line]) -> float:
    """Bayesian information criterion of a piecewise fit; lower is better."""
    residuals = np.concatenate([line.residuals for line in lines])
    spread = max(float(np.median(np.abs(residuals))) / 0.6745, _FINEST_RESIDUAL)
    size = np.abs(residuals)
    losses = np.where(
        size <= _HUBER * spread, size**2, 2 * _HUBER * spread * size - (_HUBER * spread) ** 2
    )
    count = len(residuals)
    # Each piece has alpha and beta; a break counts twice, as it is searched for (Zhang and Siegmund
    # 2007). Few points increase the penalty (McQuarrie 1999), but at most twofold: a sweep of ten
    # sizes may still have three pieces.
    parameters = 4 * len(lines) - 2
    correction = min(_LARGEST_CORRECTION, count / max(count - parameters - 2, 1))
    mean_loss = max(float(losses.mean()), _FINEST_RESIDUAL**2)
    return count * math.log(mean_loss) + correction * parameters * math.log(count)


def _as_fit(lines: Sequence[_Line], sizes: Floats) -> HockneyFit:
    breaks = [_break(a, b, sizes) for a, b in itertools.pairwise(lines)]
    pieces = tuple(
        HockneyPiece(
            start or 0.0,
            end,
            line.alpha_s,
            line.beta_s_per_byte,
            line.alpha_interval_s,
            line.beta_interval_s_per_byte,
        )
        for line, (start, end) in zip(lines, itertools.pairwise((0.0, *breaks, None)), strict=True)
    )
    residuals = np.abs(np.concatenate([line.residuals for line in lines]))
    return HockneyFit(
        model="piecewise-hockney",
        pieces=pieces,
        median_relative_residual=float(np.median(residuals)),
        largest_relative_residual=float(residuals.max()),
    )


def _break(left: _Line, right: _Line, sizes: Floats) -> float:
    """The message size between two pieces: where they cross, else between their points."""
    low, high = float(sizes[left.last - 1]), float(sizes[right.first])
    slope = left.beta_s_per_byte - right.beta_s_per_byte
    if slope != 0:
        crossing = (right.alpha_s - left.alpha_s) / slope
        if low < crossing < high:
            return crossing
    return math.sqrt(low * high) if low > 0 else high / 2
