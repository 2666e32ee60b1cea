"""What the relay costs, and whether it keeps up: measured in the relay itself."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["SATURATED_SHARE", "Load"]

# A relay that computes for so much of a second is behind for parts of it.
SATURATED_SHARE = 0.9
_WINDOW_S = 1.0


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
        self._start = self._window = (time.monotonic(), time.process_time())
        self._peak = 0.0
        self._frames = self._late = 0
        self._latest_s = 0.0

    def see(self, now_s: float) -> None:
        """Close the window if it is over; to be called in every turn of the loop."""
        if now_s - self._window[0] >= _WINDOW_S:
            here = (now_s, time.process_time())
            self._peak = max(self._peak, _share(self._window, here))
            self._window = here

    def delivered(self, behind_s: float) -> None:
        """A frame left so long after its time."""
        self._frames += 1
        if behind_s > self._late_after_s:
            self._late += 1
            self._latest_s = max(self._latest_s, behind_s)

    def to_dict(self) -> dict[str, Any]:
        """CPU and wall time, shares of one core, frames and how many of them were late."""
        here = (time.monotonic(), time.process_time())
        share, peak = _share(self._start, here), self._peak
        # A window that has hardly begun says nothing of a second.
        if here[0] - self._window[0] >= _WINDOW_S / 2:
            peak = max(peak, _share(self._window, here))
        return {
            "cpu_s": here[1] - self._start[1],
            "wall_s": here[0] - self._start[0],
            "share_of_core": share,
            "busiest_second_share": max(peak, share),
            "saturated": peak >= SATURATED_SHARE,
            "frames": self._frames,
            "late_frames": self._late,
            "late_after_s": self._late_after_s,
            "latest_s": self._latest_s,
        }


def _share(begin: tuple[float, float], end: tuple[float, float]) -> float:
    wall_s = end[0] - begin[0]
    return (end[1] - begin[1]) / wall_s if wall_s > 0 else 0.0
