"""The rows and boxes of a timeline, the part of a run that it shows, and its file for Chrome.

::

    row 0 | F0 | F1 |         | B0 | B1 | U |      a box: one piece of work of a mini-batch or
    row 1      | F0 | B0 | F1 | B1 |               micro-batch; the gap between boxes is the
                                                   bubble

The part of a run that a timeline shows::

    flushes       | step | step |                                2 steps one after the other
    PipeDream     | F0 F1 F2 ... fill |  . . .  | F50 .. F56 |   start-up, and steady state

The planned and the measured part start with the same mini-batch and have as many mini-batches. They
are those with the median duration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.spans import Piece, chrome_trace
from ddlbench.planning.pipeline import PlannedSchedule

PASSES = ("forward", "recompute", "backward", "backward_input", "backward_weight")
"""Boxes with their number written into them."""
COMPUTING = frozenset((*PASSES, "loss"))
WAIT = "wait"
# Several of these may run at a time, while their device computes.
BESIDE = frozenset(("all_reduce_bucket", "message"))


class InvalidTimeline(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A folder or file that no timeline can be drawn from."""


@dataclass(frozen=True)
class Row:
    """One device.

    Args:
        place: as ``node 0 · device 1``.
        stages: that it holds, if the strategy has stages.
        replica: index of the copy of these stages; None for the only copy.
    """

    place: str
    stages: tuple[int, ...] = ()
    replica: int | None = None

    @property
    def label(self) -> str:
        parts = [self.place]
        if self.stages:
            noun = "stage" if len(self.stages) == 1 else "stages"
            parts.append(f"{noun} {', '.join(map(str, self.stages))}")
        if self.replica is not None:
            parts.append(f"replica {self.replica}")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class Box:
    """One piece of work.

    Args:
        row: index of its row.
        kind: "forward", "backward", "backward_input", "backward_weight", "recompute", "loss",
            "all_reduce", "all_reduce_bucket", "update", "wait", or another that a strategy records.
        stage: of the pipeline.
        mini_batch: its id.
        micro_batch: within the mini-batch and replica; None if the mini-batch is not split.
        start_s, end_s: in seconds; all boxes of a timeline have the same zero.
    """

    row: int
    kind: str
    stage: int
    mini_batch: int
    micro_batch: int | None
    start_s: float
    end_s: float

    @property
    def number(self) -> int:
        return self.mini_batch if self.micro_batch is None else self.micro_batch


def computing_share(boxes: Iterable[Box], rows: int, start_s: float, end_s: float) -> float:
    """Share of the time of ``rows`` devices, from ``start_s`` to ``end_s``, with computation."""
    whole = rows * (end_s - start_s)
    if whole <= 0:
        return 0.0
    inside = (
        min(box.end_s, end_s) - max(box.start_s, start_s) for box in boxes if box.kind in COMPUTING
    )
    return sum(seconds for seconds in inside if seconds > 0) / whole


def beside_lanes(boxes: Iterable[Box]) -> dict[Box, int]:
    """Assign boxes of kinds in :data:`BESIDE` to lanes below their rows, without overlaps.

    Each box takes the first lane that is free when it begins.
    """
    lanes: dict[Box, int] = {}
    free_from: dict[int, list[float]] = {}
    beside = (box for box in boxes if box.kind in BESIDE)
    for box in sorted(beside, key=lambda box: (box.start_s, box.end_s, box.number)):
        ends = free_from.setdefault(box.row, [])
        lane = next((n for n, end_s in enumerate(ends) if end_s <= box.start_s), len(ends))
        ends[lane : lane + 1] = [box.end_s]
        lanes[box] = lane
    return lanes


_ARGUMENTS = ("mini_batch", "micro_batch", "stage")


