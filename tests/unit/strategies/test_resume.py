"""Every strategy goes on from its checkpoint, in new processes, bit for bit.

::

    plain    warm-up | 1 2 3 4 5 6                                no checkpoint
    first    warm-up | 1 2 3 | save | 4 5 6 | save
    second   other weights, rehearsal | load | 4 5 6 | save       new processes

``second`` ends as ``first`` does: weights, statistics, momentum, random numbers, losses. Where
updates are synchronous ``plain`` does too: a checkpoint changes nothing. PipeDream's checkpoints
drain its pipeline, so it is compared with a run that drained at the same step.
"""

from __future__ import annotations

import importlib.util
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks.networks import network_with_dropout
from ranks.pool import run_ranks
from ranks.world import Reader, assert_same_bits, context_of, executor_of
from torch.distributed import Store

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import STRATEGIES
from ddlbench.planning.plan import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.checkpoint import open_checkpoints
from ddlbench.runtime.checkpoint_sets import Order, rank_file, set_folder
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.random_state import random_state
from ddlbench.runtime.rendezvous import barrier
from ddlbench.runtime.state_file import read_state, write_state
from ddlbench.strategies.executor import Context
from ddlbench.strategies.torchgpipe import executor as torchgpipe_executor
from ddlbench.strategies.torchgpipe.executor import GPipeExecutor

WARMUP, STEPS, EVERY = 2, 6, 3
RUNS = ("plain", "first", "second")
TWO_STAGES, FOUR_STAGES = {"balance": "5+5"}, {"balance": "3+2+2+3"}
OPTIONS = {
    "gpipe": TWO_STAGES,
    "model-parallel": TWO_STAGES,
    "model-parallel-p2p": TWO_STAGES,
    "pipedream": TWO_STAGES,
    "pipe-gpipe": TWO_STAGES,
    "pipe-1f1b": TWO_STAGES,
    "pipe-interleaved": FOUR_STAGES,
    "pipe-zb": FOUR_STAGES,
    "pipe-zbv": FOUR_STAGES,
    # Random numbers are drawn for whole images.
    "spatial": {"until": "drop0"},
    "data-spatial": {"until": "drop0"},
}
# Not in one process after another cell: Horovod joins once.
ALONE = ("horovod",)


def cell_of(strategy: str, devices: int, **options: Any) -> Cell:
    return Cell(
        dataset="mnist",
        network="dropout",
        strategy=strategy,
        batch_size=12,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


# A strategy that is new in the registry is tested on two devices with its default options.
ALL = [
    cell_of(name, 1 if name == "sequential" else 2, **OPTIONS.get(name, {})) for name in STRATEGIES
]
TOGETHER = [cell for cell in ALL if cell.strategy not in ALONE]
WORLDS = {
    "1 rank": [cell for cell in TOGETHER if make_plan(cell).world_size == 1],
    "2 ranks": [cell for cell in TOGETHER if make_plan(cell).world_size == 2],
    "3 ranks": [
        # Several buckets, and sums of three: their order decides the last bit.
        cell_of("ddp", 3, bucket_cap_bytes=256),
        # Three mini-batches on two replicas: the last update of a segment has one.
        cell_of("pipedream", 3, balance="5+5", replicas="2+1"),
        cell_of("pipedream", 3, balance="5+5", replicas="2+1", stage_all_reduce="async"),
        cell_of("pipedream", 3, balance="3+3+4", vertical_sync=True),
    ],
    "horovod": [cell for cell in ALL if cell.strategy == "horovod"],
}
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not built here"
)


