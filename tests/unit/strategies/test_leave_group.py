"""What a rank leaves behind when its executor closes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed import Store

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.strategies.executor import executor_of
from ddlbench.testing.training import network_of

CELL = Cell("mnist", "residual", "ddp", batch_size=8, devices_per_node=2)


def group_lives(cell: Cell, rank: int, store: Store | None) -> bool:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    executor.prepare(plan, process, network_of(cell), Reader(cell, process, torch.float32), context)
    executor.run(0, 2)
    group = weakref.ref(dist.group.WORLD)
    executor.close()
    assert not dist.is_initialized()
    del executor
    gc.collect()
    return group() is not None


@pytest.mark.slow
def test_a_left_group_outlives_its_executor():
    """DDP's reducer would destroy it with the interpreter's lock held: a rank in 100 hangs."""
    assert run_ranks(group_lives, [CELL, CELL], 2) == [[True, True], [True, True]]
