r"""What one device trains of a cell, and what the ranks of the cell train, in a few steps.

One process trains what ranks train together, with each mini-batch in their parts::

    part 0 -> gradient \
    part 1 -> gradient -+-> mean -> update      a part: a micro-batch of a shard

Batch norm sees the samples of a part. Each shard has a module of its own with the same weights, so
that buffers, and what a module counts, are those of a rank. A rank trains with the cell's real
executor. Mini-batches are made up, the same in every process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import Store

from ddlbench.equivalence.rounding import Floating, TrialError, dtype_of, in_float64
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE
from ddlbench.networks import build, without_dropout
from ddlbench.networks.foreign import seed_host
from ddlbench.networks.inspection import copy_of
from ddlbench.planning.plan import Plan, Process
from ddlbench.planning.planner import StrategyPlan, make_plan
from ddlbench.runtime.initial_state import check_settings, initial_state
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import Context, executor_of
from ddlbench.strategies.training import (
    Batch,
    Loss,
    MeanCrossEntropy,
    make_optimizer,
    rate_of,
    replay_of,
)

State = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """What training ends with.

    Args:
        states: weights and buffers by name, of each shard or replica.
        losses: of each shard or replica, the mean loss of each step.
        train_s: how long it took.
    """

    states: list[State]
    losses: list[list[float]]
    train_s: float = 0.0


@dataclass(frozen=True)
class Training:
    """What one device or the ranks of a cell train.

    Args:
        cell: of the ranks; on one device that of the base, unless weights are old or replicas'.
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
    def of(cls, plan: StrategyPlan, steps: int, floating: Floating) -> Training:
        """What one device must train as the ranks of a plan do together."""
        strategy, cell = plan.strategy, plan.cell
        if strategy.replay:
            return cls(cell, steps, floating)
        shards = max(process.num_shards for process in plan.processes)
        return cls(base_of(cell), steps, floating, shards, strategy.micro_batches(plan))


def base_of(cell: Cell) -> Cell:
    """The same network and settings on one device."""
    return cell.with_(strategy=BASE, nodes=1, devices_per_node=1, options=())


def train_in_parts(
    cell: Cell,
    network: nn.Module,
    batches: Iterable[Batch],
    loss_function: Loss,
    *,
    shards: int = 1,
    micro_batches: int = 1,
) -> Trained:
    """Sequential training, with each mini-batch in equal parts whose gradients are averaged.

    Args:
        cell: its learning rate and momentum are used.
        network: trained in place.
        batches: one a step.
        loss_function: (outputs, labels) -> mean over the samples.
        shards: parts with modules of their own.
        micro_batches: parts of a shard, which follow each other.
    """
    network.train()
    optimizer = make_optimizer(cell, network.parameters())
    weights: dict[Tensor, Tensor] = {weight: weight for weight in network.parameters()}
    of_shards = [network, *(copy_of(network, weights) for _ in range(shards - 1))]
    losses: list[list[float]] = [[] for _ in range(shards)]
    for step, (inputs, labels) in enumerate(batches):
        optimizer.zero_grad()
        shares = zip(inputs.chunk(shards), labels.chunk(shards), strict=True)
        for shard, share in enumerate(shares):
            loss = 0.0
            parts = zip(*(tensor.chunk(micro_batches) for tensor in share), strict=True)
            for part_inputs, part_labels in parts:
                part_loss = loss_function(of_shards[shard](part_inputs), part_labels)
                (part_loss / (shards * micro_batches)).backward()
                loss += part_loss.item() / micro_batches
            losses[shard].append(loss)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(cell, step)
        optimizer.step()
    return Trained([optimizer.state_dict() for optimizer in of_shards], losses)


def global_batch(cell: Cell, number: int) -> dict[str, Tensor]:
    """The ``number``-th mini-batch: inputs (N, C, ...) in float64, labels (N,); tokens (N, T)."""
    generator = torch.Generator().manual_seed(1000 + number)
    spec = DATASETS[cell.dataset]
    shape = (cell.batch_size, *spec.shape)
    if spec.kind == "tokens":
        drawn = torch.randint(spec.num_classes, (2, *shape), generator=generator)
        return {"inputs": drawn[0], "labels": drawn[1]}
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(spec.num_classes, shape[:1], generator=generator)
    return {"inputs": inputs, "labels": labels}


