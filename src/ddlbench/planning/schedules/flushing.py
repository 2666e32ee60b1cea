"""Schedules that flush: every step ends with an update, and the pipeline drains before it.

GPipe: all forward passes, then all backward passes (fill and drain).

::

    rank 0   F0 F1 F2 F3                         B3 B2 B1 B0   update
    rank 1      F0 F1 F2 F3                B3 B2 B1 B0         update
    rank 2         F0 F1 F2 F3       B3 B2 B1 B0               update
    rank 3            F0 F1 F2 F3 B3 B2 B1 B0                  update

With m micro-batches on p equal stages m / (m + p - 1) of the time is work. A rank holds all m
micro-batches, unless it recomputes activations.

Source: GPipe (Huang et al., NeurIPS 2019), figure 2c, where backward passes start with the last
micro-batch; torch.distributed.pipelining starts with the first (``last_first=False``).

1F1B with a flush: a forward pass, a backward pass, in turn.

::

    rank 0   F0 F1 F2 F3             B0 F4 B1 F5 B2    B3    B4    B5   update
    rank 1      F0 F1 F2          B0 F3 B1 F4 B2 F5 B3    B4    B5      update
    rank 2         F0 F1       B0 F2 B1 F3 B2 F4 B3 F5 B4    B5         update
    rank 3            F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5               update

The bubble is GPipe's, m / (m + p - 1) of the time is work, but rank s holds only p - s
micro-batches.

Sources: PipeDream-Flush (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML
2021) and Megatron-LM (Narayanan et al., SC 2021), figure 4 above.

Interleaved 1F1B: each rank holds several chunks of the network, so the pipeline fills sooner.

::

    stages    0  1  2  3  on ranks  0  1  0  1       (p = 2 ranks, v = 2 chunks, F3.2 = stage 2)

    rank 0    F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0
    rank 1         F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1

Micro-batches go in rounds of p: a round passes the first chunk, then the second, and backwards the
other way round. The bubble is v times shorter than 1F1B's, for v times the messages.

Source: Megatron-LM (Narayanan et al., SC 2021), section 2.2 and figure 4 below; the number of
rounds for micro-batches that p does not divide is torch.distributed.pipelining's.
"""

from __future__ import annotations

from collections.abc import Callable

from ddlbench.planning.schedules.action import Action, InvalidSchedule, Kind, Schedule
from ddlbench.planning.schedules.assemble import passes, positive, with_messages, with_update


def gpipe(stages: int, micro_batches: int, last_first: bool = True) -> Schedule:
    """The schedule of one optimizer step.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(stages=stages, micro_batches=micro_batches)
    numbers = range(micro_batches)
    orders = []
    for stage in range(stages):
        forwards = passes("forward", stage, numbers)
        backwards = passes("backward", stage, numbers[::-1] if last_first else numbers)
        orders.append(with_update([*forwards, *backwards], [stage]))
    return _one_stage_a_rank("gpipe", micro_batches, orders, (micro_batches,) * stages)


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(stages=stages, micro_batches=micro_batches)
    numbers = range(micro_batches)
    orders = []
    for stage in range(stages):
        forwards = passes("forward", stage, numbers)
        backwards = passes("backward", stage, numbers)
        order = alternate(forwards, backwards, stages - 1 - stage)
        orders.append(with_update(order, [stage]))
    in_flight = tuple(min(micro_batches, stages - stage) for stage in range(stages))
    return _one_stage_a_rank("1f1b", micro_batches, orders, in_flight)


def _one_stage_a_rank(
    name: str, micro_batches: int, orders: list[list[Action]], in_flight: tuple[int, ...]
) -> Schedule:
    stage_ranks = looped_ranks(len(orders), chunks=1)
    actions = with_messages(orders, stage_ranks)
    return Schedule(name, micro_batches, stage_ranks, actions, in_flight)


def alternate(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """``warmup`` forward passes, then one forward and one backward in turn, then the rest."""
    warmup = min(warmup, len(forwards))
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - warmup :]


def interleaved_1f1b(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step.

    Args:
        ranks: processes.
        chunks: stages of each process; stage s is on rank ``s mod ranks``.
        micro_batches: a multiple of its number of rounds, ``max(1, micro_batches // ranks)``.

    Raises:
        InvalidSchedule: a count does not fit.
    """
    return looped(ranks, chunks, micro_batches, backward="backward", hop=2)


def looped(
    ranks: int,
    chunks: int,
    micro_batches: int,
    *,
    backward: Kind,
    hop: int,
    finish: Callable[[list[Action], int], list[Action]] | None = None,
) -> Schedule:
    """Chunks of a rank in rounds of micro-batches.

    Args:
        ranks: as of :func:`interleaved_1f1b`, whose errors it raises.
        chunks: likewise.
        micro_batches: likewise.
        backward: the pass that follows each forward pass in turn.
        hop: further forward passes before the first backward, for each rank before the last.
        finish: adds passes to the order of a rank, which then holds as many more as its number.
    """
    positive(ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise InvalidSchedule(
            f"{micro_batches} micro-batches do not divide into {rounds} rounds for {ranks} ranks; "
            f"write a multiple of {ranks}"
        )
    size, stage_ranks = micro_batches // rounds, looped_ranks(ranks, chunks)
    orders, in_flight = [], []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forwards = _round_order("forward", stages, micro_batches, size)
        backwards = _round_order(backward, stages[::-1], micro_batches, size)
        warmup = (chunks - 1) * size + hop * (ranks - 1 - rank)
        order = alternate(forwards, backwards, warmup)
        orders.append(with_update(finish(order, rank) if finish else order, stages))
        in_flight.append(min(warmup + 1 + (rank if finish else 0), len(forwards)))
    actions = with_messages(orders, stage_ranks)
    return Schedule(
        "interleaved-1f1b", micro_batches, stage_ranks, actions, tuple(in_flight), receives_ahead=1
    )


def _round_order(kind: Kind, stages: range, micro_batches: int, size: int) -> list[Action]:
    """Passes round by round; each round goes through all stages of a rank."""
    return [
        Action(kind, stage, first + number)
        for first in range(0, micro_batches, size)
        for stage in stages
        for number in range(size)
    ]


def looped_ranks(ranks: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """Ranks of the stages: stage s is on rank ``s mod ranks``."""
    return tuple((stage % ranks,) for stage in range(ranks * chunks))