def _train(cell: Cell, rank: int, store: Store | None, *, out: Path, run: str) -> dict[str, Any]:
    """One rank; ``run`` is "plain" without checkpoints, "first" with them, "second" resumed."""
    folder, resume = folder_of(out, cell), run == "second"
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    order = None
    if run != "plain":
        before = set_folder(folder, EVERY, "first").name if resume else None
        order = Order(str(folder), {"cell_id": cell.id}, run, before, "test")
    checkpoints = open_checkpoints(
        order, executor, rank, plan.world_size, store=store, devices=context.devices
    )
    context.fixed = {} if checkpoints is None else checkpoints.fixed()
    # Weights and random numbers of another seed: only a checkpoint can bring the right ones.
    torch.manual_seed(99 if resume else 1)
    network = network_with_dropout()
    torch.manual_seed(cell.seed + rank + (99 if resume else 0))
    random.seed(cell.seed + rank + (99 if resume else 0))
    data = Reader(cell, process, torch.float32) if process.needs else None
    executor.prepare(plan, process, network, data, context)
    extent = Extent(WARMUP, 1, STEPS, 0 if checkpoints is None else EVERY)
    found = measure(executor, extent, context.devices, 1, checkpoints=checkpoints)
    end = {"executor": executor.checkpoint_state(), "random": random_state(context.devices)}
    write_state(folder / f"{run}-{rank}", end)
    barrier(store, "done", plan.world_size)
    executor.close()
    return {
        "loss": found.warmup.loss + found.measured.loss,
        "ids": found.measured.ids,
        "steps": len(found.measured.step_s),
        "saves": 0 if checkpoints is None else len(checkpoints.report()["save_s"]),
    }


def folder_of(out: Path, cell: Cell) -> Path:
    """Where its ranks keep their checkpoints."""
    return out / cell.id


def end_of(out: Path, cell: Cell, run: str, rank: int) -> dict[str, Any]:
    """The state of a rank at the end of a run."""
    return read_state(folder_of(out, cell) / f"{run}-{rank}")


def saved(out: Path, cell: Cell, run: str, rank: int) -> dict[str, Any]:
    """The file of a rank behind the last step."""
    return read_state(rank_file(set_folder(folder_of(out, cell), STEPS, run), rank))


def test_every_strategy_is_here():
    tested = {cell.strategy for cells in WORLDS.values() for cell in cells}
    assert tested == set(STRATEGIES)


@pytest.mark.parametrize(
    "world",
    [pytest.param(name, marks=needs_horovod if name == "horovod" else ()) for name in WORLDS],
)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(world, tmp_path):
    cells = WORLDS[world]
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
    (world_size,) = {make_plan(cell).world_size for cell in cells}
    plain, first, second = (
        run_ranks(partial(_train, out=tmp_path, run=run), cells, world_size) for run in RUNS
    )
    for number, cell in enumerate(cells):
        for rank in range(world_size):
            place = f"{cell.id}, rank {rank}"
            ends = {run: end_of(tmp_path, cell, run, rank) for run in RUNS}
            assert_same_bits(ends["second"], ends["first"], place)
            # What the loop saved behind the last step is what the executor has.
            at_end = saved(tmp_path, cell, "second", rank)
            assert_same_bits(at_end["executor"], ends["second"]["executor"], place)
            mine, resumed = first[number][rank], second[number][rank]
            assert resumed == mine, place
            assert resumed["saves"] == STEPS // EVERY
            assert resumed["steps"] == STEPS, place
            if strategy_of(cell.strategy).is_synchronous(cell):
                assert_same_bits(ends["first"], ends["plain"], f"plain {place}")
                assert mine["loss"] == plain[number][rank]["loss"], place
        losses = [rank["loss"] for rank in second[number] if rank["loss"]]
        assert losses and all(len(loss) == WARMUP + STEPS for loss in losses), cell.id


def test_torchgpipe_keeps_the_balance_that_was_measured_before(monkeypatch):
    """Layers timed anew could be dealt otherwise: the parts of a cell would be different ones."""
    cell = cell_of("gpipe", 2, balance="time")
    plan = make_plan(cell)
    devices = (torch.device("cpu"), torch.device("cpu"))
    monkeypatch.setattr(torchgpipe_executor, "balance_by_time", lambda *_, **__: [1, 9])

    def balance(**fixed):
        executor = GPipeExecutor()
        executor.prepare(
            plan, plan.processes[0], network_with_dropout(), None, Context(devices, fixed=fixed)
        )
        return executor.details()["blocks_per_device"]

    assert balance() == [1, 9]
    assert balance(blocks_per_device=[6, 4]) == [6, 4]
