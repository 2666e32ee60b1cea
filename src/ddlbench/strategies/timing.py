"""Clocks of a process: how long its steps take, and what it does within them.

:class:`StepClock` times steps without stopping the device at each. On CPU a mark is the host's
monotonic clock. On CUDA a mark is an event on every device of the process, and events are read once
at the end, when the devices have finished. A step is complete when the last device reaches its
mark; it lasts from one completion to the next::

    host    start . mark . mark . mark ......... finish (synchronise, read)
    cuda:0    |------|--------|--|
    cuda:1    |--------|-----|-----|             devices may be at different steps
    steps     |--------|------|----|             they add up to the total time

:class:`SpanRecorder` records the parts of a step for timelines::

    phases          | forward         | backward              | update |   between spans
    spans     |load|    |halo|   |halo|    |all_reduce|                    interrupt a phase
    beside                                   |-- bucket 0 --|              run at the same time

On CUDA its marks are events on the process's current stream; a wait is then a wait of the stream.
One anchor converts them to the host's clock: an event that is recorded while the device is idle, at
a known time of the host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

import torch

Span = tuple[str, int, float, float]
"""Kind, mini-batch id, start and end in seconds of this host's ``time.perf_counter``."""

Mark = float | torch.cuda.Event

# Kinds of spans in which a process waits for others.
_WAITS = frozenset(
    ("wait", "receive_wait", "send_wait", "all_reduce_wait", "all_reduce", "gather", "halo")
)


class StepClock:
    """Seconds between marks, which end steps on all of ``devices``."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cuda = sorted({d.index or 0 for d in devices if d.type == "cuda"})
        self._host: list[float] = []
        self._events: list[list[torch.cuda.Event]] = [[] for _ in self._cuda]

    def start(self) -> None:
        """Wait until the devices are idle and make the first mark."""
        for index in self._cuda:
            torch.cuda.synchronize(index)
        self.mark()

    def mark(self) -> None:
        """End a step with the work issued so far."""
        if not self._cuda:
            self._host.append(time.perf_counter())
            return
        for index, events in zip(self._cuda, self._events, strict=True):
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(index))
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
        # Intervals are added up because CUDA gives times as float32: an hour after the first event
        # they would be exact to a quarter of a millisecond only.
        done_s = [max(times) for times in zip(*map(accumulate, per_device), strict=True)]
        return [later - earlier for earlier, later in pairwise([0.0, *done_s])]


def _intervals_s(events: Sequence[torch.cuda.Event]) -> list[float]:
    """Seconds from each event of a device to the next."""
    return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(events)]


class SpanRecorder:
    """What one process did when.

    Args:
        device: whose work is timed.
        keep_first: only so many mini-batches at the beginning of a run are kept; None for all.
        keep_last: only so many at its end; None for all.
        enabled: else nothing is recorded, and calls cost next to nothing.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        keep_first: int | None = None,
        keep_last: int | None = None,
        enabled: bool = True,
    ) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._keep_first, self._keep_last = keep_first, keep_last
        self.enabled = enabled
        self.begin_run()

    def begin_run(self, first: int = 0) -> None:
        """Forget earlier runs; the next step trains mini-batch ``first``."""
        self._first, self._number = first, -1
        self._kept: dict[int, list[tuple[str, Mark, Mark]]] = {}
        self._phase = ""
        self._since: Mark | None = None
        self._wait_s = 0.0
        if self.enabled and self._cuda:
            torch.cuda.synchronize(self._device)
            self._anchor = self._event()
            self._anchor.synchronize()
            self._anchor_s = time.perf_counter()

    def begin_step(self, between: str = "") -> None:
        """Begin the next mini-batch's step; the time between its spans is of kind ``between``."""
        self._number += 1
        self._phase, self._since = between, None

    def phase(self, kind: str) -> None:
        """End the current phase and begin another; an empty kind ends the step."""
        if not self.enabled:
            return
        now = self.now()
        self._close(now)
        self._phase, self._since = kind, now

    @contextmanager
    def span(self, kind: str, number: int | None = None) -> Iterator[None]:
        """Time the body, which interrupts the current phase if it is of the current step.

        Args:
            kind: "forward", "receive_wait", ...
            number: of the mini-batch in this run; by default that of the current step.
        """
        if not self.enabled or (self._cuda and not self._is_kept(number)):
            yield
            return
        of_step = number is None or number == self._number
        begin = self.now()
        if of_step:
            self._close(begin)
        yield
        end = self.now()
        if of_step:
            self._since = end
        self._add(kind, number, begin, end)

    def beside(self, kind: str, begin: Mark, end: Mark) -> None:
        """Add work between two marks that ran while the process did something else."""
        self._add(kind, None, begin, end)

    def now(self) -> Mark:
        """A mark after the work issued so far."""
        return self._event() if self._cuda else time.perf_counter()

    def seconds(self, mark: Mark) -> float:
        """The mark's time by the host's ``time.perf_counter``; the device must be idle."""
        if isinstance(mark, float):
            return mark
        return self._anchor_s + self._anchor.elapsed_time(mark) / 1e3

    def spans(self) -> list[Span]:
        """Wait for the device; return the kept spans and phases in the order of their begin."""
        self.wait()
        kept = (
            (kind, self._first + number, self.seconds(begin), self.seconds(end))
            for number, spans in self._kept.items()
            for kind, begin, end in spans
        )
        return sorted(kept, key=lambda span: span[2])

    def wait(self) -> None:
        """Return once all marks have happened."""
        if self.enabled and self._cuda:
            torch.cuda.synchronize(self._device)

    @property
    def wait_s(self) -> float | None:
        """Seconds of all waits of the run, also of mini-batches whose spans are not kept.

        None without recording, and on CUDA, where the host does not see waits.
        """
        return None if self._cuda or not self.enabled else self._wait_s

    def _close(self, now: Mark) -> None:
        if self._phase and self._since is not None:
            self._add(self._phase, None, self._since, now)

    def _add(self, kind: str, number: int | None, begin: Mark, end: Mark) -> None:
        if kind in _WAITS and not self._cuda:
            self._wait_s += self.seconds(end) - self.seconds(begin)
        if not self._is_kept(number):
            return
        self._kept.setdefault(self._number if number is None else number, []).append(
            (kind, begin, end)
        )
        if self._keep_last is not None and len(self._kept) > self._keep_last:
            del self._kept[next(iter(self._kept))]

    def _is_kept(self, number: int | None) -> bool:
        number = self._number if number is None else number
        return self._keep_first is None or number < self._keep_first

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
