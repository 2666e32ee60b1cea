"""1F1B with a flush: a forward pass, a backward pass, in turn.

::

    rank 0   F0 F1 F2 F3             B0 F4 B1 F5 B2    B3    B4    B5   update
    rank 1      F0 F1 F2          B0 F3 B1 F4 B2 F5 B3    B4    B5      update
    rank 2         F0 F1       B0 F2 B1 F3 B2 F4 B3 F5 B4    B5         update
    rank 3            F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5               update

The bubble is GPipe's, m / (m + p - 1) of the time is work, but rank s holds only p - s
micro-batches.

Sources: PipeDream-Flush (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML
2021) and Megatron-LM (Narayanan et al., SC 2021), figure 4 above.
"""

from __future__ import annotations

from ddlbench.planning.schedules.action import Action, Schedule
from ddlbench.planning.schedules.assemble import passes, positive, with_messages, with_update

__all__ = ["alternate", "one_f_one_b"]


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
    stage_ranks = tuple((stage,) for stage in range(stages))
    return Schedule(
        name="1f1b",
        micro_batches=micro_batches,
        stage_ranks=stage_ranks,
        actions=with_messages(orders, stage_ranks),
        in_flight=tuple(min(micro_batches, stages - stage) for stage in range(stages)),
    )


def alternate(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """``warmup`` forward passes, then one forward and one backward in turn, then the rest."""
    warmup = min(warmup, len(forwards))
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - warmup :]
