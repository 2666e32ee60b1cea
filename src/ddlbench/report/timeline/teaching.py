"""The picture of a schedule alone, and what stands under it; a forward pass takes 1."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ddlbench.planning.schedules import Schedule
from ddlbench.report.timeline.box import Row
from ddlbench.report.timeline.durations import unit_durations
from ddlbench.report.timeline.pages import Shown, draw_page
from ddlbench.report.timeline.planned import boxes_of
from ddlbench.report.timeline.schedule_diagrams import WHOLE, Lesson, planned_lesson
from ddlbench.report.timeline.windows import whole_run

__all__ = ["caption", "draw", "show"]


def draw(lesson: Lesson) -> tuple[Figure, pd.DataFrame]:
    """The picture of a schedule, and a table of its boxes."""
    return draw_page("Which device computes what when", [show(lesson)], caption(lesson))


def show(lesson: Lesson) -> Shown:
    """All boxes of a schedule.

    Raises:
        ConfigError: the lesson's numbers do not go together.
    """
    planned = planned_lesson(lesson)
    durations = unit_durations(
        planned.schedule.num_stages,
        backward=lesson.backward,
        update=lesson.update,
        all_reduce=lesson.all_reduce,
    )
    boxes = boxes_of(planned, durations, links=lambda source, target, send: lesson.message)
    rows = _rows(planned.schedule, staged=lesson.schedule != "data-parallel")
    heading = f"{lesson.schedule}, {len(rows)} device{'' if len(rows) == 1 else 's'}"
    return Shown(heading, whole_run(boxes, len(rows), planned.flushes), rows, in_seconds=False)


def caption(lesson: Lesson) -> list[str]:
    """The sentences under the picture."""
    backward = f"a backward pass {lesson.backward:g}"
    if lesson.schedule.startswith("zero-bubble"):
        backward += " (half for inputs, half for weights)"
    numbers = "mini-batches" if lesson.schedule in WHOLE else "micro-batches"
    sentences = [
        f"A forward pass takes 1, {backward}, a message {lesson.message:g}, an all-reduce "
        f"{lesson.all_reduce:g}, an update {lesson.update:g}. Numbers are {numbers}; white is the "
        "bubble.",
        "Drawn from the schedule alone: nothing is measured.",
    ]
    if lesson.schedule in ("interleaved", "zero-bubble", "zero-bubble-v"):
        sentences.insert(1, "Passes of a device's later stages are paler.")
    return sentences


def _rows(schedule: Schedule, staged: bool) -> tuple[Row, ...]:
    rows = []
    for rank in range(schedule.world_size):
        own = tuple(s for s, ranks in enumerate(schedule.stage_ranks) if rank in ranks)
        ranks = schedule.stage_ranks[own[0]]
        replica = ranks.index(rank) if len(ranks) > 1 else None
        rows.append(Row(f"device {rank}", own, replica) if staged else Row(f"device {rank}"))
    return tuple(rows)
