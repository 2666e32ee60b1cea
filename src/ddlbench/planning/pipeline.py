"""The pipeline of a plan: its stages, its schedule, its events.

Stages, and what decides the memory that they need::

    stage      |    0    |  1  |   2   |         each a range of blocks on its ranks
    ranks      |  0   1  |  2  |   3   |         stage 0 has two replicas
    in flight  |  3   3  |  2  |   1   |         forward passes without their backward pass

The schedule, over several mini-batches::

    plan.json -> PlannedSchedule -> replay -> boxes of a timeline
                 order of actions   times, for given durations and messages that take no time

The events, and how long one mini-batch takes in the long run::

    flushing   | step 0 of rank 0 | step 1 ...       a rank starts its next step when it has ended
                 | step 0 of rank 1 | step 1 ...     the last; the period is what each step adds
    flowing    fill | the same again and again | drain    updates of stage 0, once they follow a
                      `---- window ----'                  pattern that repeats

Ordering the events is slow, timing them is fast. So a strategy keeps the run of each shape of
pipeline (ranks, stages, micro-batches, replicas), and predictors time it for every cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import NetworkTraits, borrowing, unsupported_weights
from ddlbench.planning.schedules import (
    EAGER,
    Action,
    EventGraph,
    Held,
    Messaging,
    Schedule,
    events_of,
    messaging_of,
    replicate,
)


@dataclass(frozen=True)
class Stage:
    """Blocks ``[first, last)`` of the network on so many replicas."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan.

    Args:
        first, last: its first block, and the block after its last.
        ranks: of its replicas.
        weight_versions: most versions of its weights that a rank holds.
    """

    first: int
    last: int
    ranks: tuple[int, ...]
    weight_versions: int = 1


@dataclass(frozen=True)
class Pipeline:
    """All stages of a plan with one process a device.

    Args:
        stages: in the order of the network; a rank may hold several.
        samples: of one forward pass.
        in_flight: for each rank, the most forward passes without their backward pass.
        held: for each rank, the forward passes that it certainly holds at one moment.
        micro_batches: of a replica's part of a mini-batch, each with a receive buffer at every
            cut; None if mini-batches stay whole.
    """

    stages: tuple[PlannedStage, ...]
    samples: float
    in_flight: tuple[int, ...]
    held: tuple[int, ...]
    micro_batches: int | None = None

    @property
    def blocks(self) -> int:
        return self.stages[-1].last

    def check_blocks(self, profiled: int) -> None:
        """Raises ConfigError unless a profile has as many blocks as the plan."""
        if profiled != self.blocks:
            raise ConfigError(
                f"the profile has {counted(profiled, 'block')}, the plan cuts {self.blocks}: "
                "profile the network again"
            )

    def of_rank(self, rank: int) -> tuple[int, ...]:
        return tuple(index for index, stage in enumerate(self.stages) if rank in stage.ranks)

    def spans(self, rank: int) -> Sequence[tuple[int, int]]:
        return [(self.stages[index].first, self.stages[index].last) for index in self.of_rank(rank)]


def why_not_in_stages(traits: NetworkTraits, pipeline: Pipeline) -> Reason | None:
    """Why a pipeline cannot train the network, cut where it cuts it; None if it can.

    Several mini-batches, or parts of one, are under way at once, with the weights of each. A stage
    sends back the gradient of what it receives, and whole numbers have none.
    """
    if traits.written:
        return unsupported_weights(
            "a pipeline",
            traits.written,
            "keeps weights for later backward passes, and the forward pass changes some",
            "change them between steps only",
        )
    if traits.borrowed:
        return borrowing(traits)
    for stage in pipeline.stages[:-1]:
        name = traits.blocks[stage.last - 1] if stage.last <= len(traits.blocks) else ""
        if name and name in traits.without_gradient:
            return Reason(
                "no_gradient_at_cut",
                f"the balance cuts after block {name!r}, whose output has no gradient to send back "
                "(whole numbers); write a balance that keeps it and the next block on one stage",
            )
    return None


@dataclass(frozen=True)
class PlannedSchedule:
    """A schedule, and the meaning of its running numbers.

    Args:
        schedule: of all devices; number n is the run's n-th mini- or micro-batch.
        chunks: micro-batches of a replica's mini-batch; None if mini-batches are never split.
        replicas: pipelines side by side; their micro-batches are numbered in turn.
        recomputes: forward passes from ``chunks`` on are recomputations: torchgpipe, one step.
    """

    schedule: Schedule
    chunks: int | None = None
    replicas: int = 1
    recomputes: bool = False

    @property
    def flushes(self) -> bool:
        """Whether each mini-batch is a step of its own; else they overlap, or follow each other."""
        return self.chunks is not None

    @property
    def filling(self) -> int:
        """Mini-batches in the first stage before the one whose backward pass is next."""
        waiting = self.schedule.warmups[0] if self.schedule.warmups else 0
        return waiting * len(self.schedule.stage_ranks[0])

    def kind_of(self, action: Action) -> str:
        """How a pass or update is drawn."""
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
            return number, None
        if not action.computes:
            return number, None
        if self.kind_of(action) == "recompute":
            return 0, number - self.chunks
        step, within = divmod(number, self.chunks * self.replicas)
        return step, within // self.replicas


def repeated(schedule: Schedule, steps: int) -> Schedule:
    """Repeats a schedule that ends with an update."""

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


_SAME = 1e-9  # relative difference of times that are the same but for rounding
_MOST_STEPS = 12


@dataclass(frozen=True)
class Repeated:
    """Ordered events of repeated steps or mini-batches, from which the period follows.

    Args:
        graph: the events.
        mini_batches: their number.
        last: the last event of each rank, which ends a step of a flushing pipeline.
        updates: of stage 0, in the window; empty if each step flushes.
        replicas: of stage 0: mini-batches of one update.
    """

    graph: EventGraph
    mini_batches: int
    last: tuple[int, ...]
    updates: tuple[int, ...] = ()
    replicas: int = 1

    def period_s(
        self, costs_s: Sequence[float], holds: Sequence[Held | None] | None = None
    ) -> float:
        """Seconds per mini-batch in the long run.

        ``costs_s`` are of each of the graph's keys; ``holds`` the links that each holds, where
        messages share links.
        """
        durations = [costs_s[number] for number in self.graph.key_numbers]
        ends_s: Callable[[list[float] | None], list[float]] = partial(self.graph.ends_s, durations)
        if holds is not None:
            held = [holds[number] for number in self.graph.key_numbers]
            ends_s = partial(self.graph.ends_sharing_s, durations, held)
        if self.updates:
            ends = ends_s(None)
            return _slope([ends[number] for number in self.updates]) / self.replicas
        starts = [0.0] * len(self.last)
        period = 0.0
        for _ in range(_MOST_STEPS):
            ends = ends_s(starts)
            following = [ends[number] for number in self.last]
            before, period = period, max(following) - max(starts)
            starts = following
            if abs(period - before) <= _SAME * period:
                break
        return period


def _slope(ends_s: Sequence[float]) -> float:
    """Mean distance of times that repeat in some pattern; over all of them if there is none."""
    last = len(ends_s) - 1
    for lag in range(1, len(ends_s) // 2 + 1):
        distance = ends_s[last] - ends_s[last - lag]
        if all(
            abs(ends_s[number] - ends_s[number - lag] - distance) <= _SAME * ends_s[last]
            for number in range(lag, last)
        ):
            return distance / lag
    return (ends_s[last] - ends_s[0]) / last


# Gives the events of so many pipelines side by side.
RunOf = Callable[[int], Repeated]


@dataclass(frozen=True)
class PipelineRun:
    """A plan's events, and how they load data.

    Args:
        real_of: so many of the pipelines, whose messages are waited for as the runtime does. Where
            links are alike, one pipeline stands for several.
        free: one pipeline in which a message is there when it is needed.
        samples: of one forward pass.
        loaded: samples that the first stage loads at a time.
        loads_each_pass: it loads them in every forward pass, else once a step.
        pipelines: side by side.
        splits: backward passes are done in two halves.
    """

    real_of: RunOf
    free: Repeated
    samples: float
    loaded: float
    loads_each_pass: bool
    pipelines: int
    splits: bool


def flushing(schedule: Schedule, pipelines: int) -> tuple[RunOf, Repeated]:
    """One step of a schedule that ends with an update, for a real and a free run.

    Without messages all ``pipelines`` side by side do the same, so the free run is of one.
    """

    def one_step(whole: Schedule, messaging: Messaging) -> Repeated:
        graph = events_of(whole, messaging)
        return Repeated(graph, 1, _last_events(graph))

    @cache
    def real_of(count: int) -> Repeated:
        copies = replicate(schedule, count, summed=pipelines > 1)
        return one_step(copies, messaging_of(schedule))

    return real_of, one_step(schedule, EAGER)


def _last_events(graph: EventGraph) -> tuple[int, ...]:
    return tuple(line[-1].ends for line in graph.lines)


def flowing(
    schedule_of: Callable[[int], Schedule], counts: Sequence[int], late: bool
) -> tuple[RunOf, Repeated]:
    """Mini-batches of a pipeline that never flushes: to fill, to show the pattern, and to drain.

    At most ``r_0 (W_0 + 1)`` mini-batches are in stage 0 at once. The effect of filling is over
    after twice as many; the window has four times as many.

    Args:
        schedule_of: the schedule, from the number of mini-batches.
        counts: replicas of each stage.
        late: replicas wait for the sum of their gradients after their next backward pass.
    """
    shape = schedule_of(1)
    filling = max(r * (waiting + 1) for r, waiting in zip(counts, shape.warmups, strict=True))
    first = counts[0]
    skipped, window = (first * -(-times * filling // first) for times in (2, 4))
    schedule = schedule_of(skipped + window + filling)
    real = replace(messaging_of(schedule), late_sums=late)

    def window_of(messaging: Messaging) -> Repeated:
        graph = events_of(schedule, messaging)
        line = graph.lines[schedule.stage_ranks[0][0]]
        updates = [placed.ends for placed in line if placed.action.kind == "update"]
        seen = tuple(updates[skipped // first - 1 : (skipped + window) // first])
        return Repeated(graph, schedule.micro_batches, _last_events(graph), seen, first)

    whole = window_of(real)
    return lambda _count: whole, window_of(replace(EAGER, late_sums=late))
