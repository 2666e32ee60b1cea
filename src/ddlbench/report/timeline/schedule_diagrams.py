"""Diagrams of schedules as papers draw them, without a cell or a measurement.

::

    data-parallel    every device has the whole network      | F 0 | B 0 | all-reduce | F 1 | ...
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

from collections.abc import Callable
from dataclasses import dataclass

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.pipeline import PlannedSchedule, repeated
from ddlbench.planning.schedules import (
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
        backward, update, all_reduce, message: durations in forward passes.
    """

    schedule: str
    stages: int = 4
    batches: int = 8
    replicas: tuple[int, ...] = (1,)
    stages_per_device: int = 2
    steps: int | None = None
    backward: float = 2.0
    update: float = 0.0
    all_reduce: float = 1.0
    message: float = 0.0


def planned_lesson(lesson: Lesson) -> PlannedSchedule:
    """The schedule of a lesson.

    Raises:
        ConfigError: its numbers do not fit together.
    """
    if lesson.steps is not None and lesson.schedule in WHOLE:
        raise ConfigError(
            f"--steps: {lesson.schedule} does not split a step; write --mini-batches instead"
        )
    return SCHEDULES[lesson.schedule](lesson)


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
    """A pipeline of one stage whose replicas each take a part of every mini-batch."""
    workers = _copies(lesson)
    schedule = pipedream((workers,), workers * lesson.batches, warmup_counts=(0,))
    return PlannedSchedule(schedule, shared_by=workers)


def _model_parallel(lesson: Lesson) -> PlannedSchedule:
    if _copies(lesson) > 1:
        raise ConfigError("--schedule model-parallel has no replicas; leave --replicas out")
    return PlannedSchedule(model_parallel(lesson.stages, lesson.batches))


def _pipedream(lesson: Lesson) -> PlannedSchedule:
    counts = lesson.replicas
    if len(counts) == 1:
        counts *= lesson.stages
    if len(counts) != lesson.stages:
        raise ConfigError(
            f"--replicas {_sum(counts)} is of {len(counts)} stages, and --stages is "
            f"{lesson.stages}; leave --stages out"
        )
    return PlannedSchedule(pipedream(counts, lesson.batches))


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
