"""How long the pipelines take: the schedules of :mod:`ddlbench.planning.schedules`, replayed.

GPipe and 1F1B have a formula that equals their replay where the last stage is the slowest, as it is
with the logits on it: the first micro-batch passes all stages, the others follow one slot apart::

    sum over stages (F + B) + (m - 1) max (F + B)

All others are replayed. A long step repeats itself: what one more round of micro-batches adds is
replayed once (T(m) is a line beyond a few rounds).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ddlbench.planning import schedules
from ddlbench.planning.schedules import Event, EventGraph
from ddlbench.predict.measured_steps import Array

FORMULA = ("1f1b", "gpipe")
_ROUNDS = 3
_V = 2
"""Chunks of a device in the schedule that is laid out as a V."""


def schedule_of(name: str, ranks: int, chunks: int, micro_batches: int) -> schedules.Schedule:
    """The schedule of one step; InvalidSchedule if the numbers do not fit."""
    if name == "gpipe":
        return schedules.gpipe(ranks, micro_batches)
    if name == "1f1b":
        return schedules.one_f_one_b(ranks, micro_batches)
    if name == "zero-bubble-v":
        return schedules.zero_bubble_v(ranks, micro_batches)
    if name == "interleaved-1f1b":
        return schedules.interleaved_1f1b(ranks, chunks, micro_batches)
    return schedules.interleaved_zero_bubble(ranks, chunks, micro_batches)


def chunks_of(name: str, chunks: int) -> int:
    """Stages of a device under a schedule."""
    if name in FORMULA:
        return 1
    return _V if name == "zero-bubble-v" else chunks


def replayed_s(
    name: str,
    ranks: int,
    chunks: int,
    micro_batches: Array,
    *,
    forward_s: Array,
    backward_s: Array,
    input_share: Array,
) -> Array:
    """Seconds of all passes of a step, for n configurations under one schedule.

    Args:
        name: a schedule.
        ranks: devices of a pipeline.
        chunks: stages of a device.
        micro_batches: of a step, (n,).
        forward_s: of each stage, (ranks * chunks, n), with the message that it waits for.
        backward_s: likewise.
        input_share: share of a backward pass that the stage before waits for, (n,).

    Raises:
        InvalidSchedule: the numbers do not fit.
    """
    counts = np.asarray(micro_batches, dtype=int)
    few = _ROUNDS * ranks + counts % ranks
    long = counts > few + ranks
    begins, ends = np.where(long, few, counts), np.where(long, few + ranks, counts)
    seconds = np.zeros((2, len(counts)))
    for row, replayed in enumerate((begins, ends)):
        for count in np.unique(replayed[long] if row else replayed):
            of = (replayed == count) & (long | (row == 0))
            graph = _graph(name, ranks, chunks, int(count))
            seconds[row, of] = _end_s(graph, forward_s[:, of], backward_s[:, of], input_share[of])
    rounds = np.where(long, (counts - few) / ranks, 0.0)
    return np.asarray(seconds[0] + (seconds[1] - seconds[0]) * rounds)


@lru_cache(maxsize=64)
def _graph(name: str, ranks: int, chunks: int, micro_batches: int) -> EventGraph:
    return schedules.events_of(schedule_of(name, ranks, chunks, micro_batches))


def _end_s(graph: EventGraph, forward_s: Array, backward_s: Array, input_share: Array) -> Array:
    """When the last event ends, (n,): :meth:`EventGraph.ends_s` for n configurations at once."""
    of_key: list[Array | None] = [
        _duration_s(event, forward_s, backward_s, input_share) for event in graph.keys
    ]
    ends: list[Array] = []
    nothing = np.zeros(len(input_share))
    for before, key in zip(graph.before, graph.key_numbers, strict=True):
        begins = ends[before[0]] if before else nothing
        for earlier in before[1:]:
            begins = np.maximum(begins, ends[earlier])
        duration = of_key[key]
        ends.append(begins if duration is None else begins + duration)
    last = [ends[line[-1].ends] for line in graph.lines]
    return np.asarray(np.max(last, axis=0))


def _duration_s(
    event: Event, forward_s: Array, backward_s: Array, input_share: Array
) -> Array | None:
    """Seconds of a pass; None where an event takes no time of its own."""
    action = event.action
    if event.role != "action" or action is None or not action.computes:
        return None
    if action.kind == "forward":
        return np.asarray(forward_s[action.stage])
    shares = {"backward_input": input_share, "backward_weight": 1 - input_share}
    return np.asarray(backward_s[action.stage] * shares.get(action.kind, 1.0))


def in_flight(name: str, ranks: int, chunks: int, micro_batches: int) -> float:
    """Micro-batches that the fullest rank holds, in whole shares of its layers."""
    if name == "gpipe":
        return float(micro_batches)
    if name == "1f1b":
        return float(min(micro_batches, ranks))
    if name == "zero-bubble-v":
        return float(min(ranks, micro_batches))
    size = micro_batches / max(1, micro_batches // ranks)
    if name == "interleaved-1f1b":
        held = (chunks - 1) * size + 2 * (ranks - 1) + 1
    else:
        held = (chunks - 1) * size + ranks - 1 + 1
    return min(held, chunks * micro_batches) / chunks
