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
    size = round_size(ranks, chunks, micro_batches)
    orders, in_flight = [], []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forwards = round_order("forward", list(stages), micro_batches, size)
        backwards = round_order("backward", list(stages)[::-1], micro_batches, size)
        warmup = looped_warmup(rank, ranks, chunks, size, hop=2)
        orders.append(with_update(alternate(forwards, backwards, warmup), stages))
        in_flight.append(min(warmup + 1, len(forwards)))
    return Schedule(
        name="interleaved-1f1b",
        micro_batches=micro_batches,
        stage_ranks=looped_ranks(ranks, chunks),
        actions=with_messages(orders, looped_ranks(ranks, chunks)),
        in_flight=tuple(in_flight),
        receives_ahead=1,
    )


def round_size(ranks: int, chunks: int, micro_batches: int) -> int:
    """Micro-batches of one round.

    Raises:
        InvalidSchedule: a count is below 1, or the rounds do not come out even.
    """
    positive(ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise InvalidSchedule(
            f"{micro_batches} micro-batches do not divide into {rounds} rounds for {ranks} ranks; "
            f"write a multiple of {ranks}"
        )
    return micro_batches // rounds


def round_order(kind: Kind, stages: list[int], micro_batches: int, size: int) -> list[Action]:
    """Passes round by round; each round goes through all stages of a rank."""
    return [
        Action(kind, stage, first + number)
        for first in range(0, micro_batches, size)
        for stage in stages
        for number in range(size)
    ]


def looped_warmup(rank: int, ranks: int, chunks: int, size: int, hop: int) -> int:
    """Forward passes before the first backward; ``hop`` more for each rank before the last."""
    return (chunks - 1) * size + hop * (ranks - 1 - rank)


def looped_ranks(ranks: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """Ranks of the stages: stage s is on rank ``s mod ranks``."""
    return tuple((stage % ranks,) for stage in range(ranks * chunks))
