"""Accuracies of every strategy on learnable images, and of whole cells."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from local_cells import FSDP, local_site, odd_cell, run_one
from torch import nn

from ddlbench.datasets.loader import normalise
from ddlbench.datasets.synthetic import Content
from ddlbench.equivalence.one_device import context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.rendezvous import barrier
from ddlbench.runtime.validation import Validator
from ddlbench.strategies.executor import executor_of

BATCH, STEPS, EPOCHS, IMAGES = 16, 12, 3, 100
CHANCE = IMAGES // 10
THREE_AND_THREE, FOUR_STAGES = {"balance": "3+3"}, {"balance": "2+1+1+2"}
OPTIONS = {
    "gpipe": THREE_AND_THREE,
    "model-parallel": THREE_AND_THREE,
    "model-parallel-p2p": THREE_AND_THREE,
    "pipedream": THREE_AND_THREE,
    "pipe-gpipe": THREE_AND_THREE,
    "pipe-1f1b": THREE_AND_THREE,
    "data-tensor-pipe": {**THREE_AND_THREE, "group": 1},
    "pipe-interleaved": FOUR_STAGES,
    "pipe-zb": FOUR_STAGES,
    "pipe-zbv": FOUR_STAGES,
    "spatial": {"until": "pool"},
    "data-spatial": {"until": "pool"},
}


def cell_of(strategy: str, devices: int, **options: Any) -> Cell:
    return Cell(
        dataset="mnist",
        network="small",
        strategy=strategy,
        batch_size=BATCH,
        devices_per_node=devices,
        epochs=EPOCHS,
        learning_rate=0.1,
        options=tuple(sorted(options.items())),
        validate=True,
    )


ALL = [
    cell_of(name, 1 if name == "sequential" else 2, **OPTIONS.get(name, {}))
    for name in SHIPPED_STRATEGIES
]
TOGETHER = [cell for cell in ALL if cell.strategy not in ("horovod", "deepspeed")]
WORLDS = {
    "1 rank": [cell for cell in TOGETHER if make_plan(cell).world_size == 1],
    "2 ranks": [
        *(cell for cell in TOGETHER if make_plan(cell).world_size == 2),
        cell_of("parameter-server", 2, mode="async"),
    ],
    "horovod": [cell for cell in ALL if cell.strategy == "horovod"],
    "deepspeed": [cell for cell in ALL if cell.strategy == "deepspeed"],
    "3 ranks": [cell_of("pipedream", 3, balance="3+3", replicas="2+1")],
}
NEEDS = {
    "horovod": pytest.mark.skipif(
        importlib.util.find_spec("horovod") is None, reason="Horovod is not built here"
    ),
    "deepspeed": pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
    ),
}


def network() -> nn.Sequential:
    """Without batch norm, whose statistics differ from rank to rank.

    Its last block is a pair of linear layers, which tensor parallelism splits.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            OrderedDict(
                shrink=nn.AvgPool2d(2),
                conv=nn.Conv2d(1, 6, 3, padding=1),
                relu=nn.ReLU(),
                pool=nn.AdaptiveAvgPool2d(6),
                flatten=nn.Flatten(),
                head=nn.Sequential(nn.Linear(216, 64), nn.ReLU(), nn.Linear(64, 10)),
            )
        )


@cache
def content() -> Content:
    return Content(DATASETS["mnist"], 0)


class Drawn:
    """The validation images, in memory."""

    shape, num_classes = (1, 28, 28), 10

    def __len__(self) -> int:
        return IMAGES

    def gather(self, sample_ids: np.ndarray, *, pin_memory: bool = False) -> Any:
        first, count = int(sample_ids[0]), len(sample_ids)
        recipe = content().recipe("val", first, count)
        return torch.from_numpy(content().draw(recipe)), torch.from_numpy(recipe.labels)


