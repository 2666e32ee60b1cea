"""Real gloo processes that train PipeDream's cells, and the sequential replay beside them."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from local_world import context_of, executor_of, train_all
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.plan import make_plan
from ddlbench.runtime.rendezvous import barrier

RUNS = ((0, 3), (3, 8))  # (first, count): warm-up, and the measured region


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, inputs):
        return inputs + torch.relu(self.norm(self.conv(inputs)))


class Turned(nn.Module):
    """Gives a view that is not contiguous."""

    def forward(self, inputs):
        return inputs.transpose(2, 3)


def tiny() -> nn.Sequential:
    """Eight blocks; the first has no weights, two give views, one is not contiguous."""
    return nn.Sequential(
        OrderedDict(
            shrink=nn.AvgPool2d(4),
            stem=nn.Conv2d(1, 4, 3, padding=1),
            block0=Residual(4),
            turned=Turned(),
            block1=Residual(4),
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
            head=nn.Linear(16, 10),
        )
    ).double()


def network_of(cell: Cell) -> nn.Sequential:
    torch.manual_seed(cell.seed)
    return tiny()


def mini_batch(cell: Cell, number: int) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(1000 + number)
    shape = DATASETS["mnist"].shape
    inputs = torch.randn(cell.batch_size, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 10, (cell.batch_size,), generator=generator)
    return SimpleNamespace(inputs=inputs, labels=labels)


class Turns:
    """What one process reads: whole mini-batches in its turn, nothing that it does not need."""

    def __init__(self, cell, process):
        self.cell, self.process = cell, process

    def batches(self, first, count):
        for number in range(first + self.process.replica, first + count, self.process.turns):
            batch = mini_batch(self.cell, number)
            for need in ("inputs", "labels"):
                if need not in self.process.needs:
                    setattr(batch, need, None)
            yield batch


def cell_of(replicas: str, strategy: str = "pipedream", **options: Any) -> Cell:
    """A cell of the tiny network; the second of three or four stages has no weights."""
    counts = [int(count) for count in replicas.split("+")]
    balance = {1: 8, 2: "3+5", 3: "3+1+4", 4: "3+1+1+3"}[len(counts)]
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


def train_here(cell: Cell, rank: int, store_file: Path) -> dict:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store_file)
    data = Turns(cell, process) if process.needs else None
    executor.prepare(plan, process, network_of(cell), data, context)
    records = [executor.run(first, count) for first, count in RUNS]
    empty = executor.run(11, 0)
    kept = sum(tensor.nbytes for tensor in executor.persistent_tensors())
    barrier(context.store, "done", plan.world_size)
    executor.close()
    return {
        "state": {k: v.clone() for k, v in executor.state_dict()["network"].items()},
        "loss": [loss for record in records for loss in record.loss],
        "ids": [number for record in records for number in record.ids],
        "steps": [len(record.step_s) for record in records],
        "empty": empty.step_s,
        "loads": [len(record.load_s) for record in records],
        "spans": records[1].spans,
        "wait_s": records[1].communication_wait_s,
        "details": executor.details(),
        "versions": executor.parts.versions.most,
        "kept_bytes": kept,
    }


def train(cells: list[Cell], out: Path, limit_s: float = 240) -> list[list[dict]]:
    """For each cell what every rank found; a world that hangs is killed and says where it was."""
    (world_size,) = {cell.devices for cell in cells}
    return train_all(train_here, cells, world_size, out, limit_s)


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
            batch = mini_batch(cell, first + number)
            outputs = torch.func.functional_call(network, used, (batch.inputs,))
            loss = nn.functional.cross_entropy(outputs, batch.labels)
            losses.append(loss.item())
            found = dict(zip(used, torch.autograd.grad(loss, list(used.values())), strict=True))
            for stage, (_, _, replicas) in enumerate(stages):
                waiting[stage].append(found)
                if len(waiting[stage]) < replicas and number < count - 1:
                    continue
                rate = cell.learning_rate * replicas / stages[0][2]
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
