"""Cells of PipeDream with a small network, and the sequential replay of their delayed gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddlbench.equivalence.one_device import whole_batches
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.strategies.pipedream.executor import OldWeights
from ddlbench.testing.training import network_of

RUNS = ((0, 3), (3, 8))  # (first, count): warm-up, and the measured region


def cell_of(replicas: str, strategy: str = "pipedream", **options: Any) -> Cell:
    """A cell of the tiny network; the second of three or four stages has no weights."""
    counts = [int(count) for count in replicas.split("+")]
    balance = {1: 9, 2: "3+6", 3: "3+1+5", 4: "3+1+1+4"}[len(counts)]
    if strategy == "pipedream":
        options["replicas"] = replicas
    return Cell(
        dataset="mnist",
        network="small_networks:tiny",
        strategy=strategy,
        batch_size=4,
        devices_per_node=sum(counts),
        learning_rate=0.05,
        options=tuple({"balance": balance, **options}.items()),
    )


def replay(cell: Cell, version_of: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train with delayed gradients, one mini-batch after the other.

    ``version_of(stage, number)`` says how many updates of the run the weights of a stage have seen
    when they serve a mini-batch.
    """
    batches = list(whole_batches(cell, sum(count for _, count in RUNS), torch.float64))
    runs = [(count, batches[first : first + count]) for first, count in RUNS]
    network, stages = network_of(cell), make_plan(cell).details["stages"]
    training = OldWeights(cell, network, stages, lambda _count: version_of)
    losses = list(training.train(runs, nn.functional.cross_entropy))
    return network.state_dict(), losses
