"""One rank trains a cell's few steps with its real executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import Store

from ddlbench.equivalence.errors import TrialError
from ddlbench.equivalence.mini_batches import Reader
from ddlbench.equivalence.one_device import begin_as_a_process
from ddlbench.equivalence.reference import State
from ddlbench.equivalence.rounding import Floating, dtype_of
from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan, make_plan
from ddlbench.planning.strategy import Process
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import Context, DataStream, executor_of


@dataclass(frozen=True)
class Trial:
    """What all ranks of a cell do.

    Args:
        cell: of the strategy.
        steps: mini-batches.
        floating: type of floats.
    """

    cell: Cell
    steps: int
    floating: Floating


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


def context_of(plan: Plan, process: Process, store: Store | None) -> Context:
    """A context whose devices are all this machine's processor."""
    devices = tuple(torch.device("cpu") for _ in process.devices)
    return Context(devices=devices, store=store, interface="lo")


def refuse_or_prepare(
    executor: Any,
    plan: Plan,
    network: nn.Sequential,
    *,
    process: Process,
    data: DataStream | None,
    context: Context,
) -> None:
    """Place the network, as in every cell.

    Raises:
        Unsupported: the strategy cannot train this network.
    """
    executor.prepare(plan, process, network, data, context)


def train_rank(trial: Trial, rank: int, store: Store | None) -> RankTraining:
    """Train as one rank.

    Raises:
        TrialError: it did not train.
    """
    try:
        return _train_rank(trial, rank, store)
    except BaseException as error:
        raise TrialError.of(error) from error


def _train_rank(trial: Trial, rank: int, store: Store | None) -> RankTraining:
    cell = trial.cell
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    network = begin_as_a_process(cell, trial.floating, rank)
    data = Reader(cell, process, dtype_of(trial.floating)) if process.needs else None
    context = context_of(plan, process, store)
    refuse_or_prepare(executor, plan, network, process=process, data=data, context=context)
    record = executor.run(0, trial.steps)
    state = {name: value.clone() for name, value in executor.state_dict()["network"].items()}
    barrier(store, "trained", plan.world_size)
    executor.close()
    return RankTraining(process.role, max(0, process.shard), state, list(record.loss))
