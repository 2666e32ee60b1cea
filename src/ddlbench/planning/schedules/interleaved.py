"""Interleaved 1F1B: each rank holds several chunks of the network, so the pipeline fills sooner.

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
from ddlbench.planning.schedules.assemble import positive, with_messages, with_update
from ddlbench.planning.schedules.one_f_one_b import alternate

__all__ = ["interleaved_1f1b", "looped_ranks", "looped_warmup", "round_order", "round_size"]


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
    """Round by round, each through all stages of a rank."""
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
    """Stage s on rank ``s mod ranks``."""
    return tuple((stage % ranks,) for stage in range(ranks * chunks))
