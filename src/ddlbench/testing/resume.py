"""Checks that cells resume from their checkpoints in new processes, bit for bit.

::

    plain    warm-up | 1 2 3 4 5 6                                no checkpoint
    first    warm-up | 1 2 3 | save | 4 5 6 | save
    second   other weights, dry run | load | 4 5 6 | save         new processes

``second`` ends with the same weights, statistics, momentum, random numbers and losses as ``first``.
With synchronous updates ``plain`` does, too: a checkpoint changes nothing. PipeDream's checkpoints
drain its pipeline, so it is compared only with a run that drained at the same step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import Store

from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.checkpoint.rank import open_checkpoints, random_state, read_state, write_state
from ddlbench.runtime.checkpoint.store import Order, rank_file, set_folder
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.rendezvous import barrier
from ddlbench.testing.training import RESUMED, Reader, assert_same_bits, context_of, executor_of

_WARMUP, _STEPS, _EVERY = 2, 6, 3
_RUNS = ("plain", "first", "second")


def assert_cells_resume(cells: Sequence[Cell], folder: Path) -> None:
    """Train every cell without checkpoints, with them, and resumed; compare the final states.

    Args:
        cells: with equally many ranks; their network is one of ``networks.RESUMED``.
        folder: an empty folder, for the checkpoints.
    """
    (world_size,) = {make_plan(cell).world_size for cell in cells}
    plain, first, second = (
        run_ranks(partial(_train, out=folder, run=run), cells, world_size) for run in _RUNS
    )
    for number, cell in enumerate(cells):
        for rank in range(world_size):
            _compare(cell, rank, folder, [run[number][rank] for run in (plain, first, second)])
        losses = [rank["loss"] for rank in second[number] if rank["loss"]]
        assert losses and all(len(loss) == _WARMUP + _STEPS for loss in losses), cell.id


def _compare(cell: Cell, rank: int, folder: Path, results: Sequence[dict[str, Any]]) -> None:
    """Compare one rank's results and final states of its three runs."""
    plain, first, second = results
    place = f"{cell.id}, rank {rank}"
    ends = {run: read_state(folder / cell.id / f"{run}-{rank}") for run in _RUNS}
    assert_same_bits(ends["second"], ends["first"], place)
    # The checkpoint after the last step holds the executor's final state.
    at_end = read_state(rank_file(set_folder(folder / cell.id, _STEPS, "second"), rank))
    assert_same_bits(at_end["executor"], ends["second"]["executor"], place)
    assert second == first, place
    assert second["saves"] == _STEPS // _EVERY
    assert second["steps"] == _STEPS, place
    if strategy_of(cell.strategy).is_synchronous(cell):
        assert_same_bits(ends["first"], ends["plain"], f"plain {place}")
        assert first["loss"] == plain["loss"], place


def _train(cell: Cell, rank: int, store: Store | None, *, out: Path, run: str) -> dict[str, Any]:
    """Train one rank; ``run`` is "plain" (no checkpoints), "first" (with) or "second" (resumed)."""
    folder, resume = out / cell.id, run == "second"
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    order = None
    if run != "plain":
        before = set_folder(folder, _EVERY, "first").name if resume else None
        order = Order(str(folder), {"cell_id": cell.id}, run, before, "test")
    checkpoints = open_checkpoints(
        order, executor, rank, plan.world_size, store=store, devices=context.devices
    )
    context.fixed = {} if checkpoints is None else checkpoints.fixed()
    # With another seed, only the checkpoint can restore the right weights and random numbers.
    torch.manual_seed(99 if resume else 1)
    network = RESUMED[cell.network]()
    torch.manual_seed(cell.seed + rank + (99 if resume else 0))
    random.seed(cell.seed + rank + (99 if resume else 0))
    data = Reader(cell, process, torch.float32) if process.needs else None
    executor.prepare(plan, process, network, data, context)
    extent = Extent(_WARMUP, 1, _STEPS, 0 if checkpoints is None else _EVERY)
    measured = measure(executor, extent, context.devices, 1, checkpoints=checkpoints)
    end = {"executor": executor.checkpoint_state(), "random": random_state(context.devices)}
    write_state(folder / f"{run}-{rank}", end)
    barrier(store, "done", plan.world_size)
    executor.close()
    return {
        "loss": measured.warmup.loss + measured.measured.loss,
        "ids": measured.measured.ids,
        "steps": len(measured.measured.step_s),
        "saves": 0 if checkpoints is None else len(checkpoints.report().save_s),
    }
