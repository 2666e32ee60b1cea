"""What one device trains, in a process of its own."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributed import Store

from ddlbench.equivalence.errors import TrialError
from ddlbench.equivalence.mini_batches import whole_batches
from ddlbench.equivalence.reference import Trained, train_in_parts
from ddlbench.equivalence.rounding import Floating, dtype_of, in_float64
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE
from ddlbench.networks import build, without_dropout
from ddlbench.networks.copying import copy_of
from ddlbench.networks.foreign import seed_host
from ddlbench.planning.planner import StrategyPlan, make_plan
from ddlbench.strategies.replay import replay_of
from ddlbench.strategies.training import make_loss


@dataclass(frozen=True)
class Reference:
    """A training on one device.

    Args:
        cell: of the strategy if it uses old weights or replicas, else of the base.
        steps: mini-batches.
        floating: type of floats.
        shards: parts of a mini-batch that ranks read.
        micro_batches: parts of a shard.
    """

    cell: Cell
    steps: int
    floating: Floating
    shards: int = 1
    micro_batches: int = 1

    @classmethod
    def of(cls, plan: StrategyPlan, steps: int, floating: Floating) -> Reference:
        """What the ranks of a plan together must train."""
        strategy, cell = plan.strategy, plan.cell
        if strategy.replay:
            return cls(cell, steps, floating)
        shards = max(process.num_shards for process in plan.processes)
        return cls(base_of(cell), steps, floating, shards, strategy.micro_batches(plan))


def base_of(cell: Cell) -> Cell:
    """The same network and settings on one device."""
    return cell.with_(strategy=BASE, nodes=1, devices_per_node=1, options=())


@dataclass(frozen=True)
class Timed:
    """What one device trained, and how long that took."""

    trained: Trained
    train_s: float


def built(cell: Cell) -> nn.Sequential:
    """The cell's network from its seed, without dropout."""
    return without_dropout(build(cell.network, DATASETS[cell.dataset], cell.seed))


def as_compared(network: nn.Sequential, floating: Floating) -> nn.Sequential:
    """The network without dropout, in the type of floats in which it is compared; in place."""
    plain = without_dropout(network)
    return in_float64(plain) if floating == "float64" else plain


def begin_as_a_process(cell: Cell, floating: Floating, rank: int) -> nn.Sequential:
    """The network as a new process builds it; then random numbers are those of the rank."""
    forget_seeds()
    network = as_compared(built(cell), floating)
    torch.manual_seed(cell.seed + rank)
    seed_host(cell.seed + rank)
    return network


def forget_seeds() -> None:
    """Begin with random states of this process's own: forks begin alike, processes do not."""
    random.seed()
    np.random.seed()
    torch.seed()


def expect(reference: Reference, _rank: int, _store: Store | None) -> Timed:
    """Train as one rank of a world of its own.

    Raises:
        TrialError: one device cannot train it.
    """
    try:
        begin_s = time.perf_counter()
        network = begin_as_a_process(reference.cell, reference.floating, 0)
        trained = train(reference, network)
        return Timed(trained, time.perf_counter() - begin_s)
    except BaseException as error:
        raise TrialError.of(error) from error


def train(reference: Reference, network: nn.Sequential) -> Trained:
    """Train a network, in place, as the strategy's ranks together do."""
    cell = reference.cell
    batches = list(whole_batches(cell, reference.steps, dtype_of(reference.floating)))
    loss_function = make_loss(cell)
    plan = make_plan(cell)
    replay = replay_of(plan.strategy)
    if replay is not None:
        count = plan.strategy.replayed_networks(plan)
        networks = [network, *(copy_of(network) for _ in range(count - 1))]
        losses = replay(plan, networks, [(reference.steps, batches)], loss_function)
        of_networks = [list(of_one) for of_one in zip(*losses, strict=True)]
        return Trained([one.state_dict() for one in networks], of_networks)
    return train_in_parts(
        cell,
        network,
        batches,
        loss_function,
        shards=reference.shards,
        micro_batches=reference.micro_batches,
    )