def trace_of_boxes(panels: Mapping[str, Sequence[Box]], rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON value of a trace file, with a process for each panel that has boxes."""
    shown = {process: panel for process, panel in enumerate(panels.items()) if panel[1]}
    return chrome_trace(
        [
            Piece(
                name=f"{box.kind} {box.number}",
                kind=box.kind,
                process=process,
                thread=box.row,
                start_s=box.start_s,
                end_s=box.end_s,
                arguments={name: getattr(box, name) for name in _ARGUMENTS},
            )
            for process, (_, boxes) in shown.items()
            for box in boxes
        ],
        {process: name for process, (name, _) in shown.items()},
        {(process, index): row.label for process in shown for index, row in enumerate(rows)},
    )


_STEPS = 2
_AFTER_FILLING = 4  # mini-batches of a start-up that enter once the pipeline is full


@dataclass(frozen=True)
class Part:
    """The boxes of the planned or the measured panel of a window.

    Args:
        boxes: all visible ones.
        start_s: the window's zero on the clock of the boxes.
        length_s: duration of the window's mini-batches in this panel.
        computing: share of the devices' time in ``length_s`` with computation.
    """

    boxes: tuple[Box, ...]
    start_s: float
    length_s: float
    computing: float


@dataclass(frozen=True)
class Window:
    """A part of a run.

    Args:
        title: "start-up", "steady state" or nothing.
        first, count: its mini-batches.
        steps: each mini-batch is a step of its own.
        planned, measured: its panels; None without boxes.
    """

    title: str
    first: int
    count: int
    steps: bool
    planned: Part | None
    measured: Part | None

    @property
    def length_s(self) -> float:
        """Length of the time axis: of the longer panel."""
        parts = (part for part in (self.planned, self.measured) if part is not None)
        return max((part.length_s for part in parts), default=0.0)


def windows_of(
    planned: Sequence[Box],
    measured: Sequence[Box],
    schedule: PlannedSchedule | None,
    rows: int,
    steps: int | None = None,
) -> tuple[Window, ...]:
    """The windows of one cell, of which planned or measured boxes may be empty.

    ``rows`` is the number of devices, ``steps`` that of mini-batches to show; None chooses.
    """
    boxes = measured or planned
    numbers = sorted({box.mini_batch for box in boxes})
    if not numbers:
        return ()
    cut = _Cut(planned, measured, rows)
    if schedule is None or schedule.flushes:
        count = min(steps or _STEPS, len(numbers))
        return (cut.whole_steps(cut.typical(numbers, count, of_steps=True), count),)
    entering = sorted(_entries(boxes))
    return _overlapping(cut, entering, schedule, steps) if entering else ()


def whole_run(planned: Sequence[Box], rows: int, flushes: bool) -> Window:
    """The window of a whole planned schedule, without a measured panel."""
    numbers = {box.mini_batch for box in planned}
    end_s = max((box.end_s for box in planned), default=0.0)
    part = Part(tuple(planned), 0.0, end_s, computing_share(planned, rows, 0.0, end_s))
    return Window("", min(numbers, default=0), len(numbers), flushes, part, None)


def _overlapping(
    cut: _Cut, numbers: Sequence[int], schedule: PlannedSchedule, steps: int | None
) -> tuple[Window, ...]:
    """Windows of a schedule without flushes: start-up (if the pipeline fills) and steady state."""
    filling, stages = schedule.filling, schedule.schedule.num_stages
    wanted = steps or (min(max(4, 2 * stages), 8) if filling else 3)
    stride = math.lcm(*(len(ranks) for ranks in schedule.schedule.stage_ranks))
    start_up = filling + _AFTER_FILLING if filling else 0
    # After the start-up and before the pipeline drains; another mini-batch must end the window.
    steady = [
        number
        for number in numbers
        if numbers[0] + start_up <= number <= numbers[-1] - filling - wanted
        and (number - numbers[0]) % stride == 0
    ]
    if not steady:
        return (cut.stretch("", numbers[0], len(numbers)),)
    window = cut.stretch("steady state", cut.typical(steady, wanted, of_steps=False), wanted)
    if not filling:
        return (window,)
    return cut.stretch("start-up", numbers[0], start_up), window


class _Cut:
    """Cuts windows out of the boxes of a run."""

    def __init__(self, planned: Sequence[Box], measured: Sequence[Box], rows: int) -> None:
        self._planned, self._measured, self._rows = planned, measured, rows

    def typical(self, starts: Sequence[int], count: int, of_steps: bool) -> int:
        """The start of the ``count`` mini-batches with the median duration."""
        boxes = self._measured or self._planned
        if of_steps:
            starts, last = starts[: len(starts) - count + 1], count - 1
            begins, ends = extents(boxes)
        else:
            last = count  # the window ends where the next mini-batch enters
            begins = ends = _entries(boxes)

        def length_s(start: int) -> float:
            return ends.get(start + last, math.inf) - begins.get(start, -math.inf)

        return sorted(starts, key=length_s)[(len(starts) - 1) // 2]

    def whole_steps(self, first: int, count: int) -> Window:
        """A window with the boxes of ``count`` steps only."""

        def part(boxes: Sequence[Box]) -> Part | None:
            kept = tuple(box for box in boxes if first <= box.mini_batch < first + count)
            if not kept:
                return None
            start_s = min(box.start_s for box in kept)
            return self._part(kept, kept, start_s, max(box.end_s for box in kept) - start_s)

        return Window("", first, count, True, part(self._planned), part(self._measured))

    def stretch(self, title: str, first: int, count: int) -> Window:
        """A window from the entry of mini-batch ``first`` to that of ``first + count``."""
        planned, measured = (
            _stretch(boxes, first, count) for boxes in (self._planned, self._measured)
        )
        longest_s = max(length_s for _, length_s in filter(None, (planned, measured)))

        def part(boxes: Sequence[Box], stretch: tuple[float, float] | None) -> Part | None:
            if stretch is None:
                return None
            start_s, length_s = stretch
            end_s = start_s + longest_s
            seen = tuple(box for box in boxes if box.end_s > start_s and box.start_s < end_s)
            return self._part(boxes, seen, start_s, length_s)

        parts = part(self._planned, planned), part(self._measured, measured)
        return Window(title, first, count, False, *parts)

    def _part(
        self, boxes: Iterable[Box], seen: tuple[Box, ...], start_s: float, length_s: float
    ) -> Part:
        share = computing_share(boxes, self._rows, start_s, start_s + length_s)
        return Part(seen, start_s, length_s, share)


def _stretch(boxes: Sequence[Box], first: int, count: int) -> tuple[float, float] | None:
    """Start and length; the window ends with the last box if no further mini-batch enters."""
    entries = _entries(boxes)
    if first not in entries:
        return None
    end_s = entries.get(first + count, max(box.end_s for box in boxes))
    return entries[first], end_s - entries[first]


def _entries(boxes: Iterable[Box]) -> dict[int, float]:
    """Start of the first forward pass of each mini-batch."""
    return extents(box for box in boxes if box.kind == "forward")[0]


def extents(boxes: Iterable[Box]) -> tuple[dict[int, float], dict[int, float]]:
    """Start of the first and end of the last box of each mini-batch."""
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for box in boxes:
        number = box.mini_batch
        begins[number] = min(box.start_s, begins.get(number, box.start_s))
        ends[number] = max(box.end_s, ends.get(number, box.end_s))
    return begins, ends
