"""Real gloo processes that train a parameter server's cells; sequential training beside them."""

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

RUNS = ((0, 2), (2, 4))  # (first, count): warm-up, and the measured region
FEW_BYTES = 256  # messages that part every tensor but the smallest


class Odd(nn.Module):
    """A weight that is used twice, one that nothing uses, one that is not trained."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.twice = nn.Parameter(torch.eye(features) + 0.1 * torch.randn(features, features))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(features), requires_grad=False)

    def forward(self, inputs):
        return torch.tanh(inputs @ self.twice) @ self.twice + self.frozen


def _odd() -> nn.Sequential:
    blocks = OrderedDict(
        shrink=nn.AvgPool2d(4), flatten=nn.Flatten(), odd=Odd(49), head=nn.Linear(49, 10)
    )
    return nn.Sequential(blocks)


def _normed() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            shrink=nn.AvgPool2d(4),
            stem=nn.Conv2d(1, 6, 3, padding=1, bias=False),
            norm=nn.BatchNorm2d(6),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
            head=nn.Linear(24, 10),
        )
    )


def _linear() -> nn.Sequential:
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(784, 10)))


def network_of(cell: Cell) -> nn.Sequential:
    torch.manual_seed(cell.seed)
    return {"odd": _odd, "normed": _normed, "linear": _linear}[cell.network]().double()


def loss_of(cell: Cell) -> Any:
    """The mean of a linear network's outputs has one gradient, whatever the weights."""
    if cell.network == "linear":
        return lambda outputs, labels: (outputs * labels[:, None]).mean()
    return nn.CrossEntropyLoss()


def global_batch(cell: Cell, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + number)
    shape = DATASETS["mnist"].shape
    inputs = torch.randn(cell.batch_size, *shape, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 10, (cell.batch_size,), generator=generator)


class Shard:
    """The part of every global batch that one worker consumes."""

    def __init__(self, cell, process):
        self.cell, self.process = cell, process

    def batches(self, first, count):
        for number in range(first, first + count):
            inputs, labels = global_batch(self.cell, number)
            part, parts = self.process.shard, self.process.num_shards
            yield SimpleNamespace(
                inputs=inputs.chunk(parts)[part], labels=labels.chunk(parts)[part]
            )


def cell_of(servers: int, workers: int, network: str = "odd", **options: Any) -> Cell:
    momentum = options.pop("momentum", 0.9)
    if servers > 1:
        options["servers"] = servers
    return Cell(
        dataset="mnist",
        network=network,
        strategy="parameter-server",
        batch_size=12,
        warmup_steps=RUNS[0][1],
        devices_per_node=servers + workers,
        learning_rate=0.05,
        momentum=momentum,
        options=tuple(options.items()),
    )


def train_here(cell: Cell, rank: int, store_file: Path) -> dict:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store_file)
    done: list[int] = []
    context.progress = done.append
    data = Shard(cell, process) if process.needs else None
    executor.prepare(plan, process, network_of(cell), data, context)
    executor.loss_function = loss_of(cell)
    records = [executor.run(first, count) for first, count in RUNS]
    empty = executor.run(6, 0)
    found = {
        "role": process.role,
        "state": {k: v.clone() for k, v in executor.state_dict()["network"].items()},
        "loss": [loss for record in records for loss in record.loss],
        "ids": [number for record in records for number in record.ids],
        "steps": [len(record.step_s) for record in [*records, empty]],
        "loads": [len(record.load_s) for record in [*records, empty]],
        "kinds": {kind for kind, *_ in records[1].spans},
        "wait_s": records[1].communication_wait_s,
        "progress": done,
        "details": executor.details(),
        "kept_bytes": sum(tensor.nbytes for tensor in executor.persistent_tensors()),
    }
    barrier(context.store, "done", plan.world_size)
    executor.close()
    return found


def train(cells: list[Cell], out: Path) -> list[list[dict]]:
    """For each cell what every rank found."""
    (world_size,) = {cell.devices for cell in cells}
    return train_all(train_here, cells, world_size, out)


def reference(cell: Cell, parts: int) -> tuple[dict, list[float]]:
    """Sequential training that sees each global batch in ``parts`` equal parts."""
    network = network_of(cell).train()
    optimizer = torch.optim.SGD(network.parameters(), cell.learning_rate, cell.momentum)
    losses = []
    for number in range(sum(count for _, count in RUNS)):
        optimizer.zero_grad()
        inputs, labels = global_batch(cell, number)
        total = 0.0
        for part in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            loss = loss_of(cell)(network(part[0]), part[1]) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return network.state_dict(), losses