class Reader:
    """This process's part of training batches."""

    def __init__(self, process: Any) -> None:
        self.process = process

    def batches(self, first: int, count: int) -> Any:
        process = self.process
        for number in range(first + process.replica % process.turns, first + count, process.turns):
            recipe = content().recipe("train", number * BATCH, BATCH)
            images = normalise(torch.from_numpy(content().draw(recipe)))
            parts = (
                images.chunk(process.num_shards),
                torch.from_numpy(recipe.labels).chunk(process.num_shards),
            )
            inputs, labels = (part[process.shard] for part in parts)
            yield SimpleNamespace(inputs=inputs, labels=labels)


def score_here(cell: Cell, rank: int, store: Any) -> list[tuple[int, int]]:
    """Train as one rank and validate after every epoch; steps and correct images."""
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor, context = executor_of(cell), context_of(plan, process, store)
    data = Reader(process) if process.needs else None
    executor.prepare(plan, process, network(), data, context)
    validation = Validator(
        network,
        Drawn(),
        rank=rank,
        world_size=plan.world_size,
        store=store,
        devices=context.devices,
        batch=32,
    )
    extent = Extent(1, EPOCHS, STEPS, validate_every_steps=STEPS)
    before = torch.get_rng_state()
    actual = measure(executor, extent, context.devices, 1, validation=validation)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(actual.measured.step_s) == EPOCHS * STEPS
    barrier(store, "done", plan.world_size)
    executor.close()
    return [(score.steps, score.correct) for score in actual.scores]


@cache
def scores_of(cells: tuple[Cell, ...]) -> list[list[tuple[int, int]]]:
    """Of rank 0; the others have none."""
    (world_size,) = {make_plan(cell).world_size for cell in cells}
    ranks = run_ranks(partial(score_here), cells, world_size)
    assert not any(score for of_cell in ranks for score in of_cell[1:])
    return [of_cell[0] for of_cell in ranks]


def test_every_strategy_is_here():
    assert {cell.strategy for cells in WORLDS.values() for cell in cells} == set(SHIPPED_STRATEGIES)


@pytest.mark.parametrize(
    "world",
    [pytest.param(name, marks=NEEDS.get(name, ())) for name in WORLDS],
)
def test_synchronous_strategies_have_the_accuracies_of_sequential_training(world):
    (sequential,) = scores_of((cell_of("sequential", 1),))
    assert [steps for steps, _ in sequential] == [12, 24, 36]
    assert sequential[-1][1] > 4 * CHANCE
    cells = WORLDS[world]
    for cell, actual in zip(cells, scores_of(tuple(cells)), strict=True):
        assert [steps for steps, _ in actual] == [12, 24, 36], cell.id
        if strategy_of(cell.strategy).is_synchronous(cell):
            assert actual == sequential, cell.id
        else:
            assert actual[-1][1] > 3 * CHANCE, cell.id


def test_a_whole_cell_counts_the_same_bytes_and_trains_the_same_with_validation(
    tmp_path, shared_cells
):
    """FSDP gathers its weights for the validation by the collectives that it trains with."""
    plain = shared_cells.run(FSDP).result
    validated, _ = run_one(FSDP.with_(validate=True), local_site(tmp_path), tmp_path)
    assert validated["status"] == "ok", validated["reason"]
    assert plain["validation"] == []
    assert validated["loss"] == plain["loss"]
    assert validated["communication"] == plain["communication"]
    epochs, seconds = validated["validation"], validated["timing"]["epochs"]
    assert [(epoch["epoch"], epoch["samples"]) for epoch in epochs] == [(1, 8), (2, 8)]
    assert [epoch["training_s"] for epoch in epochs] == pytest.approx(
        [seconds[0]["elapsed_s"], seconds[0]["elapsed_s"] + seconds[1]["elapsed_s"]]
    )
    assert all(epoch["accuracy"] == epoch["correct"] / 8 for epoch in epochs)


def test_a_cell_of_part_epochs_is_validated_once_at_its_end(tmp_path):
    cell = odd_cell("plain", "sequential", 1, max_steps=4, validate=True)
    result, _ = run_one(cell, local_site(tmp_path, 1), tmp_path)
    (only,) = result["validation"]
    assert (only["epoch"], only["samples"]) == (2, 8)
    assert only["training_s"] == pytest.approx(
        sum(epoch["elapsed_s"] for epoch in result["timing"]["epochs"])
    )
