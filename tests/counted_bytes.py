"""Bytes that ranks of the pool send and receive while they train, as a cell's ranks count them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.rendezvous import TcpTraffic, barrier
from ddlbench.strategies.executor import executor_of
from ddlbench.testing.training import network_of

WARMUP_STEPS, STEPS = 2, 4


@dataclass(frozen=True)
class RankBytes:
    """What one rank's kernel counted in all measured steps, and the size of the network."""

    sent_bytes: int
    received_bytes: int
    parameter_bytes: int


def count_bytes(*cells: Cell) -> list[list[RankBytes]]:
    """Train cells of equally many ranks in float32; for each cell what its ranks counted."""
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
    (world_size,) = {make_plan(cell).world_size for cell in cells}
    return run_ranks(_count, cells, world_size)


def _count(cell: Cell, rank: int, store: Any) -> RankBytes:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor, context = executor_of(cell), context_of(plan, process, store)
    network = network_of(cell).float()
    parameter_bytes = sum(parameter.nbytes for parameter in network.parameters())
    data = Reader(cell, process, torch.float32) if process.needs else None
    executor.prepare(plan, process, network, data, context)
    traffic = TcpTraffic(store.underlying_store.port)
    wait_for_all = partial(barrier, store, world_size=plan.world_size)
    measure(
        executor,
        Extent(WARMUP_STEPS, 1, STEPS),
        context.devices,
        1,
        partial(wait_for_all, "measured"),
        traffic=traffic,
    )
    wait_for_all("counted")
    executor.close()
    counted = traffic.report()
    assert counted is not None and counted.steps == STEPS
    return RankBytes(counted.sent_bytes, counted.received_bytes, parameter_bytes)


def assert_sent(ranks: Sequence[RankBytes], bytes_per_step: Sequence[float]) -> None:
    """Per step and rank within 2 % of a formula; nothing comes in that nobody sent."""
    per_step = [rank.sent_bytes / STEPS for rank in ranks]
    assert per_step == pytest.approx(list(bytes_per_step), rel=0.02)
    received = sum(rank.received_bytes for rank in ranks)
    # A last acknowledgement of a few bytes may still be on its way.
    assert received == pytest.approx(sum(rank.sent_bytes for rank in ranks), rel=0.001)
