"""The events of a planned pipeline, and how long one mini-batch takes in the long run.

::

    flushing   | step 0 of rank 0 | step 1 ...       a rank starts its next step when it has ended
                 | step 0 of rank 1 | step 1 ...     the last; the period is what each step adds
    flowing    fill | the same again and again | drain    updates of stage 0, once they come in a
                      `---- window ----'                  pattern that repeats

Ordering the events takes long, timing them does not: a strategy keeps the run of each shape of
pipeline (ranks, stages, micro-batches, replicas), and predictors time it for every cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddlbench.planning.schedules import (
    EAGER,
    EventGraph,
    Messaging,
    Schedule,
    events_of,
    messaging_of,
)

__all__ = ["PipelineRun", "Repeated", "flowing", "flushing"]

_SAME = 1e-9  # relative difference of times that are the same but for rounding
_MOST_STEPS = 12


@dataclass(frozen=True)
class Repeated:
    """Ordered events, and which of them tell the period.

    Args:
        graph: the events.
        mini_batches: that they work off.
        last: of each rank, its last event; what a flushing pipeline ends with.
        updates: of stage 0, in the window; empty where each step flushes.
        replicas: of stage 0: mini-batches of one update.
    """

    graph: EventGraph
    mini_batches: int
    last: tuple[int, ...]
    updates: tuple[int, ...] = ()
    replicas: int = 1

    def period_s(self, costs_s: Sequence[float]) -> float:
        """Seconds per mini-batch in the long run, for seconds of each of the graph's keys."""
        durations = [costs_s[number] for number in self.graph.key_numbers]
        if self.updates:
            ends = self.graph.ends_s(durations)
            return _slope([ends[number] for number in self.updates]) / self.replicas
        starts = [0.0] * len(self.last)
        period = 0.0
        for _ in range(_MOST_STEPS):
            ends = self.graph.ends_s(durations, starts)
            following = [ends[number] for number in self.last]
            before, period = period, max(following) - max(starts)
            starts = following
            if abs(period - before) <= _SAME * period:
                break
        return period


def _slope(ends_s: Sequence[float]) -> float:
    """Mean distance of times that repeat in some pattern; over all of them if none is found."""
    last = len(ends_s) - 1
    for lag in range(1, len(ends_s) // 2 + 1):
        distance = ends_s[last] - ends_s[last - lag]
        if all(
            abs(ends_s[number] - ends_s[number - lag] - distance) <= _SAME * ends_s[last]
            for number in range(lag, last)
        ):
            return distance / lag
    return (ends_s[last] - ends_s[0]) / last


@dataclass(frozen=True)
class PipelineRun:
    """A plan's pipeline.

    Args:
        real: messages are waited for as its runtime does.
        free: a message is there when it is needed; only inputs are waited for.
        samples: of one forward pass.
        loaded: samples that the first stage loads at a time.
        loads_each_pass: it loads them in every forward pass, else once a step.
        pipelines: side by side.
        splits: backward passes are done in two halves.
    """

    real: Repeated
    free: Repeated
    samples: float
    loaded: float
    loads_each_pass: bool
    pipelines: int
    splits: bool


def flushing(schedule: Schedule) -> tuple[Repeated, Repeated]:
    """One step of a schedule that ends with an update: as its runtime messages, and eagerly.

    Args:
        schedule: of all replicas.
    """

    def repeated(messaging: Messaging) -> Repeated:
        graph = events_of(schedule, messaging)
        return Repeated(graph, 1, tuple(line[-1].ends for line in graph.lines))

    return repeated(messaging_of(schedule)), repeated(EAGER)


def flowing(
    schedule_of: Callable[[int], Schedule], counts: Sequence[int], late: bool
) -> tuple[Repeated, Repeated]:
    """As many mini-batches as it takes to fill, to see the pattern, and to drain.

    Stage 0 has ``r_0 (W_0 + 1)`` mini-batches under way at most, so what they leave behind is gone
    after twice as many; the window has four times as many.

    Args:
        schedule_of: the schedule of so many mini-batches.
        counts: replicas of each stage.
        late: replicas wait for the sum of their gradients after their next backward pass.
    """
    shape = schedule_of(1)
    filling = max(r * (waiting + 1) for r, waiting in zip(counts, shape.warmups, strict=True))
    first = counts[0]
    skipped, window = (first * -(-times * filling // first) for times in (2, 4))
    schedule = schedule_of(skipped + window + filling)
    real = replace(messaging_of(schedule), late_sums=late)
    seen = range(skipped // first - 1, (skipped + window) // first)

    def repeated(messaging: Messaging) -> Repeated:
        graph = events_of(schedule, messaging)
        updates = _updates_of_first_stage(graph, schedule)
        return Repeated(
            graph,
            schedule.micro_batches,
            tuple(line[-1].ends for line in graph.lines),
            tuple(updates[number] for number in seen),
            first,
        )

    return repeated(real), repeated(replace(EAGER, late_sums=late))


def _updates_of_first_stage(graph: EventGraph, schedule: Schedule) -> list[int]:
    line = graph.lines[schedule.stage_ranks[0][0]]
    return [placed.ends for placed in line if placed.action.kind == "update"]
