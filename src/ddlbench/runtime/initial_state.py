"""What a rank begins with: the network, its weights, torch's settings; and that they are right.

::

    build, digest | same weights on all ranks? | can the strategy train it? | prepare | warm-up |
                                                                    settings as before? |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.digest import state_digest
from ddlbench.networks.factory import build_with_traits
from ddlbench.networks.foreign import seed_host
from ddlbench.networks.inspection import inspect
from ddlbench.networks.torch_settings import Settings, change_between, settings_now
from ddlbench.planning.network_traits import NetworkTraits
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.trainable import samples_per_pass, why_not_trained
from ddlbench.strategies.executor import Unsupported

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


def initial_state(plan: StrategyPlan, store: dist.Store | None, rank: int) -> InitialState:
    """Build the network, check that the plan can train it, and seed the rank's random numbers.

    Raises:
        Unsupported: the strategy cannot train the network as one device does, or ranks would begin
            with different weights.
        ConfigError: it cannot be built.
    """
    cell, spec = plan.cell, DATASETS[plan.cell.dataset]
    settings = settings_now()
    network, traits = build_with_traits(cell.network, spec, cell.seed)
    if traits.batch_norm and not traits.blocks and samples_per_pass(plan) == 1:
        traits = inspect(network, spec)  # a built-in network, too, may have too few samples
    if (why := why_not_trained(traits, plan)) is not None:
        raise Unsupported(why)
    digest = state_digest(network)
    check_alike(digest, store, rank)
    torch.manual_seed(cell.seed + rank)
    seed_host(cell.seed + rank)
    return InitialState(network, traits, digest, settings)


def check_alike(digest: str, store: dist.Store | None, rank: int) -> None:
    """Check that a rank begins with rank 0's weights.

    Raises:
        Unsupported: it does not.
    """
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
