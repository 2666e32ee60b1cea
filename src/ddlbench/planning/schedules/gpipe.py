"""GPipe: all forward passes, then all backward passes (fill and drain).

::

    rank 0   F0 F1 F2 F3                         B3 B2 B1 B0   update
    rank 1      F0 F1 F2 F3                B3 B2 B1 B0         update
    rank 2         F0 F1 F2 F3       B3 B2 B1 B0               update
    rank 3            F0 F1 F2 F3 B3 B2 B1 B0                  update

With m micro-batches on p equal stages m / (m + p - 1) of the time is work. A rank holds all m
micro-batches, unless it recomputes activations.

Source: GPipe (Huang et al., NeurIPS 2019), figure 2c, where backward passes start with the last
micro-batch; torch.distributed.pipelining starts with the first (``last_first=False``).
"""

from __future__ import annotations

from ddlbench.planning.schedules.action import Schedule
from ddlbench.planning.schedules.assemble import passes, positive, with_messages, with_update

__all__ = ["gpipe"]


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
    stage_ranks = tuple((stage,) for stage in range(stages))
    return Schedule(
        name="gpipe",
        micro_batches=micro_batches,
        stage_ranks=stage_ranks,
        actions=with_messages(orders, stage_ranks),
        in_flight=(micro_batches,) * stages,
    )
