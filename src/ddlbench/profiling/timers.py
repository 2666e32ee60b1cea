"""Clocks of one device, samples of passes, and how many passes fit into the time budget.

On CUDA a mark is an event, so timing never stops the device. On a CPU device of one thread a mark
holds the processor time of the process beside the wall clock. A control group or a neighbour may
take the core away for milliseconds at a time. The wall clock of a short layer either has such a gap
or not, and no affordable number of passes averages it away::

    wall      F1 F2 |---- away ----| F3 F4 F5 |---- away ----| F6
    processor F1 F2 F3 F4 F5 F6                    x stretch = wall / processor of all passes

So layers are timed by processor time, and stretched by what all passes together lost. A module that
waits (sleeps, reads a file) uses no processor time: only whole steps show its wait. An emulated
accelerator waits always, so it is timed by the wall clock.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ddlbench.common.statistics import is_known, median_interval
from ddlbench.experiment.site import Accelerator


class CpuMarks:
    """Points in the work of the host; with ``processor``, busy seconds are processor time.

    Marks can be read once they are finished.
    """

    def __init__(self, processor: bool) -> None:
        self._processor = processor
        self._wall: list[float] = []
        self._busy: list[float] = []

    def mark(self) -> int:
        """End the work issued so far; returns the mark's number."""
        self._busy.append(time.process_time() if self._processor else time.perf_counter())
        self._wall.append(time.perf_counter())
        return len(self._wall) - 1

    def finish(self) -> None:
        """The host has nothing to wait for."""

    def busy_s(self, first: int, last: int) -> float:
        """Seconds for which the work between two marks kept the device busy."""
        return self._busy[last] - self._busy[first]

    def wall_s(self, first: int, last: int) -> float:
        return self._wall[last] - self._wall[first]


class CudaMarks:
    """Points in the work of a GPU: events on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> int:
        """Also runs in autograd's threads, whose stream is that of the forward pass."""
        with torch.cuda.device(self._device):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._events.append(event)
        return len(self._events) - 1

    def finish(self) -> None:
        torch.cuda.synchronize(self._device)

    def busy_s(self, first: int, last: int) -> float:
        return float(self._events[first].elapsed_time(self._events[last])) / 1e3

    def wall_s(self, first: int, last: int) -> float:
        return self.busy_s(first, last)


Marks = CpuMarks | CudaMarks


def marks_on(device: torch.device, threads: int) -> Marks:
    """Marks for a device; processor time is used with one thread of a real CPU only."""
    if device.type == "cuda":
        return CudaMarks(device)
    return CpuMarks(processor=threads == 1 and Accelerator.of_this_process() is None)


Phase = Literal["forward", "backward"]
_PHASES: tuple[Phase, Phase] = ("forward", "backward")
Span = tuple[int, int]


class Part(NamedTuple):
    """Marks around one forward and backward pass; None where no gradient passes."""

    forward: Span
    backward: Span | None


class Samples:
    """Busy seconds of pieces by phase and batch size, and the stretch of all of them together."""

    def __init__(self) -> None:
        self._values: dict[tuple[Hashable, Phase], dict[int, list[float]]] = defaultdict(dict)
        self._busy_s = 0.0
        self._wall_s = 0.0

    def add(self, piece: Hashable, batch_size: int, marks: Marks, part: Part) -> None:
        """Enter one forward and backward pass of a piece; an absent span takes 0 seconds."""
        for phase, span in zip(_PHASES, part, strict=True):
            busy_s = 0.0
            if span is not None:
                busy_s = max(marks.busy_s(*span), 0.0)
                self._busy_s += busy_s
                self._wall_s += marks.wall_s(*span)
            self._values[piece, phase].setdefault(batch_size, []).append(busy_s)

    @property
    def stretch(self) -> float:
        """Wall seconds over busy seconds of all passes."""
        return self._wall_s / self._busy_s if self._busy_s > 0 else 1.0

    def timings(self, piece: Hashable, phase: Phase) -> list[dict[str, Any]]:
        """Entries of profile.json, one for each batch size, ascending."""
        entries = []
        for batch_size, values in sorted(self._values.get((piece, phase), {}).items()):
            time_s, interval_s = median_with_interval(values)
            entries.append(
                {
                    "batch_size": batch_size,
                    "time_s": time_s * self.stretch,
                    "interval_s": interval_s and [end * self.stretch for end in interval_s],
                }
            )
        return entries

    def total_s(self, batch_size: int) -> float:
        """Sum of the medians of all pieces and phases at one batch size."""
        return self.stretch * sum(
            median_with_interval(values[batch_size])[0]
            for values in self._values.values()
            if batch_size in values
        )


@dataclass(frozen=True)
class PassTimer:
    """Times a pass over some pieces several times, after one that warms up.

    Args:
        new_marks: makes the clock of a series of passes.
        count: the number of passes, from the seconds of one.
        samples: gets the seconds of each piece.
    """

    new_marks: Callable[[], Marks]
    count: Callable[[float], int]
    samples: Samples

    def time(self, run: Callable[[Marks], Mapping[Hashable, Part]], batch_size: int) -> None:
        """Enter the passes of ``run``, which makes one and gives the parts of its pieces."""
        marks = self.new_marks()
        begin = marks.mark()
        run(marks)
        end = marks.mark()
        marks.finish()
        number = self.count(marks.wall_s(begin, end))
        marks = self.new_marks()
        passes = [run(marks) for _ in range(number)]
        marks.finish()
        for parts in passes:
            for piece, part in parts.items():
                self.samples.add(piece, batch_size, marks, part)


def median_with_interval(values: Sequence[float] | np.ndarray) -> tuple[float, list[float] | None]:
    """Median and its 95 % rank-based interval; None for a single value."""
    interval = median_interval(values)
    return interval.median, [interval.low, interval.high] if is_known(interval) else None


# Parts of the budget. Whole steps get most: the sequential predictor rests on them alone. Devices
# that run alone, which few experiments need, take theirs in addition.
SHARES = {"steps": 0.5, "replicas": 0.2, "blocks": 0.14, "halves": 0.06, "leaves": 0.1}
SHARES_ON_TOP = {"alone": 0.3}

# A median of windows this long is no median of lucky moments: control groups that give a process
# part of a core stop it every 20 to 100 ms.
WINDOW_S = 0.2
_WINDOWS = 6  # the fewest that have a 95 % interval


def passes(share_s: float, pass_s: float, fewest: int, most: int) -> int:
    """Number of passes of ``pass_s`` seconds that fit into a share of the budget, within limits."""
    return max(fewest, min(most, int(share_s / max(pass_s, 1e-9))))


def steps_per_window(step_s: float, count: int) -> int:
    """Length of a window of consecutive steps, for ``count`` steps of about ``step_s`` seconds."""
    long_enough = int(-(-WINDOW_S // max(step_s, 1e-9)))
    return max(1, min(long_enough, count // _WINDOWS))
