"""Micro-batches train as one device does, and ranks send as often as their strategy says."""

from __future__ import annotations

import pytest
from cases.small_cells import needs_horovod
from counted_bytes import STEPS, RankBytes, assert_sent, count_bytes

from ddlbench.equivalence.examination import Examination
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import STRATEGIES
from ddlbench.planning.accumulation import AccumulatingOptions
from ddlbench.planning.strategy import strategy_of

COUNT = 4


def cell_of(strategy: str, devices: int = 2, nodes: int = 1, count: int = COUNT, **options) -> Cell:
    return Cell(
        dataset="mnist",
        network="small_networks:normed",
        strategy=strategy,
        batch_size=64,
        nodes=nodes,
        devices_per_node=devices,
        options=tuple(sorted({**options, "accumulate": count}.items())),
    )


CASES = [
    cell_of("ddp"),
    cell_of("ddp", shard="optimizer"),
    cell_of("fsdp"),
    cell_of("fsdp", reshard_after_forward=False),
    cell_of("hsdp", nodes=2),
    pytest.param(cell_of("horovod"), marks=needs_horovod),
]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("cell", CASES, ids=lambda cell: cell.id)
def test_it_trains_as_one_device_does(cell, optimizer):
    """In float64; batch norm sees micro-batches, on one device, too."""
    examination = Examination((cell.nodes, cell.devices_per_node))
    verdict = examination.verdict_of(cell.with_(optimizer=optimizer))
    assert (verdict.kind, verdict.reason) == ("equal", None)
    assert verdict.difference is not None and verdict.difference < 1e-10


def test_every_strategy_with_the_option_is_tried():
    tried = {str(getattr(case, "values", [case])[0].strategy) for case in CASES}
    can = {n for n in STRATEGIES if issubclass(strategy_of(n).options, AccumulatingOptions)}
    assert tried == can == {"ddp", "horovod", "fsdp", "hsdp"}


def counted(strategy: str, devices: int, nodes: int = 1) -> list[list[RankBytes]]:
    """Without micro-batches, and with them."""
    cells = [cell_of(strategy, devices, nodes, count) for count in (1, COUNT)]
    return count_bytes(*(cell.with_(network="mlp") for cell in cells))


def test_shares_are_gathered_and_scattered_for_each_micro_batch():
    once, each = counted("fsdp", 2)
    assert_sent(each, [COUNT * rank.sent_bytes / STEPS for rank in once])


def test_groups_sum_their_shares_once_a_step():
    """Two groups of two: a rank sends half of the weights to the other group, in one all-reduce."""
    once, each = counted("hsdp", 2, nodes=2)
    over = once[0].parameter_bytes / 2
    assert_sent(each, [COUNT * (rank.sent_bytes / STEPS - over) + over for rank in once])


@needs_horovod
def test_horovod_sums_once_a_step():
    for count in (1, COUNT):  # it joins once in a process
        (ranks,) = count_bytes(cell_of("horovod", 2, count=count).with_(network="mlp"))
        assert_sent(ranks, [rank.parameter_bytes for rank in ranks])
