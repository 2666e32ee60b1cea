"""The schedule that a plan stands for, over several mini-batches, and its boxes.

::

    plan.json -> PlannedSchedule -> replay -> boxes
                 who does what,     when, if each pass takes what it is said to take
                 in which order     and messages take no time

torchgpipe's schedule is GPipe's with recomputation: a device recomputes a micro-batch before it
waits for that micro-batch's gradient.

Sources: :mod:`ddlbench.planning.schedules`; torchgpipe 0.0.7, ``checkpoint.py``, on recomputation
that precedes the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.plan import Plan
from ddlbench.planning.schedules import (
    Action,
    Durations,
    Links,
    Schedule,
    gpipe,
    no_links,
    replay,
)
from ddlbench.planning.strategy import Strategy, strategy_of
from ddlbench.report.timeline.box import Box
from ddlbench.strategies.pipedream.descriptor import StagedStrategy
from ddlbench.strategies.pipelining.descriptor import SynchronousPipeline
from ddlbench.strategies.torchgpipe.descriptor import GPipe, ModelParallel

__all__ = ["PlannedSchedule", "boxes_of", "repeated", "schedule_of", "torchgpipe_step"]


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


def schedule_of(plan: Plan, mini_batches: int) -> PlannedSchedule | None:
    """What the plan's devices do for so many mini-batches; None where no schedule is known.

    torchgpipe's spans are of one step, and so is its schedule.
    """
    strategy = _strategy(plan.cell.strategy)
    details = plan.details
    if isinstance(strategy, StagedStrategy):
        return PlannedSchedule(strategy.schedule(details, mini_batches))
    if isinstance(strategy, SynchronousPipeline):
        schedule = repeated(strategy.schedule(plan.cell), mini_batches)
        return PlannedSchedule(schedule, int(details["chunks"]), int(details["replicas"]))
    if isinstance(strategy, (GPipe, ModelParallel)):
        chunks, checkpoint = details.get("chunks", 1), details.get("checkpoint", "never")
        return torchgpipe_step(plan.cell.devices, int(chunks), str(checkpoint))
    return None


def _strategy(name: str) -> Strategy | None:
    try:
        return strategy_of(name)
    except ConfigError:  # a third-party strategy that this machine does not have
        return None


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


def torchgpipe_step(devices: int, chunks: int, checkpoint: str) -> PlannedSchedule:
    """One step of torchgpipe.

    Args:
        devices: one partition each.
        chunks: micro-batches.
        checkpoint: "always", "except_last" or "never": which of them are recomputed.
    """
    schedule = gpipe(devices, chunks)
    count = {"always": chunks, "except_last": chunks - 1}.get(checkpoint, 0)

    def with_recomputation(actions: tuple[Action, ...]) -> Iterator[Action]:
        last = actions[0].stage == devices - 1
        gradient_comes_by = "backward" if last else "receive_gradient"
        for action in actions:
            if action.kind == gradient_comes_by and action.micro_batch < count:
                yield Action("forward", action.stage, chunks + action.micro_batch)
            yield action

    actions = tuple(tuple(with_recomputation(own)) for own in schedule.actions)
    return PlannedSchedule(replace(schedule, actions=actions), chunks, recomputes=True)


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
