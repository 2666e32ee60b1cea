"""Step times without stopping the device at every step.

On CPU a mark is the host's monotonic clock. On CUDA a mark is an event on every device that the
process drives; the intervals between events are read once at the end, after the devices have
finished, and the slowest device makes the step::

    host    start . mark . mark . mark ......... finish (synchronise, read)
    cuda:0    |------|------|------|
    cuda:1    |--------|-----|-----|             step = longest interval
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

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
        """Seconds of each step, slowest device; waits for the devices."""
        if not self._cuda:
            return [later - earlier for earlier, later in pairwise(self._host)]
        for index in self._cuda:
            torch.cuda.synchronize(index)
        per_device = [
            [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)] for events in self._events
        ]
        return [max(step) for step in zip(*per_device, strict=True)]
