"""The schedule that a plan stands for, over several mini-batches, and what its numbers mean.

::

    plan.json -> PlannedSchedule -> replay -> boxes of a timeline
                 who does what,     when, if each pass takes what it is said to take
                 in which order     and messages take no time
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddlbench.planning.schedules import Action, Schedule

__all__ = ["PlannedSchedule", "repeated"]


@dataclass(frozen=True)
class PlannedSchedule:
    """A schedule, and what its running numbers mean.

    Args:
        schedule: of all devices; number n is the run's n-th mini- or micro-batch.
        chunks: micro-batches of a replica's mini-batch; None where mini-batches are never split.
        replicas: pipelines side by side that number their micro-batches in turn.
        shared_by: devices that each take a part of one mini-batch, numbered in turn.
        recomputes: forward passes from ``chunks`` on are recomputations: torchgpipe, one step.
    """

    schedule: Schedule
    chunks: int | None = None
    replicas: int = 1
    shared_by: int = 1
    recomputes: bool = False

    @property
    def flushes(self) -> bool:
        """A step is a mini-batch of its own; else mini-batches overlap, or follow each other."""
        return self.chunks is not None

    @property
    def filling(self) -> int:
        """Mini-batches under way on the first stage before the one whose backward pass is next."""
        waiting = self.schedule.warmups[0] if self.schedule.warmups else 0
        return waiting * len(self.schedule.stage_ranks[0])

    def kind_of(self, action: Action) -> str:
        """What a pass or update is drawn as."""
        recomputed = self.recomputes and action.kind == "forward"
        if recomputed and action.micro_batch >= int(self.chunks or 0):
            return "recompute"
        return action.kind

    def numbers_of(self, action: Action) -> tuple[int, int | None]:
        """Mini-batch, counted from 0, and micro-batch of an action."""
        number = action.micro_batch
        if self.chunks is None:
            if not action.computes:  # an update is numbered after its first mini-batch
                number *= len(self.schedule.stage_ranks[action.stage])
            return number // self.shared_by, None
        if not action.computes:
            return number, None
        if self.kind_of(action) == "recompute":
            return 0, number - self.chunks
        step, within = divmod(number, self.chunks * self.replicas)
        return step, within // self.replicas


def repeated(schedule: Schedule, steps: int) -> Schedule:
    """A schedule that ends with an update, so many times over."""

    def later(action: Action, step: int) -> Action:
        moves = action.computes or action.communicates
        by = step * (schedule.micro_batches if moves else 1)
        return replace(action, micro_batch=action.micro_batch + by)

    return replace(
        schedule,
        micro_batches=schedule.micro_batches * steps,
        actions=tuple(
            tuple(later(action, step) for step in range(steps) for action in actions)
            for actions in schedule.actions
        ),
    )
