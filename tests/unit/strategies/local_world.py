"""Ranks as processes of this machine, for tests that train with a real strategy."""

from __future__ import annotations

import importlib
import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import Process, strategy_of
from ddlbench.strategies.executor import Context

# What one rank does with a cell: (cell, rank, file of the store) -> what it found.
Work = Callable[[Cell, int, Path], dict]


def context_of(plan: Plan, process: Process, store_file: Path) -> Context:
    """Where a rank finds the others: a file, as a port chosen beforehand may be taken by then."""
    store = None
    if plan.world_size > 1:
        store = torch.distributed.FileStore(str(store_file), plan.world_size)
    devices = tuple(torch.device("cpu") for _ in process.devices)
    return Context(devices=devices, store=store, interface="lo")


def executor_of(cell: Cell) -> Any:
    module, _, name = strategy_of(cell.strategy).executor.partition(":")
    return getattr(importlib.import_module(module), name)()


def _serve(work: Work, cells: list[Cell], rank: int, out: Path) -> None:
    torch.set_num_threads(1)
    found = []
    for number, cell in enumerate(cells):
        (out / f"rank{rank}.txt").write_text(f"{cell.id}\n")
        try:
            found.append(work(cell, rank, out / f"store{number}"))
        except BaseException:
            (out / f"rank{rank}.txt").write_text(f"{cell.id}\n{traceback.format_exc()}")
            raise
    torch.save(found, out / f"rank{rank}.pt")


def train_all(
    work: Work, cells: list[Cell], world_size: int, out: Path, limit_s: float = 240
) -> list[list[dict]]:
    """For each cell what every rank found; a world that hangs is killed and says where it was."""
    spawn = multiprocessing.get_context("spawn")
    arguments = [(work, cells, rank, out) for rank in range(world_size)]
    ranks = [spawn.Process(target=_serve, args=own) for own in arguments]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=limit_s)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    said = "\n".join(path.read_text() for path in sorted(out.glob("rank*.txt")))
    assert codes == [0] * world_size, f"exit codes {codes} (None: a hang) at\n{said}"
    of_rank = [torch.load(out / f"rank{rank}.pt", weights_only=False) for rank in range(world_size)]
    return [list(ranks_of_cell) for ranks_of_cell in zip(*of_rank, strict=True)]
