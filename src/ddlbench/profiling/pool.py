"""Pools profiles of one network that were measured in jobs of their own.

::

    run-1/profile.json  --.
    run-2/profile.json  --+-->  profile.json     medians; the widest of the intervals
    run-3/profile.json  --'

A machine has states: whole runs are faster or slower than others. So runs differ by more than the
passes within one, and their intervals alone are too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

from ddlbench.experiment.profile import (
    BatchTime,
    InvalidProfile,
    LoneRun,
    NodeSlowdown,
    ParameterTensor,
    Profile,
    StepTimes,
)

_Entry = TypeVar("_Entry")
_Interval = tuple[float, ...] | None


def pooled(profiles: Sequence[Profile]) -> Profile:
    """One profile from several of the same network on the same site.

    Times are medians over the runs; parts of a step are medians of its shares, so they still fill
    it. Entries that some run lacks are left out.

    Args:
        profiles: at least one.

    Raises:
        InvalidProfile: they are of different networks, or cut the network differently.
    """
    first = profiles[0]
    for other in profiles[1:]:
        if (other.profile_id, _shape(other)) != (first.profile_id, _shape(first)):
            raise InvalidProfile(
                f"profile {first.profile_id}: its runs are of different networks "
                f"({other.profile_id}); measure all of them again"
            )
    return replace(
        first,
        runs=sum(profile.runs for profile in profiles),
        steps=_joined((p.steps for p in profiles), lambda step: step.batch_size, _step),
        layers=tuple(
            replace(
                same[0],
                forward=_times(layer.forward for layer in same),
                backward=_times(layer.backward for layer in same),
            )
            for same in zip(*(profile.layers for profile in profiles), strict=True)
        ),
        blocks=tuple(
            replace(
                same[0],
                forward=_times(block.forward for block in same),
                backward=_times(block.backward for block in same),
                input_half=_times(block.input_half for block in same),
                weight_half=_times(block.weight_half for block in same),
            )
            for same in zip(*(profile.blocks for profile in profiles), strict=True)
        ),
        tensors=_tensors(profiles),
        node_slowdown=_joined(
            (p.node_slowdown for p in profiles), lambda one: one.replicas, _slowdown
        ),
        alone=_joined((p.alone for p in profiles), lambda run: run.work, _lone_run),
        notes=tuple(dict.fromkeys(note for profile in profiles for note in profile.notes)),
        provenance={**first.provenance, "runs": [dict(p.provenance) for p in profiles]},
    )


def _shape(profile: Profile) -> tuple[object, ...]:
    names = ([one.name for one in entries] for entries in (profile.layers, profile.blocks))
    return (profile.shrink, *map(tuple, names))


def _joined(
    runs: Iterable[Sequence[_Entry]],
    key: Callable[[_Entry], Hashable],
    join: Callable[[Sequence[_Entry]], _Entry],
) -> tuple[_Entry, ...]:
    """Entries of equal key in all runs, joined; in the order of the first run."""
    first, *others = [{key(entry): entry for entry in run} for run in runs]
    shared = [name for name in first if all(name in other for other in others)]
    return tuple(join([first[name], *(other[name] for other in others)]) for name in shared)


def _step(steps: Sequence[StepTimes]) -> StepTimes:
    step_s = median(step.step_s for step in steps)

    def part_s(seconds: Callable[[StepTimes], float]) -> float:
        return step_s * median(seconds(step) / step.step_s for step in steps)

    peaks = [step.peak_bytes for step in steps if step.peak_bytes is not None]
    return replace(
        steps[0],
        count=sum(step.count for step in steps),
        step_s=step_s,
        interval_s=_widest(step.interval_s for step in steps),
        load_s=part_s(lambda step: step.load_s),
        forward_s=part_s(lambda step: step.forward_s),
        backward_s=part_s(lambda step: step.backward_s),
        optimizer_s=part_s(lambda step: step.optimizer_s),
        peak_bytes=max(peaks, default=None),
    )


def _times(runs: Iterable[Sequence[BatchTime]]) -> tuple[BatchTime, ...]:
    def join(times: Sequence[BatchTime]) -> BatchTime:
        return replace(
            times[0],
            time_s=median(time.time_s for time in times),
            interval_s=_widest(time.interval_s for time in times),
        )

    return _joined(runs, lambda time: time.batch_size, join)


def _slowdown(entries: Sequence[NodeSlowdown]) -> NodeSlowdown:
    return replace(
        entries[0],
        slowdown=median(entry.slowdown for entry in entries),
        interval=_widest(entry.interval for entry in entries),
    )


def _lone_run(runs: Sequence[LoneRun]) -> LoneRun:
    return replace(
        runs[0],
        count=sum(run.count for run in runs),
        step_s=median(run.step_s for run in runs),
        interval_s=_widest(run.interval_s for run in runs),
    )


def _tensors(profiles: Sequence[Profile]) -> tuple[ParameterTensor, ...]:
    def join(tensors: Sequence[ParameterTensor]) -> ParameterTensor:
        return replace(tensors[0], ready_fraction=median(one.ready_fraction for one in tensors))

    joined = _joined((profile.tensors for profile in profiles), lambda one: one.name, join)
    return tuple(sorted(joined, key=lambda tensor: tensor.ready_fraction))


def _widest(intervals: Iterable[_Interval]) -> _Interval:
    """From the lowest bound to the highest; None if no run has one."""
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)
