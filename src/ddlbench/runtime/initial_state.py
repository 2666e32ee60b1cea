"""What a rank begins with, and whether that is right: weights, settings, and first losses.

::

    build, digest | same weights on all ranks? | can the strategy train it? | prepare | warm-up |
                                                                    settings as before? |

One device cannot tell whether a strategy with older weights trains right: its weights are others on
purpose. So rank 0 replays the first mini-batches once all is measured, with the weights that each
of them is to have::

    all ranks   prepare | warm-up | measured steps | spans | leave
    rank 0                                                       | replay of the first 8 losses
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddlbench.datasets.loader import BatchLoader, EpochStream
from ddlbench.datasets.loading import open_held
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.site import Accelerator
from ddlbench.experiment.training import FIRST_STEPS
from ddlbench.networks.factory import build_with_traits
from ddlbench.networks.foreign import seed_host
from ddlbench.networks.inputs import Settings, change_between, settings_now
from ddlbench.networks.inspection import inspect, state_digest
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.trainable import samples_per_pass, why_not_trained
from ddlbench.runtime.job import Job
from ddlbench.runtime.loop import Extent
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.training import MeanCrossEntropy, Run, replay_of

_KEY = "initial weights"


@dataclass(frozen=True)
class InitialState:
    """What a rank begins with."""

    network: nn.Sequential
    traits: NetworkTraits
    digest: str
    settings: Settings

    def report(self) -> dict[str, Any]:
        """The fields of the rank's report."""
        return {
            "initial_digest": self.digest,
            "batch_norm": self.traits.batch_norm,
            "random": self.traits.random,
            "torch_settings": dict(self.settings),
        }


def initial_state(
    plan: StrategyPlan, store: dist.Store | None, rank: int, device_kind: str = "cpu"
) -> InitialState:
    """Build the network, check that the plan can train it, and seed the rank's random numbers.

    Raises:
        Unsupported: the strategy cannot train the network as one device does, or ranks would begin
            with different weights.
        ConfigError: it cannot be built.
    """
    cell, spec = plan.cell, DATASETS[plan.cell.dataset]
    settings = settings_now()
    network, traits = build_with_traits(
        cell.network, spec, cell.seed, with_pairs=plan.strategy.splits_pairs
    )
    if traits.batch_norm and not traits.blocks and samples_per_pass(plan) == 1:
        traits = inspect(network, spec)  # a built-in network, too, may have too few samples
    if (why := why_not_trained(traits, plan, device_kind)) is not None:
        raise Unsupported(why)
    digest = state_digest(network)
    _check_alike(digest, store, rank)
    torch.manual_seed(cell.seed + rank)
    seed_host(cell.seed + rank)
    return InitialState(network, traits, digest, settings)


def _check_alike(digest: str, store: dist.Store | None, rank: int) -> None:
    """Raise Unsupported unless a rank begins with rank 0's weights."""
    if store is None:
        return
    if rank == 0:
        store.set(_KEY, digest)
    elif store.get(_KEY).decode() != digest:
        raise Unsupported(
            "the ranks build networks with different initial weights, so these do not follow from "
            "the seed; draw them from torch, numpy or random, without a seed of your own",
            code="initial_weights_differ",
        )


def check_settings(settings: Settings) -> None:
    """Check torch's settings after the warm-up, or after the last measured step.

    Raises:
        Unsupported: the network has changed some of them.
    """
    changed = change_between(settings, settings_now())
    if changed is not None:
        raise Unsupported(
            f"torch's settings changed while the network trained: {changed}; remove what sets them "
            "from its forward and backward passes",
            code="settings_changed",
        )


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
        for of_networks in replay(plan, networks, _runs(job, extent, device), MeanCrossEntropy()):
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
        open_held(job.data, job.scratch, "train"),
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
