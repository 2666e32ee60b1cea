"""Real gloo processes that train cells one after the other, and sequential training beside them."""

from __future__ import annotations

import importlib
import multiprocessing
import traceback
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build, without_dropout
from ddlbench.planning.plan import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import Context

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
    store = None
    if plan.world_size > 1:
        store = torch.distributed.FileStore(str(store_file), plan.world_size)
    module, _, name = strategy_of(cell.strategy).executor.partition(":")
    executor = getattr(importlib.import_module(module), name)()
    context = Context(devices=(torch.device("cpu"),), store=store, interface="lo")
    data = Shard(cell, process) if process.needs else None
    executor.prepare(plan, process, network_of(cell), data, context)
    warm_up = executor.run(0, 1)
    record = executor.run(1, STEPS - 1)
    state = {name: value.clone() for name, value in executor.state_dict()["network"].items()}
    kept = sum(tensor.nbytes for tensor in executor.persistent_tensors())
    barrier(store, "done", plan.world_size)
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


def _serve(cells: list[Cell], rank: int, out: Path) -> None:
    torch.set_num_threads(1)
    found = []
    for number, cell in enumerate(cells):
        try:
            found.append(train_here(cell, rank, out / f"store{number}"))
        except BaseException:
            (out / f"rank{rank}.txt").write_text(f"{cell.id}\n{traceback.format_exc()}")
            raise
    torch.save(found, out / f"rank{rank}.pt")


def train(cells: list[Cell], out: Path, limit_s: float = 240) -> list[list[dict]]:
    """For each cell what every rank found; the cells have the same number of devices."""
    (world_size,) = {cell.devices for cell in cells}
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=_serve, args=(cells, rank, out)) for rank in range(world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=limit_s)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    said = "\n".join(path.read_text() for path in sorted(out.glob("rank*.txt")))
    assert codes == [0] * world_size, said or f"exit codes {codes}: a hang"
    of_rank = [torch.load(out / f"rank{rank}.pt", weights_only=False) for rank in range(world_size)]
    return [list(ranks_of_cell) for ranks_of_cell in zip(*of_rank, strict=True)]


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
