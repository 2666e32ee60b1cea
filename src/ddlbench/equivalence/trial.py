"""One rank trains a cell's few steps with its real executor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed import Store

from ddlbench.equivalence.errors import TrialError
from ddlbench.equivalence.mini_batches import Reader
from ddlbench.equivalence.one_device import as_compared, forget_seeds
from ddlbench.equivalence.reference import State
from ddlbench.equivalence.rounding import Floating, dtype_of
from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan, Process
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.initial_state import check_settings, initial_state
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import Context, executor_of


@dataclass(frozen=True)
class Trial:
    """What all ranks of a cell do."""

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


def context_of(
    plan: Plan, process: Process, store: Store | None, floating: torch.dtype = torch.float32
) -> Context:
    """A context whose devices are all this machine's processor, and whose data is ``floating``."""
    devices = tuple(torch.device("cpu") for _ in process.devices)
    return Context(devices=devices, store=store, interface="lo", floating=floating)


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
    executor, floating = executor_of(cell), dtype_of(trial.floating)
    forget_seeds()
    initial = initial_state(plan, store, rank)
    network = as_compared(initial.network, trial.floating)
    data = Reader(cell, process, floating) if process.needs else None
    context = context_of(plan, process, store, floating)
    context.traits = initial.traits
    executor.prepare(plan, process, network, data, context)
    record = executor.run(0, trial.steps)
    check_settings(initial.settings)
    state = {name: value.clone() for name, value in executor.state_dict()["network"].items()}
    barrier(store, "trained", plan.world_size)
    executor.close()
    return RankTraining(process.role, max(0, process.shard), state, list(record.loss))
