"""Interleaved zero bubble: the weights' share of a backward pass waits for an idle moment.

::

    backward B = I (gradient of the input, the rank before waits for it) + W (of the weights)

    rank 0   F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 ...
    rank 1      F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 ...          rank k lets k weight passes wait,
    rank 2         F0 F1 I0 F2 I1 F3 I2 W0 ...             and does them in the drain
    rank 3            F0 I0 F1 I1 F2 I2 F3 I3 W0 ...

A rank holds the activations of a micro-batch until its W. All ranks hold the same number.

Sources: Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024), schedule ZB-H1, on interleaved
stages as torch.distributed.pipelining has it (``ScheduleInterleavedZeroBubble``).
"""

from __future__ import annotations

from ddlbench.planning.schedules.action import Action, Schedule
from ddlbench.planning.schedules.assemble import with_messages, with_update
from ddlbench.planning.schedules.interleaved import (
    looped_ranks,
    looped_warmup,
    round_order,
    round_size,
)
from ddlbench.planning.schedules.one_f_one_b import alternate

__all__ = ["interleaved_zero_bubble"]


def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step; arguments and errors as of ``interleaved_1f1b``."""
    size = round_size(ranks, chunks, micro_batches)
    orders, in_flight = [], []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forwards = round_order("forward", list(stages), micro_batches, size)
        inputs = round_order("backward_input", list(stages)[::-1], micro_batches, size)
        warmup = looped_warmup(rank, ranks, chunks, size, hop=1)
        order = _with_weights(alternate(forwards, inputs, warmup), waiting=rank)
        orders.append(with_update(order, stages))
        in_flight.append(min(warmup + 1 + rank, len(forwards)))
    return Schedule(
        name="interleaved-zero-bubble",
        micro_batches=micro_batches,
        stage_ranks=looped_ranks(ranks, chunks),
        actions=with_messages(orders, looped_ranks(ranks, chunks)),
        in_flight=tuple(in_flight),
        receives_ahead=ranks - 1,
    )


def _with_weights(order: list[Action], waiting: int) -> list[Action]:
    """Each weight pass ``waiting`` input passes behind its own; the rest at the end."""
    result: list[Action] = []
    due: list[Action] = []
    for action in order:
        result.append(action)
        if action.kind == "backward_input":
            due.append(Action("backward_weight", action.stage, action.micro_batch))
            if len(due) > waiting:
                result.append(due.pop(0))
    return result + due
