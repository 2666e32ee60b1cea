"""Real processes that train cells straight, with checkpoints, and on from a checkpoint."""

from __future__ import annotations

import random
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from local_world import context_of, executor_of, train_all
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.plan import make_plan
from ddlbench.runtime.checkpoint import open_checkpoints
from ddlbench.runtime.checkpoint_sets import Order, rank_file, set_folder
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.random_state import random_state
from ddlbench.runtime.rendezvous import barrier
from ddlbench.runtime.state_file import read_state, write_state

WARMUP, STEPS, EVERY = 2, 6, 3


def tiny() -> nn.Sequential:
    """Nine blocks with weights, statistics of a batch, and random numbers."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(1, 8, 3, stride=2, padding=1),
            norm=nn.BatchNorm2d(8),
            relu=nn.ReLU(),
            drop=nn.Dropout(0.25),
            conv=nn.Conv2d(8, 8, 3, padding=1),
            norm2=nn.BatchNorm2d(8),
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
            head=nn.Linear(32, 10),
        )
    )


def cell_of(strategy: str, devices: int, **options: Any) -> Cell:
    return Cell(
        dataset="mnist",
        network="tiny",
        strategy=strategy,
        batch_size=12,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


class Part:
    """What one process reads of a mini-batch: its shard, in its turn, and only what it needs."""

    def __init__(self, cell, process):
        self.cell, self.process = cell, process

    def batches(self, first, count):
        process = self.process
        for number in range(first + process.replica % process.turns, first + count, process.turns):
            generator = torch.Generator().manual_seed(1000 + number)
            shape = (self.cell.batch_size, *DATASETS[self.cell.dataset].shape)
            whole = {
                "inputs": torch.randn(shape, generator=generator),
                "labels": torch.randint(0, 10, shape[:1], generator=generator),
            }
            yield SimpleNamespace(
                **{
                    name: tensor.chunk(process.num_shards)[process.shard]
                    if name in process.needs
                    else None
                    for name, tensor in whole.items()
                }
            )


def _train(cell: Cell, rank: int, store_file: Path, *, run: str, resume: bool) -> dict:
    """One rank; ``run`` "plain" writes no checkpoint."""
    folder = store_file.parent.parent / "checkpoints" / store_file.name
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store_file)
    order = None
    if run != "plain":
        before = set_folder(folder, EVERY, "first").name if resume else None
        order = Order(str(folder), {"cell_id": cell.id}, run, before, "test")
    checkpoints = open_checkpoints(
        order, executor, rank, plan.world_size, store=context.store, devices=context.devices
    )
    context.fixed = {} if checkpoints is None else checkpoints.fixed()
    # Weights and random numbers of another seed: only a checkpoint can bring the right ones.
    torch.manual_seed(99 if resume else 1)
    network = tiny()
    torch.manual_seed(cell.seed + rank + (99 if resume else 0))
    random.seed(cell.seed + rank + (99 if resume else 0))
    data = Part(cell, process) if process.needs else None
    executor.prepare(plan, process, network, data, context)
    extent = Extent(WARMUP, 1, STEPS, 0 if checkpoints is None else EVERY)
    found = measure(executor, extent, context.devices, 1, checkpoints=checkpoints)
    end = {"executor": executor.checkpoint_state(), "random": random_state(context.devices)}
    write_state(folder / f"{run}-{rank}", end)
    barrier(context.store, "done", plan.world_size)
    executor.close()
    return {
        "loss": found.warmup.loss + found.measured.loss,
        "ids": found.measured.ids,
        "steps": len(found.measured.step_s),
        "saves": 0 if checkpoints is None else len(checkpoints.report()["save_s"]),
    }


def train(cells: list[Cell], out: Path, run: str) -> list[list[dict]]:
    """For each cell what every rank found: "plain", "first" with checkpoints, "second" resumed."""
    (world_size,) = {make_plan(cell).world_size for cell in cells}
    (out / run).mkdir()
    work = partial(_train, run=run, resume=run == "second")
    return train_all(work, cells, world_size, out / run)


def end_of(out: Path, number: int, run: str, ranks: int) -> list[dict]:
    """The state of every rank at the end of a run of the ``number``-th cell."""
    folder = out / "checkpoints" / f"store{number}"
    return [read_state(folder / f"{run}-{rank}") for rank in range(ranks)]


def saved(out: Path, number: int, run: str, rank: int) -> dict:
    """The file of a rank behind the last step."""
    folder = out / "checkpoints" / f"store{number}"
    return read_state(rank_file(set_folder(folder, STEPS, run), rank))


def assert_same(found: Any, expected: Any, place: str) -> None:
    """Bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, place
        assert torch.equal(found, expected), place
    elif isinstance(expected, dict):
        assert list(found) == list(expected), place
        for key, value in expected.items():
            assert_same(found[key], value, f"{place}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for index, value in enumerate(expected):
            assert_same(found[index], value, f"{place}/{index}")
    else:
        assert found == expected, place
