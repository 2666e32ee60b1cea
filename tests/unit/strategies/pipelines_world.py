"""Real gloo processes that train cells one after the other, and sequential training beside them."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import torch
from local_world import context_of, executor_of, train_all
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build, without_dropout
from ddlbench.planning.plan import make_plan
from ddlbench.runtime.rendezvous import barrier

STEPS = 4


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, inputs):
        return inputs + torch.relu(self.norm(self.conv(inputs)))


class Mean(nn.Module):
    """Its gradient is one number seen many times: not contiguous."""

    def forward(self, inputs):
        return inputs.mean(dim=(2, 3), keepdim=True)


class Turned(nn.Module):
    """Gives a view that is not contiguous."""

    def forward(self, inputs):
        return inputs.transpose(2, 3)


def tiny() -> nn.Sequential:
    """Nine blocks; the first has no weights, two give views, one is not contiguous."""
    return nn.Sequential(
        OrderedDict(
            shrink=nn.AvgPool2d(4),
            stem=nn.Conv2d(1, 6, 3, padding=1),
            block0=Residual(6),
            turned=Turned(),
            block1=Residual(6),
            relu=nn.ReLU(),
            mean=Mean(),
            flatten=nn.Flatten(),
            head=nn.Linear(6, 10),
        )
    )


def network_of(cell: Cell) -> nn.Sequential:
    if cell.network != "tiny":
        return without_dropout(build(cell.network, DATASETS[cell.dataset], cell.seed)).double()
    torch.manual_seed(cell.seed)
    return tiny().double()


def global_batch(cell: Cell, step: int):
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(
        cell.batch_size, *DATASETS["mnist"].shape, generator=generator, dtype=torch.float64
    )
    return inputs, torch.randint(0, 10, (cell.batch_size,), generator=generator)


class Shard:
    """What one process reads of every global batch: nothing that it does not need."""

    def __init__(self, cell, process):
        self.cell, self.process = cell, process

    def batches(self, first, count):
        part, parts, needs = self.process.shard, self.process.num_shards, self.process.needs
        for step in range(first, first + count):
            inputs, labels = global_batch(self.cell, step)
            yield SimpleNamespace(
                inputs=inputs.chunk(parts)[part] if "inputs" in needs else None,
                labels=labels.chunk(parts)[part] if "labels" in needs else None,
            )


def train_here(cell: Cell, rank: int, store_file: Path) -> dict:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store_file)
    data = Shard(cell, process) if process.needs else None
    executor.prepare(plan, process, network_of(cell), data, context)
    warm_up = executor.run(0, 1)
    record = executor.run(1, STEPS - 1)
    state = {name: value.clone() for name, value in executor.state_dict()["network"].items()}
    kept = sum(tensor.nbytes for tensor in executor.persistent_tensors())
    barrier(context.store, "done", plan.world_size)
    executor.close()
    return {
        "state": state,
        "loss": warm_up.loss + record.loss,
        "ids": record.ids,
        "spans": record.spans,
        "wait_s": record.communication_wait_s,
        "details": executor.details(),
        "kept_bytes": kept,
    }


def train(cells: list[Cell], out: Path, limit_s: float = 240) -> list[list[dict]]:
    """For each cell what every rank found; the cells have the same number of devices."""
    (world_size,) = {cell.devices for cell in cells}
    return train_all(train_here, cells, world_size, out, limit_s)


def sequential(cell: Cell, parts: int) -> tuple[dict, list[float]]:
    """Weights and losses of plain training that sees each batch in ``parts`` equal parts."""
    network = network_of(cell)
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), cell.learning_rate, cell.momentum)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = global_batch(cell, step)
        total = 0.0
        for part_inputs, part_labels in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            loss = nn.functional.cross_entropy(network(part_inputs), part_labels) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return network.state_dict(), losses