def _as_read(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs in a type of floats; tokens stay as they are."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def whole_batches(cell: Cell, steps: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs, floats of them in ``dtype``, and labels of the first mini-batches."""
    for number in range(steps):
        batch = global_batch(cell, number)
        yield _as_read(batch["inputs"], dtype), batch["labels"]


class Reader:
    """The data stream of one process: its shard of its mini-batches, and only what it needs."""

    def __init__(self, cell: Cell, process: Process, dtype: torch.dtype = torch.float64) -> None:
        self.cell, self.process, self.dtype = cell, process, dtype

    def batches(self, first: int, count: int) -> Iterator[Any]:
        """What the process consumes of mini-batches ``first`` to ``first + count - 1``."""
        process = self.process
        for number in range(first + process.replica % process.turns, first + count, process.turns):
            whole = global_batch(self.cell, number)
            whole["inputs"] = _as_read(whole["inputs"], self.dtype)
            yield SimpleNamespace(
                **{
                    name: tensor.chunk(process.num_shards)[process.shard]
                    if name in process.needs
                    else None
                    for name, tensor in whole.items()
                }
            )


def built(cell: Cell) -> nn.Sequential:
    """The cell's network from its seed, without dropout."""
    return without_dropout(build(cell.network, DATASETS[cell.dataset], cell.seed))


def _as_compared(network: nn.Sequential, floating: Floating) -> nn.Sequential:
    """The network without dropout, in the type of floats in which it is compared; in place."""
    plain = without_dropout(network)
    return in_float64(plain) if floating == "float64" else plain


def begin_as_a_process(cell: Cell, floating: Floating, rank: int) -> nn.Sequential:
    """The network as a new process builds it; then random numbers are those of the rank."""
    _forget_seeds()
    network = _as_compared(built(cell), floating)
    torch.manual_seed(cell.seed + rank)
    seed_host(cell.seed + rank)
    return network


def _forget_seeds() -> None:
    """Begin with random states of this process's own: forks begin alike, processes do not."""
    random.seed()
    np.random.seed()
    torch.seed()


def expect(training: Training, _rank: int, _store: Store | None) -> Trained:
    """Train as one rank of a world of its own.

    Raises:
        TrialError: one device cannot train it.
    """
    try:
        begin_s = time.perf_counter()
        trained = train(training, begin_as_a_process(training.cell, training.floating, 0))
        return replace(trained, train_s=time.perf_counter() - begin_s)
    except BaseException as error:
        raise TrialError.of(error) from error


def train(training: Training, network: nn.Sequential) -> Trained:
    """Train a network, in place, as the strategy's ranks together do."""
    cell = training.cell
    batches = list(whole_batches(cell, training.steps, dtype_of(training.floating)))
    loss_function = MeanCrossEntropy()
    plan = make_plan(cell)
    replay = replay_of(plan.strategy)
    if replay is not None:
        count = plan.strategy.replayed_networks(plan)
        networks = [network, *(copy_of(network) for _ in range(count - 1))]
        losses = replay(plan, networks, [(training.steps, batches)], loss_function)
        of_networks = [list(of_one) for of_one in zip(*losses, strict=True)]
        return Trained([trained.state_dict() for trained in networks], of_networks)
    return train_in_parts(
        cell,
        network,
        batches,
        loss_function,
        shards=training.shards,
        micro_batches=training.micro_batches,
    )


@dataclass(frozen=True)
class RankTraining:
    """What one rank ends with.

    Args:
        role: of the process.
        shard: the part of each mini-batch that it read.
        state: its weights and buffers, under the names of the plain network.
        losses: of each step, over its samples; empty if it has none.
    """

    role: str
    shard: int
    state: State
    losses: list[float]


def context_of(
    plan: Plan, process: Process, store: Store | None, floating: torch.dtype = torch.float32
) -> Context:
    """A context whose devices are all this machine's processor, and whose data is ``floating``."""
    devices = tuple(torch.device("cpu") for _ in process.devices)
    return Context(devices=devices, store=store, interface="lo", floating=floating)


def train_rank(training: Training, rank: int, store: Store | None) -> RankTraining:
    """Train as one rank.

    Raises:
        TrialError: it did not train.
    """
    try:
        return _train_rank(training, rank, store)
    except BaseException as error:
        raise TrialError.of(error) from error


def _train_rank(training: Training, rank: int, store: Store | None) -> RankTraining:
    cell = training.cell
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor, floating = executor_of(cell), dtype_of(training.floating)
    _forget_seeds()
    initial = initial_state(plan, store, rank)
    network = _as_compared(initial.network, training.floating)
    data = Reader(cell, process, floating) if process.needs else None
    context = context_of(plan, process, store, floating)
    context.traits = initial.traits
    executor.prepare(plan, process, network, data, context)
    record = executor.run(0, training.steps)
    check_settings(initial.settings)
    state = {name: value.clone() for name, value in executor.state_dict()["network"].items()}
    barrier(store, "trained", plan.world_size)
    executor.close()
    return RankTraining(process.role, max(0, process.shard), state, list(record.loss))
