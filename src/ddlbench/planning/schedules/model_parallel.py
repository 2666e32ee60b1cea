"""Model parallelism: PipeDream without input pipelining, one mini-batch at a time.

::

    rank 0   F0             B0 . F1             B1 .         . update
    rank 1      F0       B0 .       F1       B1 .
    rank 2         F0 B0 .             F1 B1 .               one rank works at a time

The weights are never stale, one version is kept. Stages are not replicated: the replicas of a
stage would wait for each other, each for a mini-batch that the first stage does not yet admit.

Source: DDLBench (Jansen et al., 2020), figure 5, which runs PipeDream's runtime so.
"""

from __future__ import annotations

from dataclasses import replace

from ddlbench.planning.schedules.action import Schedule
from ddlbench.planning.schedules.assemble import positive
from ddlbench.planning.schedules.pipedream import pipedream

__all__ = ["model_parallel"]


def model_parallel(stages: int, mini_batches: int, only_rank: int | None = None) -> Schedule:
    """The schedule of so many mini-batches, an update after each.

    ``only_rank`` as in :func:`~ddlbench.planning.schedules.pipedream.pipedream`.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(stages=stages)
    schedule = pipedream(
        (1,) * stages, mini_batches, warmup_counts=(0,) * stages, only_rank=only_rank
    )
    return replace(schedule, name="model-parallel")
