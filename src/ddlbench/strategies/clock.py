"""Step times without stopping the device at every step.

On CPU a mark is the host's monotonic clock. On CUDA a mark is an event on every device that the
process drives; events are read once at the end, after the devices have finished. A step is complete
when the last device has come to its mark, and lasts from one completion to the next::

    host    start . mark . mark . mark ......... finish (synchronise, read)
    cuda:0    |------|--------|--|
    cuda:1    |--------|-----|-----|             devices may be at different steps
    steps     |--------|------|----|             they add up to the time of the whole
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

__all__ = ["StepClock"]


class StepClock:
    """Seconds between marks.

    Args:
        devices: the devices whose work a step is.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cuda = sorted({d.index or 0 for d in devices if d.type == "cuda"})
        self._host: list[float] = []
        self._events: list[list[torch.cuda.Event]] = [[] for _ in self._cuda]

    def start(self) -> None:
        """Wait until the devices are idle, then make the first mark."""
        for index in self._cuda:
            torch.cuda.synchronize(index)
        self.mark()

    def mark(self) -> None:
        """The work issued so far ends a step."""
        if not self._cuda:
            self._host.append(time.perf_counter())
            return
        for index, events in zip(self._cuda, self._events, strict=True):
            with torch.cuda.device(index):
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                events.append(event)

    def finish(self) -> list[float]:
        """Seconds of each step; waits for the devices."""
        if not self._cuda:
            return [later - earlier for earlier, later in pairwise(self._host)]
        for index in self._cuda:
            torch.cuda.synchronize(index)
        per_device = [_intervals_s(events) for events in self._events]
        if len(per_device) == 1:
            return per_device[0]
        # Intervals are added up here, as CUDA gives the time from the first event as a float32,
        # which after an hour is known to a quarter of a millisecond only.
        done_s = [max(times) for times in zip(*map(accumulate, per_device), strict=True)]
        return [later - earlier for earlier, later in pairwise([0.0, *done_s])]


def _intervals_s(events: Sequence[torch.cuda.Event]) -> list[float]:
    """Seconds from each event of a device to the next."""
    return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(events)]
