"""Boxes of a planned schedule, replayed with the measured durations of the same cell.

Each pass takes the cell's own median. So the planned and the measured timeline differ only by
messages, waiting, data loading and passes of unusual length, not by the work itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from ddlbench.planning.pipeline import PlannedSchedule
from ddlbench.planning.schedules import (
    EAGER,
    Action,
    Durations,
    Links,
    Messaging,
    StageDurations,
    no_links,
    replay,
)
from ddlbench.report.timeline.box import PASSES, Box, Row


def boxes_of(
    planned: PlannedSchedule,
    durations: Durations,
    first: int = 0,
    links: Links = no_links,
    messaging: Messaging = EAGER,
) -> tuple[Box, ...]:
    """Replay a schedule; waiting for a message makes no box.

    Args:
        planned: the schedule.
        durations: seconds of passes, all-reduces and updates.
        first: id of the first mini-batch.
        links: seconds of messages.
        messaging: what ranks wait for.

    Raises:
        InvalidSchedule: it deadlocks.
    """
    boxes = []
    for row, done in enumerate(replay(planned.schedule, durations, links, messaging).ranks):
        for timed in done:
            action, start_s = timed.action, timed.start_s
            if action.kind == "update":  # it may have waited for a sum, and waiting makes no box
                start_s = max(start_s, timed.end_s - durations(action))
            if action.communicates or timed.end_s <= start_s:
                continue
            mini_batch, micro_batch = planned.numbers_of(action)
            boxes.append(
                Box(
                    row=row,
                    kind=planned.kind_of(action),
                    stage=action.stage,
                    mini_batch=first + mini_batch,
                    micro_batch=micro_batch,
                    start_s=start_s,
                    end_s=timed.end_s,
                )
            )
    return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))


Seconds = dict[tuple[str, int], float]  # by kind and stage


def measured_durations(
    planned: PlannedSchedule, boxes: Sequence[Box], rows: Sequence[Row]
) -> tuple[Durations | None, str]:
    """Median durations of recorded boxes; None, and a missing pass, if one was not recorded."""
    seconds = _medians(boxes, rows)
    for action in (a for actions in planned.schedule.actions for a in actions if a.computes):
        key = (planned.kind_of(action), action.stage)
        if key not in seconds:
            return None, f"{key[0].replace('_', ' ')} of stage {key[1]}"

    def durations(action: Action) -> float:
        return seconds.get((planned.kind_of(action), action.stage), 0.0)

    return durations, ""


def unit_durations(
    stages: int,
    *,
    forward: Sequence[float] = (),
    backward: float = 2.0,
    input_share: float = 0.5,
    update: float = 0.0,
    all_reduce: float = 0.0,
) -> StageDurations:
    """Durations in forward passes.

    Args:
        stages: their number.
        forward: a forward pass, and a recomputation, of each stage; empty if all take 1.
        backward: a backward pass, in forward passes of its stage.
        input_share: as in :class:`StageDurations`.
        update: of each stage.
        all_reduce: of each stage.
    """
    forward = forward or [1.0] * stages
    return StageDurations(
        forward_s=forward,
        backward_s=[backward * one for one in forward],
        input_share=input_share,
        update_s=[update] * stages,
        all_reduce_s=[all_reduce] * stages,
    )


def _medians(boxes: Sequence[Box], rows: Sequence[Row]) -> Seconds:
    lengths: dict[tuple[str, int], list[float]] = defaultdict(list)
    for box in boxes:
        if box.kind in (*PASSES, "loss"):
            lengths[box.kind, box.stage].append(box.end_s - box.start_s)
        elif box.kind == "update":
            # Recorded once for all stages of a device; the schedule updates stage by stage.
            own = rows[box.row].stages
            for stage in own:
                lengths["update", stage].append((box.end_s - box.start_s) / len(own))
    seconds = {key: median(values) for key, values in lengths.items()}
    for (kind, stage), loss_s in list(seconds.items()):
        if kind == "loss" and ("forward", stage) in seconds:
            seconds["forward", stage] += loss_s  # a schedule has the loss in the forward pass
    return seconds | _all_reduces(boxes, rows)


def _all_reduces(boxes: Iterable[Box], rows: Sequence[Row]) -> Seconds:
    """Median all-reduce of each stage; of each sum the shortest span, which waited for nobody."""
    shortest: dict[tuple[int, int], float] = {}
    for box in boxes:
        if box.kind == "all_reduce":
            own = rows[box.row].stages
            for stage in own:
                share_s = (box.end_s - box.start_s) / len(own)
                key = (stage, box.mini_batch)
                shortest[key] = min(share_s, shortest.get(key, share_s))
    by_stage: dict[int, list[float]] = defaultdict(list)
    for (stage, _), value in shortest.items():
        by_stage[stage].append(value)
    return {("all_reduce", stage): median(values) for stage, values in by_stage.items()}
