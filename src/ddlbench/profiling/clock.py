"""Marks of time on one device, read when all work is done.

On CUDA a mark is an event, so timing never stops the device. On a CPU device of one thread it is
the processor time of the process beside the wall clock. Where a control group or a neighbour takes
the core away for milliseconds at a time, the wall clock of a short layer either has such a gap or
not, and no number of passes that one can wait for averages it away::

    wall      F1 F2 |---- away ----| F3 F4 F5 |---- away ----| F6
    processor F1 F2 F3 F4 F5 F6                    x stretch = wall / processor of all passes

Layers are timed by the processor and stretched by what all passes together lost. A module that
waits (sleeps, reads a file) uses no processor time: only whole steps show its wait.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch

__all__ = ["CpuMarks", "CudaMarks", "Marks", "marks_on"]


class Marks(Protocol):
    """Points in the work of one device."""

    def mark(self) -> int:
        """The work issued so far ends here; returns the mark's number."""
        ...

    def finish(self) -> None:
        """Wait for the device; marks can be read now."""
        ...

    def busy_s(self, first: int, last: int) -> float:
        """Seconds that the work between two marks kept the device busy."""
        ...

    def wall_s(self, first: int, last: int) -> float:
        """Seconds between two marks."""
        ...


class CpuMarks:
    """Marks of the host.

    Args:
        processor: busy seconds are processor time; else they are wall time.
    """

    def __init__(self, processor: bool) -> None:
        self._processor = processor
        self._wall: list[float] = []
        self._busy: list[float] = []

    def mark(self) -> int:
        """Read both clocks."""
        self._busy.append(time.process_time() if self._processor else time.perf_counter())
        self._wall.append(time.perf_counter())
        return len(self._wall) - 1

    def finish(self) -> None:
        """Nothing runs apart from the host."""

    def busy_s(self, first: int, last: int) -> float:
        """Seconds of the clock that was chosen."""
        return self._busy[last] - self._busy[first]

    def wall_s(self, first: int, last: int) -> float:
        """Wall seconds."""
        return self._wall[last] - self._wall[first]


class CudaMarks:
    """Marks of a GPU: events on the current stream.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> int:
        """Record an event; also in autograd's own threads, whose stream is that of the forward."""
        with torch.cuda.device(self._device):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._events.append(event)
        return len(self._events) - 1

    def finish(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self._device)

    def busy_s(self, first: int, last: int) -> float:
        """Seconds between two events."""
        return float(self._events[first].elapsed_time(self._events[last])) / 1e3

    def wall_s(self, first: int, last: int) -> float:
        """The same: a GPU is not shared."""
        return self.busy_s(first, last)


def marks_on(device: torch.device, threads: int) -> Marks:
    """Marks for a device; several CPU threads have no processor time that one could compare."""
    return CudaMarks(device) if device.type == "cuda" else CpuMarks(processor=threads == 1)
