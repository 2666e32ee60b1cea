"""A rank without its peers lists the messages that it exchanges with them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.distributed import Store

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.alone import MessageLog
from ddlbench.strategies.executor import Context, executor_of
from ddlbench.testing.training import network_of

CPU = torch.device("cpu")
SPANS = {"halo": "swap", "gather": "all_gather", "all_reduce": "all_reduce"}


def _cell(strategy: str, nodes: int, devices: int, **options) -> Cell:
    return Cell(
        dataset="mnist",
        network="cases.split_networks:odd",
        strategy=strategy,
        batch_size=8,
        nodes=nodes,
        devices_per_node=devices,
        options=tuple(sorted(options.items())),
    )


TWO_DEVICES = [_cell(strategy, 1, 2) for strategy in ("spatial", "filter", "channel")]
FOUR_DEVICES = [
    _cell("spatial", 1, 4),
    _cell("spatial", 1, 4, split="both"),
    _cell("channel", 2, 2),
    _cell("data-spatial", 2, 2),
    _cell("data-filter", 2, 2),
]


def _both_ways(cell: Cell, rank: int, store: Store | None) -> tuple[Counter, tuple] | None:
    """Operations of a step of rank 1 with its peers, and messages of one without them."""
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    data = Reader(cell, process)
    context = context_of(plan, process, store, torch.float64)
    executor.prepare(plan, process, network_of(cell), data, context)
    spans = executor.run(0, 1).spans
    barrier(store, "done", plan.world_size)
    executor.close()
    if rank != 1:
        return None
    log = MessageLog()
    alone = executor_of(cell)
    context = Context((CPU,), alone=log, floating=torch.float64)
    alone.prepare(plan, process, network_of(cell), data, context)
    log.clear()
    alone.run(0, 1)
    alone.close()
    return Counter(SPANS[kind] for kind, *_ in spans if kind in SPANS), log.messages()


@pytest.mark.parametrize("cells", [TWO_DEVICES, FOUR_DEVICES], ids=["2 devices", "4 devices"])
def test_it_lists_what_it_exchanges(cells):
    for cell, (_, actual, *_) in zip(
        cells, run_ranks(_both_ways, cells, cells[0].devices), strict=True
    ):
        exchanged, messages = actual
        # One span has the sums of split blocks over all ranks, and of the others over groups.
        exchanged["all_reduce"] += cell.strategy == "data-spatial"
        listed = Counter()
        for message in messages:
            listed[message.operation] += message.count
            assert message.bytes > 0, cell.id
            assert 1 in message.ranks, cell.id
        assert listed == exchanged, cell.id


def test_messages_within_a_group_and_over_groups():
    (((_, actual, *_),)) = run_ranks(_both_ways, [_cell("data-filter", 2, 2)], 4)
    groups = {message.ranks for message in actual[1]}
    assert groups == {(0, 1), (1, 3)}  # its node's, and its counterpart on the other
    (((_, actual, *_),)) = run_ranks(_both_ways, [_cell("spatial", 1, 4)], 4)
    swaps = {message.ranks for message in actual[1] if message.operation == "swap"}
    assert (0, 1, 2) in swaps  # both neighbours at once
