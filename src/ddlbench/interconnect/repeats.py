"""How often each message of a sweep is sent: as often as the budget allows, in passes.

::

    probe     1K 2K 4K ... 64M     warm-up, dropped; tells how many repeats each size can have,
                                   and where messages get too long for the sweep
    pass 1    1K 2K 4K ... 64M     a quarter of the repeats of each size
    pass 2    1K 2K 4K ... 64M     ... between the passes of other sweeps, so that a disturbance of
                                   a second hits neither a size nor an operation alone

Every rank decides alike, as all see the same times (those of the slowest rank).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["PASSES", "Sweep"]

PASSES = 4
_PROBES = 3
_LEAST, _MOST = 4, 40
# A sweep may take so many times its budget, in favour of long messages.
_LIMIT = 3.0


class Sweep:
    """Messages of every size, once probed, then in passes.

    Args:
        sizes: in bytes, rising.
        run: (size, count) -> seconds of each of ``count`` repeats on the slowest rank.

    Attributes:
        times_s: by message size in bytes.
        ended: why sizes are missing; empty when none is.
    """

    def __init__(self, sizes: Sequence[int], run: Callable[[int, int], list[float]]) -> None:
        self.times_s: dict[int, list[float]] = {}
        self.ended = ""
        self._sizes, self._run = sizes, run
        self._counts: dict[int, int] = {}

    def probe(self, budget_s: float) -> None:
        """Plan the repeats; ``budget_s`` is what the whole sweep should take."""
        planned_s, last_size, last_s = 0.0, 0, 0.0
        for index, size in enumerate(self._sizes):
            if last_size:
                expected_s = last_s * size / last_size
                if planned_s + (_LEAST + _PROBES) * expected_s > _LIMIT * budget_s:
                    self.ended = f"no message above {last_size} bytes, to keep within the budget"
                    break
            times = self._run(size, _PROBES)
            last_size, last_s = size, min(times)
            share_s = (budget_s - planned_s) / (len(self._sizes) - index)
            self._counts[size] = min(max(int(share_s / last_s), _LEAST), _MOST)
            planned_s += sum(times) + self._counts[size] * last_s

    def take(self, turn: int) -> None:
        """One of ``PASSES`` passes."""
        for size, count in self._counts.items():
            share = count // PASSES + (turn < count % PASSES)
            self.times_s.setdefault(size, []).extend(self._run(size, share))
