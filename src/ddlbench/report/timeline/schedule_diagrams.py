"""Diagrams of schedules as papers draw them, without a cell or a measurement.

::

    data-parallel    every device has the whole network      | F 0 | B 0 | all-reduce | F 4 | ...
    model-parallel   one device works at a time              GPipe, figure 2b
    gpipe            micro-batches, then a flush             GPipe, figure 2c
    1f1b             the same bubble, less memory            Megatron-LM, figure 4 above
    interleaved      several stages a device                 Megatron-LM, figure 4 below
    zero-bubble(-v)  weight gradients fill the bubble        Qi et al., 2024
    pipedream        never flushed                           PipeDream, figures 4 and 8

DDLBench (Jansen et al., 2020) and the thesis behind it explain data parallelism, GPipe and
PipeDream with such pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ddlbench.common.errors import ConfigError
from ddlbench.planning.pipeline import PlannedSchedule, repeated
from ddlbench.planning.schedules import (
    EAGER,
    Action,
    Messaging,
    Schedule,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    model_parallel,
    one_f_one_b,
    pipedream,
    replicate,
    zero_bubble_v,
)

# Schedules whose numbers are mini-batches; the others split them and flush after each.
WHOLE = ("data-parallel", "model-parallel", "pipedream")
STAGE_ALL_REDUCES = ("sync", "async", "ddp")
"""When replicas of a stage wait for the sum of their gradients."""


@dataclass(frozen=True)
class Lesson:
    """A schedule to draw.

    Args:
        schedule: a key of :data:`SCHEDULES`.
        stages: of the pipeline; its devices for ``interleaved`` and ``zero-bubble``.
        batches: mini-batches for the schedules in :data:`WHOLE`, else micro-batches of a step.
        replicas: of each stage for ``pipedream``; else one number, the copies of the pipeline.
        stages_per_device: for ``interleaved`` and ``zero-bubble``.
        steps: of schedules that flush; None is one.
        durations: of a forward pass of each stage; empty if all take 1.
        backward: duration of a backward pass in forward passes of its stage.
        update, all_reduce, message: durations.
        stage_all_reduce: for ``pipedream``: replicas of a stage wait for the sum of their gradients
            before the update (``sync``), before the next update (``async``), or within the backward
            pass, as torch's DistributedDataParallel has it (``ddp``): then the gradient goes to the
            stage before only after the sum.
        division: for ``pipedream``: also what its released runtime does with mini-batches that the
            replicas of a stage do not divide, see :mod:`ddlbench.planning.schedules.division`.
    """

    schedule: str
    stages: int = 4
    batches: int = 8
    replicas: tuple[int, ...] = (1,)
    stages_per_device: int = 2
    steps: int | None = None
    durations: tuple[float, ...] = ()
    backward: float = 2.0
    update: float = 0.0
    all_reduce: float = 1.0
    message: float = 0.0
    stage_all_reduce: str = "sync"
    division: bool = False

    @property
    def messaging(self) -> Messaging:
        return Messaging(late_sums=True) if self.stage_all_reduce == "async" else EAGER

    def forward_of(self, stages: int) -> tuple[float, ...]:
        """The forward pass of each stage.

        Raises:
            ConfigError: there are other stages than durations.
        """
        if self.durations and len(self.durations) != stages:
            numbers = ",".join(f"{duration:g}" for duration in self.durations)
            raise ConfigError(
                f"--durations {numbers}: {self.schedule} has {stages} stages here; write a number "
                "for each"
            )
        return self.durations or (1.0,) * stages


def planned_lesson(lesson: Lesson) -> PlannedSchedule:
    """The schedule of a lesson.

    Raises:
        ConfigError: its numbers do not fit together.
    """
    if lesson.steps is not None and lesson.schedule in WHOLE:
        raise ConfigError(
            f"--steps: {lesson.schedule} does not split a step; write --mini-batches instead"
        )
    if lesson.stage_all_reduce != "sync" and lesson.schedule != "pipedream":
        raise ConfigError(
            f"--stage-all-reduce: {lesson.schedule} has no replicas of a stage; only pipedream has"
        )
    return SCHEDULES[lesson.schedule](lesson)


def mini_batches_of_a_loader(lesson: Lesson) -> int:
    """Mini-batches of each replica of the first stage of a lesson with a division.

    Raises:
        ConfigError: the schedule is another, or its first stage's loaders are unequal.
    """
    if lesson.schedule != "pipedream":
        raise ConfigError(
            f"--division: {lesson.schedule} has no replicas of a stage; only pipedream has"
        )
    per_loader, rest = divmod(lesson.batches, lesson.replicas[0])
    if rest:
        raise ConfigError(
            f"--mini-batches {lesson.batches}: the {lesson.replicas[0]} loaders of the first stage "
            f"have as many each; write a multiple of {lesson.replicas[0]}"
        )
    return per_loader


def _copies(lesson: Lesson) -> int:
    if len(lesson.replicas) > 1:
        raise ConfigError(
            f"--replicas {_sum(lesson.replicas)}: {lesson.schedule} has copies of the whole, so "
            "write one number; only pipedream has replicas of each stage"
        )
    return lesson.replicas[0]


def _flushing(make: Callable[[Lesson], Schedule]) -> Callable[[Lesson], PlannedSchedule]:
    def planned(lesson: Lesson) -> PlannedSchedule:
        copies = _copies(lesson)
        schedule = repeated(replicate(make(lesson), copies), lesson.steps or 1)
        return PlannedSchedule(schedule, lesson.batches, copies)

    return planned


def _data_parallel(lesson: Lesson) -> PlannedSchedule:
    """A pipeline of one stage whose replicas each take a mini-batch of a step."""
    return PlannedSchedule(pipedream((_copies(lesson),), lesson.batches, warmup_counts=(0,)))


def _model_parallel(lesson: Lesson) -> PlannedSchedule:
    if _copies(lesson) > 1:
        raise ConfigError("--schedule model-parallel has no replicas; leave --replicas out")
    return PlannedSchedule(model_parallel(lesson.stages, lesson.batches))


def pipedream_replicas(lesson: Lesson) -> tuple[int, ...]:
    """Replicas of each stage.

    Raises:
        ConfigError: there are other stages than replicas.
    """
    counts = lesson.replicas
    if len(counts) == 1:
        counts *= lesson.stages
    if len(counts) != lesson.stages:
        raise ConfigError(
            f"--replicas {_sum(counts)} is of {len(counts)} stages, and --stages is "
            f"{lesson.stages}; leave --stages out"
        )
    return counts


def _pipedream(lesson: Lesson) -> PlannedSchedule:
    schedule = pipedream(pipedream_replicas(lesson), lesson.batches)
    if lesson.stage_all_reduce == "ddp":
        schedule = replace(
            schedule, actions=tuple(tuple(_sum_first(actions)) for actions in schedule.actions)
        )
    return PlannedSchedule(schedule)


def _sum_first(actions: tuple[Action, ...]) -> Iterator[Action]:
    """Every sum of gradients before the gradient that is sent in front of it."""
    held: Action | None = None
    for action in actions:
        if held is not None and action.kind != "all_reduce":
            yield held
            held = None
        if action.kind == "send_gradient":
            held = action
            continue
        yield action
    if held is not None:
        yield held


def _interleaved(lesson: Lesson) -> Schedule:
    return interleaved_1f1b(lesson.stages, lesson.stages_per_device, lesson.batches)


def _zero_bubble(lesson: Lesson) -> Schedule:
    return interleaved_zero_bubble(lesson.stages, lesson.stages_per_device, lesson.batches)


SCHEDULES: dict[str, Callable[[Lesson], PlannedSchedule]] = {
    "data-parallel": _data_parallel,
    "model-parallel": _model_parallel,
    "gpipe": _flushing(lambda lesson: gpipe(lesson.stages, lesson.batches)),
    "1f1b": _flushing(lambda lesson: one_f_one_b(lesson.stages, lesson.batches)),
    "interleaved": _flushing(_interleaved),
    "zero-bubble": _flushing(_zero_bubble),
    "zero-bubble-v": _flushing(lambda lesson: zero_bubble_v(lesson.stages, lesson.batches)),
    "pipedream": _pipedream,
}


def _sum(counts: tuple[int, ...]) -> str:
    return "+".join(map(str, counts))
