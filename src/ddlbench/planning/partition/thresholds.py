"""PipeDream's programme for one level of many machines, by thresholds of the period.

The tables of :mod:`ddlbench.planning.partition.programme` grow with the square of the machines. A
threshold asks less: on how many machines can nodes 0..j run, if no stage may take longer than P?
These are a few intervals::

    stage k+1..j in time P   on r = 1, or on lo .. hi replicas    its time falls with r, then rises
    nodes 0..j in time P     counts of 0..k  +  replicas of k+1..j,  for every k

The least P whose counts hold all machines is the period. It is the time of a stage at some r, so
halving the range of P ends at it exactly. Among equal periods the choice is that of the tables: no
cut, then the earliest cut, then the fewest replicas. There is no limit of memory here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlbench.planning.partition.graph import Array

Integers = NDArray[np.int64]
StageTimes = Callable[[Integers], Array]
"""Seconds of each stage on so many replicas each; both of shape (N, N)."""
_HALVINGS = 8  # of the range of periods, before the next lower float is tried


@dataclass(frozen=True)
class _Replicas:
    """With how many replicas each stage keeps to a period; shapes (N, N).

    ``one_suffices`` says whether one replica does; none between ``low`` and ``high`` if low > high.
    """

    one_suffices: NDArray[np.bool_]
    low: Integers
    high: Integers


@dataclass(frozen=True)
class _Counts:
    """Intervals of numbers of machines on which nodes 0..``last`` keep to a period."""

    last: Integers
    low: Integers
    high: Integers

    def of(self, last: int) -> tuple[Integers, Integers]:
        """The counts of one last node, ascending."""
        chosen = self.last == last
        return self.low[chosen], self.high[chosen]


class Thresholds:
    """The least period of nodes 0..j on exactly m machines.

    Args:
        times: of stages; row 0 is of the stages without a cut before them.
        size: N.
        machines: the most of a stage.
    """

    def __init__(self, times: StageTimes, size: int, machines: int) -> None:
        self._times, self._size, self._machines = times, size, machines
        whole = np.full((size, size), machines, dtype=np.int64)
        # Of two replicas or more, those of the shortest time: where one more is no faster.
        self._shortest = _first(
            lambda r: ~(times(np.minimum(r + 1, machines)) < times(r)) | (r >= machines),
            np.minimum(2, whole),
            whole,
        )

    def least(self, last: int, machines: int) -> tuple[float, list[tuple[int, int, int]]]:
        """The period, and ``(first node, node after the last, replicas)`` of the stages.

        An infinite period and no stages if nodes 0..``last`` cannot run on so many machines.
        """
        stages: list[tuple[int, int, int]] = []
        period_s = self._period_s(last, machines)
        if not np.isfinite(period_s):
            return period_s, []
        end, limit_s = last, period_s
        while True:
            cut, replicas = self._last_stage(end, machines, limit_s)
            stages.append((cut + 1, end + 1, replicas))
            if cut < 0:
                return period_s, stages[::-1]
            end, machines = cut, machines - replicas
            limit_s = self._period_s(end, machines)

    def _period_s(self, last: int, machines: int) -> float:
        above = float(self._times(np.full((self._size, self._size), machines))[0, last])
        if not np.isfinite(above) or not self._holds(last, machines, above):
            above = float(np.finfo(float).max)
            if not self._holds(last, machines, above):
                return float("inf")
        below, halvings = 0.0, 0
        if self._holds(last, machines, below):
            return below
        while np.nextafter(above, 0) > below:
            halvings += 1
            next_lower = halvings % _HALVINGS == 0
            tried = float(np.nextafter(above, 0)) if next_lower else _middle(below, above)
            if self._holds(last, machines, tried):
                above = self._longest_within(last, tried)
            elif next_lower:
                return above
            else:
                below = tried
        return above

    def _longest_within(self, last: int, period_s: float) -> float:
        """The longest time that any stage of nodes 0..``last`` can take within a period."""
        replicas, longest_s = self._replicas(period_s), 0.0
        for count in (np.ones_like(replicas.low), replicas.low, replicas.high):
            times = self._times(np.maximum(count, 1))[:, : last + 1]
            longest_s = max(longest_s, times[times <= period_s].max(initial=0.0))
        return float(longest_s)

    def _holds(self, last: int, machines: int, period_s: float) -> bool:
        low, high = self._counts(period_s, last).of(last)
        return bool(((low <= machines) & (machines <= high)).any())

    def _last_stage(self, last: int, machines: int, period_s: float) -> tuple[int, int]:
        """The cut before it, or -1; and its replicas."""
        uncut = self._times(np.full((self._size, self._size), machines))[0, last]
        if uncut <= period_s:
            return -1, machines
        replicas, counts = self._replicas(period_s), self._counts(period_s, last)
        for cut in range(last):
            low, high = counts.of(cut)
            stage = (cut + 1, last)
            within = [(1, 1)] if replicas.one_suffices[stage] else []
            within.append((int(replicas.low[stage]), int(replicas.high[stage])))
            for first, most in within:
                fewest = np.maximum(first, machines - high)
                fits = fewest <= np.minimum(most, machines - low)
                if fits.any():
                    return cut, int(fewest[fits].min())
        raise AssertionError("the counts hold these machines")

    def _replicas(self, period_s: float) -> _Replicas:
        times, shortest = self._times, self._shortest
        least, most = np.minimum(2, shortest), np.full_like(shortest, self._machines)
        low = _first(lambda r: times(r) <= period_s, least, shortest)
        after = _first(lambda r: ~(times(r) <= period_s), shortest, most)
        high = np.where(times(after) <= period_s, after, after - 1)
        none = ~(times(shortest) <= period_s)
        one_suffices = times(np.ones_like(shortest)) <= period_s
        return _Replicas(one_suffices, np.where(none, 1, low), np.where(none, 0, high))

    def _counts(self, period_s: float, last: int) -> _Counts:
        replicas, limit = self._replicas(period_s), self._machines
        lasts, lows, highs = (np.zeros(0, dtype=np.int64) for _ in range(3))
        for end in range(last + 1):
            stage, whole = (lasts + 1, end), (np.zeros(1, dtype=np.int64), end)
            one_suffices = replicas.one_suffices[stage]
            low = np.concatenate(
                (lows + replicas.low[stage], lows[one_suffices] + 1, replicas.low[whole], [1])
            )
            high = np.concatenate(
                (highs + replicas.high[stage], highs[one_suffices] + 1, replicas.high[whole], [1])
            )
            kept = low <= np.minimum(high, limit)
            kept[: len(lows)] &= replicas.low[stage] <= replicas.high[stage]
            kept[-1] = replicas.one_suffices[0, end]
            low, high = _merged(low[kept], np.minimum(high[kept], limit))
            lasts = np.concatenate((lasts, np.full(len(low), end)))
            lows, highs = np.concatenate((lows, low)), np.concatenate((highs, high))
        return _Counts(lasts, lows, highs)


def _first(
    true: Callable[[Integers], NDArray[np.bool_]], low: Integers, high: Integers
) -> Integers:
    """For each entry the first number in low..high from which on ``true`` holds, else ``high``."""
    low, high = low.copy(), high.copy()
    while (low < high).any():
        middle = (low + high) // 2
        holds = true(middle)
        high = np.where(holds, middle, high)
        low = np.where(holds, low, np.minimum(middle + 1, high))
    return low


def _middle(low: float, high: float) -> float:
    """Half-way, by ratio where both are above 0; between them."""
    middle = float(np.sqrt(low) * np.sqrt(high)) if low > 0 else high / 2
    return middle if low < middle < high else float(np.nextafter(high, 0))


def _merged(low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """Intervals without overlaps, ascending."""
    if not len(low):
        return low, high
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    begins = np.concatenate(([True], low[1:] > reach[:-1] + 1))
    ends = np.concatenate((begins[1:], [True]))
    return low[begins], reach[ends]
