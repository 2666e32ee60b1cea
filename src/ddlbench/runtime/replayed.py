"""First losses of a strategy with older weights, as one device gives them.

One device cannot tell whether such a strategy trains right: its weights are others on purpose. So
rank 0 replays the first mini-batches once all is measured, with the weights that each of them is to
have::

    all ranks   prepare | warm-up | measured steps | spans | leave
    rank 0                                                       | replay of the first 8 losses
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from ddlbench.datasets.loader import BatchLoader, EpochStream
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.staging import hold
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.site import Accelerator
from ddlbench.experiment.training import FIRST_STEPS
from ddlbench.runtime.job import Job
from ddlbench.runtime.loop import Extent
from ddlbench.strategies.replay import Run, replay_of
from ddlbench.strategies.training import make_loss

_MOST_S = 20.0  # a replay costs no more


def replayed_losses(
    job: Job,
    extent: Extent,
    build: Callable[[], nn.Module],
    device: torch.device,
    alive: Callable[[], None],
) -> tuple[float, ...]:
    """Mean losses of the first mini-batches; none where there is no replay, or it fails."""
    plan = job.plan
    strategy, replay = plan.strategy, replay_of(plan.strategy)
    if replay is None or strategy.is_synchronous(plan.cell, plan.details):
        return ()
    if Accelerator.of_this_process() is not None:  # its networks compute nothing
        return ()
    losses: list[float] = []
    try:
        networks = [build().to(device) for _ in range(strategy.replayed_networks(plan))]
        begin_s = time.monotonic()
        for of_networks in replay(plan, networks, _runs(job, extent, device), make_loss(plan.cell)):
            losses.append(sum(of_networks) / len(of_networks))
            alive()
            if len(losses) == FIRST_STEPS or time.monotonic() - begin_s > _MOST_S:
                break
    except (RuntimeError, MemoryError):  # the result is complete without it
        traceback.print_exc()
    return tuple(losses)


def _runs(job: Job, extent: Extent, device: torch.device) -> Iterator[Run]:
    """The mini-batches of each call of the executor's ``run``, whole."""
    cell = job.plan.cell
    loader = BatchLoader(
        open_split(hold(job.data, scratch_dir(job.scratch)), job.data, "train"),
        global_batch=cell.batch_size,
        seed=cell.seed,
        device=device,
    )
    loader.start()
    stream = EpochStream(loader, extent.warmup_steps, extent.steps_per_epoch)
    runs: Sequence[range] = (range(extent.warmup_steps), *extent.segments())
    for run in runs:
        batches = stream.batches(run.start, len(run))
        yield len(run), ((batch.inputs, batch.labels) for batch in batches)
