"""Cells of PipeDream with a small network, and the sequential replay of their delayed gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import make_plan
from ddlbench.testing.networks import network_of
from ddlbench.testing.training import global_batch

RUNS = ((0, 3), (3, 8))  # (first, count): warm-up, and the measured region


def cell_of(replicas: str, strategy: str = "pipedream", **options: Any) -> Cell:
    """A cell of the tiny network; the second of three or four stages has no weights."""
    counts = [int(count) for count in replicas.split("+")]
    balance = {1: 9, 2: "3+6", 3: "3+1+5", 4: "3+1+1+4"}[len(counts)]
    if strategy == "pipedream":
        options["replicas"] = replicas
    return Cell(
        dataset="mnist",
        network="tiny",
        strategy=strategy,
        batch_size=4,
        devices_per_node=sum(counts),
        learning_rate=0.05,
        options=tuple({"balance": balance, **options}.items()),
    )


# The replay: one process, no pipeline -----------------------------------------------------------


def replay(cell: Cell, version_of: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train with delayed gradients, one mini-batch after the other.

    ``version_of(stage, number)`` says how many updates of the run the weights of a stage have seen
    when they serve a mini-batch. SGD with momentum is written out: m = mu m + g, w = w - lr m.
    """
    network = network_of(cell)
    network.train()
    details = make_plan(cell).details
    stages = details["stages"]
    names = [block for block, _ in network.named_children()]
    owner = {
        name: next(
            s for s, (a, b, _) in enumerate(stages) if a <= names.index(name.split(".")[0]) < b
        )
        for name, _ in network.named_parameters()
    }
    newest = {name: p.detach().clone() for name, p in network.named_parameters()}
    momentum = {name: torch.zeros_like(value) for name, value in newest.items()}
    losses = []
    for first, count in RUNS:
        versions = [[dict(newest)] for _ in stages]
        waiting: list[list[dict]] = [[] for _ in stages]
        for number in range(count):
            used = {
                name: versions[stage][version_of(stage, number)][name].requires_grad_()
                for name, stage in owner.items()
            }
            batch = global_batch(cell, first + number)
            outputs = torch.func.functional_call(network, used, (batch["inputs"],))
            loss = nn.functional.cross_entropy(outputs, batch["labels"])
            losses.append(loss.item())
            found = dict(zip(used, torch.autograd.grad(loss, list(used.values())), strict=True))
            for stage, (_, _, replicas) in enumerate(stages):
                waiting[stage].append(found)
                if len(waiting[stage]) < replicas and number < count - 1:
                    continue
                rate = cell.learning_rate * replicas / stages[0][2]
                earliest = first + number + 1 - len(waiting[stage])
                rate *= min(1.0, (earliest + 1) / max(1, cell.learning_rate_warmup_steps))
                changed = {}
                for name in [name for name, place in owner.items() if place == stage]:
                    mean = torch.stack([g[name] for g in waiting[stage]]).mean(dim=0)
                    momentum[name] = cell.momentum * momentum[name] + mean
                    changed[name] = newest[name].detach() - rate * momentum[name]
                newest |= changed
                versions[stage].append(dict(newest))
                waiting[stage] = []
    weights = {name: value.detach() for name, value in newest.items()}
    return {**weights, **dict(network.named_buffers())}, losses
