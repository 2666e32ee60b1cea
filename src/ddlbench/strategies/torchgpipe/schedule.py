"""torchgpipe's schedule: GPipe's with recomputation.

::

    device 0   F0 F1       R0 B0 R1 B1       R: a forward pass once more, before the device waits
    device 1      F0 F1 B1 R0 B0             for that micro-batch's gradient

Source: torchgpipe 0.0.7, ``checkpoint.py``, on recomputation that precedes the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddlbench.planning.planned_schedule import PlannedSchedule
from ddlbench.planning.schedules import Action, gpipe

__all__ = ["torchgpipe_step"]


def torchgpipe_step(devices: int, chunks: int, recomputed: int) -> PlannedSchedule:
    """One step of torchgpipe.

    Args:
        devices: one partition each.
        chunks: micro-batches.
        recomputed: how many of them are computed twice, the first ones.
    """
    schedule = gpipe(devices, chunks)

    def with_recomputation(actions: tuple[Action, ...]) -> Iterator[Action]:
        last = actions[0].stage == devices - 1
        gradient_comes_by = "backward" if last else "receive_gradient"
        for action in actions:
            if action.kind == gradient_comes_by and action.micro_batch < recomputed:
                yield Action("forward", action.stage, chunks + action.micro_batch)
            yield action

    actions = tuple(tuple(with_recomputation(own)) for own in schedule.actions)
    return PlannedSchedule(replace(schedule, actions=actions), chunks, recomputes=True)
