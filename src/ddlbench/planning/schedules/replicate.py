"""Data parallelism outside: copies of a synchronous pipeline that average their gradients.

::

    pipeline 0, rank 0..p-1     micro-batches 0, d, 2d, ...        the ranks of one stage meet
    pipeline 1, rank p..2p-1    micro-batches 1, d+1, 2d+1, ...    in an all-reduce before
    ...                                                            the update

Source: torch.distributed.pipelining's way to combine pipeline and data parallelism, a mesh of
pipelines; Megatron-LM (Narayanan et al., SC 2021), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddlbench.planning.schedules.action import Action, InvalidSchedule, Schedule
from ddlbench.planning.schedules.assemble import positive

__all__ = ["replicate"]


def replicate(schedule: Schedule, copies: int) -> Schedule:
    """So many copies of a schedule with one replica a stage; ranks copy by copy.

    Raises:
        InvalidSchedule: stages are replicated already, or the copies are none.
    """
    positive(copies=copies)
    if any(len(ranks) > 1 for ranks in schedule.stage_ranks):
        raise InvalidSchedule(f"{schedule.name} replicates stages already; choose its replicas")
    if copies == 1:
        return schedule
    size = schedule.world_size

    def copied(action: Action, copy: int) -> Iterator[Action]:
        if action.kind == "update":
            yield Action("all_reduce", action.stage, action.micro_batch)
            yield action
        else:
            peer = None if action.peer is None else action.peer + copy * size
            yield replace(action, micro_batch=action.micro_batch * copies + copy, peer=peer)

    return replace(
        schedule,
        micro_batches=schedule.micro_batches * copies,
        stage_ranks=tuple(
            tuple(rank + copy * size for copy in range(copies)) for (rank,) in schedule.stage_ranks
        ),
        actions=tuple(
            tuple(new for action in actions for new in copied(action, copy))
            for copy in range(copies)
            for actions in schedule.actions
        ),
        in_flight=schedule.in_flight * copies,
    )
