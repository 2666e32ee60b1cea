"""The speed-up that a pipeline's own schedule allows: equal stages, free messages, no overhead.

::

    rank 0   F0 F1 F2 F3                   B0 B1 B2 B3       m micro-batches on p equal stages with
    rank 1      F0 F1 F2 F3             B0 B1 B2 B3          a flush: p m / (m + p - 1)
    rank 2         F0 F1 F2 F3       B0 B1 B2 B3

A backward pass is taken as two forward passes; where a schedule splits it, as one for the inputs
and one for the weights. What a measured pipeline stays below this is messages, uneven stages and
overhead; what this stays below the number of devices is the bubble.

Sources: GPipe (Huang et al. 2019), section 2; Megatron-LM (Narayanan et al. 2021), section 2.2, for
interleaving; PipeDream (Narayanan et al. 2019), section 3.2: no flush, no bubble.
"""

from __future__ import annotations

from ddlbench.experiment.cell import Cell
from ddlbench.planning.gpipe import GPipe
from ddlbench.planning.model_parallel import ModelParallel
from ddlbench.planning.pipedream import ModelParallelP2p, PipeDream
from ddlbench.planning.pipelines import SynchronousPipeline
from ddlbench.planning.schedules import Schedule, StageDurations, replay
from ddlbench.planning.strategy import strategy_of

__all__ = ["ideal_speedup"]


def ideal_speedup(cell: Cell) -> float | None:
    """Highest speed-up over one device; None for a strategy that is no pipeline.

    torchgpipe's recomputation of forward passes is not taken off: it is the strategy's own cost.

    Raises:
        InvalidSchedule: the cell's numbers make no schedule.
    """
    strategy = strategy_of(cell.strategy)
    if isinstance(strategy, SynchronousPipeline):
        replicas = int(strategy.option_values(cell)["replicas"])
        return replicas * _of_one(strategy.pipeline_schedule(cell))
    if isinstance(strategy, GPipe):
        chunks = int(strategy.option_values(cell)["chunks"])
        return cell.devices * chunks / (chunks + cell.devices - 1)
    if isinstance(strategy, PipeDream):
        return float(cell.devices)
    if isinstance(strategy, ModelParallel | ModelParallelP2p):
        return 1.0
    return None


def _of_one(schedule: Schedule) -> float:
    stages = schedule.num_stages
    passes = StageDurations(forward_s=[1 / stages] * stages, backward_s=[2 / stages] * stages)
    return 3 * schedule.micro_batches / replay(schedule, passes).end_s
