"""Boxes of a planned schedule: what each device does when."""

from __future__ import annotations

from ddlbench.planning.plan import Plan
from ddlbench.planning.planned_schedule import PlannedSchedule
from ddlbench.planning.schedules import Durations, Links, no_links, replay
from ddlbench.planning.strategy import known_strategy
from ddlbench.report.timeline.box import Box

__all__ = ["boxes_of", "schedule_of"]


def schedule_of(plan: Plan, mini_batches: int) -> PlannedSchedule | None:
    """What the plan's devices do for so many mini-batches; None where no schedule is known."""
    strategy = known_strategy(plan.cell.strategy)
    return None if strategy is None else strategy.schedule_of(plan, mini_batches)


def boxes_of(
    planned: PlannedSchedule, durations: Durations, first: int = 0, links: Links = no_links
) -> tuple[Box, ...]:
    """Replay a schedule and keep what takes time on its devices.

    Args:
        planned: the schedule.
        durations: seconds of passes, all-reduces and updates.
        first: id of the first mini-batch.
        links: seconds of messages; a device that waits for one has no box.

    Raises:
        InvalidSchedule: it deadlocks.
    """
    boxes = []
    for row, done in enumerate(replay(planned.schedule, durations, links).ranks):
        for timed in done:
            action = timed.action
            if action.communicates or timed.end_s <= timed.start_s:
                continue
            mini_batch, micro_batch = planned.numbers_of(action)
            boxes.append(
                Box(
                    row=row,
                    kind=planned.kind_of(action),
                    stage=action.stage,
                    mini_batch=first + mini_batch,
                    micro_batch=micro_batch,
                    start_s=timed.start_s,
                    end_s=timed.end_s,
                )
            )
    return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))
