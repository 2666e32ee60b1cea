"""What the relay costs, and whether it keeps up: measured in the relay itself.

::

    samples      .   .   .   .   .            .   .   .      a tenth of a second apart or more
    busiest          |<-- a second -->|                      of all such spans, the fullest
    short run    |<-- all of it -->|                         where it is shorter than a second
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

__all__ = ["SATURATED_SHARE", "Load"]

# A relay that computes for so much of a second is behind for parts of it.
SATURATED_SHARE = 0.9
_WINDOW_S, _APART_S = 1.0, 0.1
# Of less nothing is said: a few packets that come at once fill it.
_SHORTEST_S = 0.02

Sample = tuple[float, float]  # wall clock and CPU time of this process, in seconds


class Load:
    """CPU time of this process since the last reset, as a whole and in its busiest second.

    Args:
        late_after_s: a frame that is delivered so long after its time is counted as late.
    """

    def __init__(self, late_after_s: float) -> None:
        self._late_after_s = late_after_s
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._start: Sample = (time.monotonic(), time.process_time())
        self._samples = deque([self._start])
        self._peak = 0.0
        self._frames = self._late = 0
        self._latest_s = 0.0

    def see(self, now_s: float) -> None:
        """Take a sample if it is time; to be called before and after each time of waiting."""
        if now_s - self._samples[-1][0] >= _APART_S:
            self._take((now_s, time.process_time()))

    def delivered(self, behind_s: float) -> None:
        """A frame left so long after its time."""
        self._frames += 1
        if behind_s > self._late_after_s:
            self._late += 1
            self._latest_s = max(self._latest_s, behind_s)

    def to_dict(self) -> dict[str, Any]:
        """CPU and wall time, shares of one core, frames and how many of them were late."""
        here = (time.monotonic(), time.process_time())
        self._take(here)
        wall_s, share = here[0] - self._start[0], _share(self._start, here)
        peak = self._peak
        if _SHORTEST_S <= wall_s < _WINDOW_S:
            peak = share
        return {
            "cpu_s": here[1] - self._start[1],
            "wall_s": wall_s,
            "share_of_core": share,
            "busiest_second_share": max(peak, share),
            "saturated": peak >= SATURATED_SHARE,
            "frames": self._frames,
            "late_frames": self._late,
            "late_after_s": self._late_after_s,
            "latest_s": self._latest_s,
        }

    def _take(self, sample: Sample) -> None:
        """Judge the second that ends with it: from the latest sample that is a second old."""
        self._samples.append(sample)
        while len(self._samples) > 1 and sample[0] - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()
        if sample[0] - self._samples[0][0] >= _WINDOW_S:
            self._peak = max(self._peak, _share(self._samples[0], sample))


def _share(begin: Sample, end: Sample) -> float:
    wall_s = end[0] - begin[0]
    return (end[1] - begin[1]) / wall_s if wall_s > 0 else 0.0
