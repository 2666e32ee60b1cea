"""How long the planned passes take: the medians of what the same cell recorded.

With them, what differs between the planned and the measured picture is not the work, but all that
lies between it: messages, waiting, data loading, and passes that took unusually long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from ddlbench.planning.planned_schedule import PlannedSchedule
from ddlbench.planning.schedules import Action, Durations, StageDurations
from ddlbench.report.timeline.box import PASSES, Box, Row

__all__ = ["measured_durations", "unit_durations"]

Seconds = dict[tuple[str, int], float]  # by kind and stage


def measured_durations(
    planned: PlannedSchedule, boxes: Sequence[Box], rows: Sequence[Row]
) -> tuple[Durations | None, str]:
    """Durations from recorded boxes; else None, and which pass was not recorded."""
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
    backward: float = 2.0,
    input_share: float = 0.5,
    update: float = 0.0,
    all_reduce: float = 0.0,
) -> StageDurations:
    """Equal stages; a forward pass and a recomputation take 1."""
    return StageDurations(
        forward_s=[1.0] * stages,
        backward_s=[backward] * stages,
        input_share=input_share,
        update_s=[update] * stages,
        all_reduce_s=[all_reduce] * stages,
    )


def _medians(boxes: Sequence[Box], rows: Sequence[Row]) -> Seconds:
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for box in boxes:
        if box.kind in (*PASSES, "loss"):
            found[box.kind, box.stage].append(box.end_s - box.start_s)
        elif box.kind == "update":
            # Recorded once for all stages of a device; the schedule updates stage by stage.
            own = rows[box.row].stages
            for stage in own:
                found["update", stage].append((box.end_s - box.start_s) / len(own))
    seconds = {key: median(values) for key, values in found.items()}
    for (kind, stage), loss_s in list(seconds.items()):
        if kind == "loss" and ("forward", stage) in seconds:
            seconds["forward", stage] += loss_s  # which a schedule does not tell apart
    return seconds | _all_reduces(boxes, rows)


def _all_reduces(boxes: Iterable[Box], rows: Sequence[Row]) -> Seconds:
    """Of each sum the shortest span: that of the replica which came last and waited for none."""
    shortest: dict[tuple[int, int], float] = {}
    for box in boxes:
        if box.kind == "all_reduce":
            own = rows[box.row].stages
            for stage in own:
                share_s = (box.end_s - box.start_s) / len(own)
                key = (stage, box.mini_batch)
                shortest[key] = min(share_s, shortest.get(key, share_s))
    found: dict[int, list[float]] = defaultdict(list)
    for (stage, _), value in shortest.items():
        found[stage].append(value)
    return {("all_reduce", stage): median(values) for stage, values in found.items()}
