"""What a process did when: passes, waits, updates, each with its mini-batch.

On CPU a mark is the host's monotonic clock. On CUDA it is an event on the process's stream, brought
to that clock by one event whose time on the host is known; a wait is then what the stream waited.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["KEPT_MINI_BATCHES", "SpanRecorder"]

# The first ones of a run: how the pipeline fills, and many rounds of its steady state.
KEPT_MINI_BATCHES = 200
_WAITS = ("receive_wait", "send_wait", "all_reduce_wait")

Span = tuple[str, int, float, float]


class SpanRecorder:
    """Records one run of one process.

    Args:
        device: whose work is timed.
        first: id of the run's first mini-batch.
    """

    def __init__(self, device: torch.device, first: int) -> None:
        self._device = device
        self._first = first
        self._spans: list[tuple[str, int, float, float]] = []
        self._events: list[tuple[str, int, torch.cuda.Event, torch.cuda.Event]] = []
        self._wait_s = 0.0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._zero = self._event()
            self._zero.synchronize()
            self._zero_s = time.perf_counter()

    @contextmanager
    def span(self, kind: str, number: int) -> Iterator[None]:
        """Time what is done inside.

        Args:
            kind: "forward", "receive_wait", ...
            number: of the mini-batch in this run.
        """
        if self._device.type == "cuda":
            begin = self._event()
            yield
            if number < KEPT_MINI_BATCHES:
                self._events.append((kind, self._first + number, begin, self._event()))
            return
        begin_s = time.perf_counter()
        yield
        end_s = time.perf_counter()
        if kind in _WAITS:
            self._wait_s += end_s - begin_s
        if number < KEPT_MINI_BATCHES:
            self._spans.append((kind, self._first + number, begin_s, end_s))

    def spans(self) -> list[Span]:
        """(kind, global mini-batch id, start, end) in seconds; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return [(kind, n, self._at(a), self._at(b)) for kind, n, a, b in self._events]
        return self._spans

    @property
    def wait_s(self) -> float | None:
        """All waits of the run; None on CUDA, where only the first mini-batches are seen."""
        return None if self._device.type == "cuda" else self._wait_s

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _at(self, event: torch.cuda.Event) -> float:
        return self._zero_s + self._zero.elapsed_time(event) / 1e3
