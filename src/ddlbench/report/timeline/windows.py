"""Which part of a run a picture shows: whole steps, or where a pipeline fills and where it is full.

::

    flushes       | step | step |                                2 steps one after the other
    PipeDream     | F0 F1 F2 ... fill |  . . .  | F50 .. F56 |   start-up, and steady state

The planned and the measured part start with the same mini-batch and are equally long. Among all
parts that would do, the one is taken that took the median time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddlbench.planning.pipeline import PlannedSchedule
from ddlbench.report.timeline.box import Box, computing_share

_STEPS = 2
_AFTER_FILLING = 4  # mini-batches of a start-up that enter once the pipeline is full


@dataclass(frozen=True)
class Part:
    """What the planned or the measured panel of a window shows.

    Args:
        boxes: all that can be seen.
        start_s: the window's zero on the clock of the boxes.
        length_s: how long the window's mini-batches take here.
        computing: share of the devices' time, of ``length_s``, that passes take.
    """

    boxes: tuple[Box, ...]
    start_s: float
    length_s: float
    computing: float


@dataclass(frozen=True)
class Window:
    """One picture.

    Args:
        title: "start-up", "steady state" or nothing.
        first, count: mini-batches that it shows.
        steps: each mini-batch is a step of its own.
        planned, measured: the two panels, where there are such.
    """

    title: str
    first: int
    count: int
    steps: bool
    planned: Part | None
    measured: Part | None

    @property
    def length_s(self) -> float:
        """Of the time axis: of the panel that takes longer."""
        parts = (part for part in (self.planned, self.measured) if part is not None)
        return max((part.length_s for part in parts), default=0.0)


def windows_of(
    planned: Sequence[Box],
    measured: Sequence[Box],
    schedule: PlannedSchedule | None,
    rows: int,
    steps: int | None = None,
) -> tuple[Window, ...]:
    """The windows of one cell.

    Args:
        planned: all boxes; may be empty.
        measured: all boxes; may be empty.
        schedule: whose boxes the planned ones are; None where none is known.
        rows: number of devices.
        steps: mini-batches to show; chosen where left out.
    """
    found = measured or planned
    numbers = sorted({box.mini_batch for box in found})
    if not numbers:
        return ()
    cut = _Cut(planned, measured, rows)
    if schedule is None or schedule.flushes:
        count = min(steps or _STEPS, len(numbers))
        return (cut.whole_steps(cut.typical(numbers, count, of_steps=True), count),)
    entering = sorted(_entries(found))
    return _overlapping(cut, entering, schedule, steps) if entering else ()


def whole_run(planned: Sequence[Box], rows: int, flushes: bool) -> Window:
    """All of a planned schedule, and nothing beside it."""
    numbers = {box.mini_batch for box in planned}
    end_s = max((box.end_s for box in planned), default=0.0)
    part = Part(tuple(planned), 0.0, end_s, computing_share(planned, rows, 0.0, end_s))
    return Window("", min(numbers, default=0), len(numbers), flushes, part, None)


def _overlapping(
    cut: _Cut, numbers: Sequence[int], schedule: PlannedSchedule, steps: int | None
) -> tuple[Window, ...]:
    """Of mini-batches that overlap, as PipeDream's, or follow each other without a flush."""
    filling, stages = schedule.filling, schedule.schedule.num_stages
    wanted = steps or (min(max(4, 2 * stages), 8) if filling else 3)
    stride = math.lcm(*(len(ranks) for ranks in schedule.schedule.stage_ranks))
    start_up = filling + _AFTER_FILLING if filling else 0
    # Behind the start-up, before the pipeline drains, and with a mini-batch to end at.
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
    """Takes windows out of the boxes of a run."""

    def __init__(self, planned: Sequence[Box], measured: Sequence[Box], rows: int) -> None:
        self._planned, self._measured, self._rows = planned, measured, rows

    def typical(self, starts: Sequence[int], count: int, of_steps: bool) -> int:
        """The start among ``starts`` whose ``count`` mini-batches take the median time."""
        boxes = self._measured or self._planned
        fitting = starts[: len(starts) - count + 1] if of_steps else starts
        begins, ends = _extents(boxes) if of_steps else (_entries(boxes), _entries(boxes))
        shift = count - 1 if of_steps else count

        def length_s(start: int) -> float:
            return ends.get(start + shift, math.inf) - begins.get(start, -math.inf)

        return sorted(fitting, key=length_s)[(len(fitting) - 1) // 2]

    def whole_steps(self, first: int, count: int) -> Window:
        """The boxes of so many steps, and no others."""

        def part(boxes: Sequence[Box]) -> Part | None:
            own = tuple(box for box in boxes if first <= box.mini_batch < first + count)
            if not own:
                return None
            start_s = min(box.start_s for box in own)
            return self._part(own, own, start_s, max(box.end_s for box in own) - start_s)

        return Window("", first, count, True, part(self._planned), part(self._measured))

    def stretch(self, title: str, first: int, count: int) -> Window:
        """From where one mini-batch enters to where another one does, and all that is in it."""
        extents = [_stretch(boxes, first, count) for boxes in (self._planned, self._measured)]
        longest = max(length for _, length in filter(None, extents))

        def part(boxes: Sequence[Box], extent: tuple[float, float] | None) -> Part | None:
            if extent is None:
                return None
            start_s, length_s = extent
            end_s = start_s + longest
            seen = tuple(box for box in boxes if box.end_s > start_s and box.start_s < end_s)
            return self._part(boxes, seen, start_s, length_s)

        planned, measured = map(part, (self._planned, self._measured), extents)
        return Window(title, first, count, False, planned, measured)

    def _part(
        self, boxes: Iterable[Box], seen: tuple[Box, ...], start_s: float, length_s: float
    ) -> Part:
        share = computing_share(boxes, self._rows, start_s, start_s + length_s)
        return Part(seen, start_s, length_s, share)


def _stretch(boxes: Sequence[Box], first: int, count: int) -> tuple[float, float] | None:
    """Start and length; up to the end of all where no mini-batch enters any more."""
    entries = _entries(boxes)
    if first not in entries:
        return None
    end_s = entries.get(first + count, max(box.end_s for box in boxes))
    return entries[first], end_s - entries[first]


def _entries(boxes: Iterable[Box]) -> dict[int, float]:
    """When each mini-batch begins its first forward pass."""
    found: dict[int, float] = {}
    for box in boxes:
        if box.kind == "forward":
            found[box.mini_batch] = min(box.start_s, found.get(box.mini_batch, box.start_s))
    return found


def _extents(boxes: Iterable[Box]) -> tuple[dict[int, float], dict[int, float]]:
    """When the first piece of each mini-batch begins and the last one ends."""
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for box in boxes:
        number = box.mini_batch
        begins[number] = min(box.start_s, begins.get(number, box.start_s))
        ends[number] = max(box.end_s, ends.get(number, box.end_s))
    return begins, ends
