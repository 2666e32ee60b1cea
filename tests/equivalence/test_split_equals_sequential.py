"""Every split strategy trains what sequential training trains; real gloo processes, in float64.

After several steps with momentum: weights, losses and, within a group, batch-norm statistics.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.distributed import Store

from ddlbench.equivalence.examination import STATISTICS
from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import executor_of
from ddlbench.strategies.training import with_precision
from ddlbench.testing.training import network_of, reference, sequential, train

STEPS = 4
RUNS = ((0, 1), (1, STEPS - 1))
NO_WAITS = ("load", "forward", "backward", "update")
PURE = ("spatial", "filter", "channel")


def _cell(strategy: str, nodes: int, devices: int, network: str = "", **options) -> Cell:
    return Cell(
        dataset="mnist",
        network=network or "cases.split_networks:odd",
        strategy=strategy,
        batch_size=options.pop("batch", 8),
        nodes=nodes,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


ONE_DEVICE = [_cell(strategy, 1, 1) for strategy in (*PURE, "data-filter", "data-spatial")]
TWO_DEVICES = [
    *(_cell(strategy, 1, 2) for strategy in PURE),
    *(_cell(strategy, 2, 1) for strategy in ("data-filter", "data-spatial")),
    _cell("spatial", 1, 2, split="width"),
    _cell("spatial", 1, 2, until="block1"),
    _cell("filter", 1, 2, "small_networks:tiny"),
    _cell("channel", 1, 2, "small_networks:tiny"),
    _cell("filter", 1, 2, "small_networks:transformer"),
    _cell("channel", 1, 2, "small_networks:transformer"),
]
THREE_DEVICES = [*(_cell(strategy, 1, 3, batch=5) for strategy in PURE)]
FOUR_DEVICES = [
    *(_cell(strategy, 2, 2) for strategy in PURE),
    *(_cell(strategy, 2, 2) for strategy in ("data-filter", "data-spatial")),
    _cell("spatial", 1, 4, split="both"),
    _cell("data-spatial", 1, 4, group=2, split="width"),
    _cell("data-filter", 2, 2, group=4),
]


@pytest.mark.parametrize(
    "cells",
    [ONE_DEVICE, TWO_DEVICES, THREE_DEVICES, FOUR_DEVICES],
    ids=["1 device", "2 devices", "3 devices", "4 devices"],
)
def test_weights_and_losses_equal_sequential_training(cells):
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
        _assert_equal(cell, ranks, atol=1e-9)
        _assert_told(cell, ranks)


@pytest.mark.exhaustive
def test_the_papers_networks_too():
    cells = [
        *(_cell(strategy, 1, 2, "resnet18", batch=4) for strategy in PURE),
        *(_cell(strategy, 1, 2, "mobilenetv2", batch=4) for strategy in PURE),
        *(_cell(strategy, 1, 2, "vgg11", batch=4) for strategy in PURE[1:]),
        *(_cell(strategy, 1, 2, "alexnet", batch=4) for strategy in PURE[1:]),
        _cell("spatial", 1, 2, "vgg11", batch=4, until="auto"),
        _cell("spatial", 1, 2, "alexnet", batch=4, until="auto"),
        _cell("data-spatial", 2, 1, "resnet18", batch=4, group=2, split="width"),
    ]
    for cell, ranks in zip(cells, train(cells, RUNS, limit_s=600), strict=True):
        _assert_equal(cell, ranks, atol=1e-7)


def _assert_equal(cell: Cell, ranks: list[dict], atol: float) -> None:
    groups = make_plan(cell).details["replicas"]
    expected, losses = reference(cell, groups, STEPS)
    initial = network_of(cell).state_dict()
    for rank in ranks:
        assert list(rank["state"]) == list(expected), cell.id
        for name, value in expected.items():
            if name.endswith(STATISTICS) and groups > 1:
                continue  # each group has the statistics of its own samples
            message = f"{cell.id}: {name}"
            torch.testing.assert_close(
                rank["state"][name],
                value,
                rtol=1e-7,
                atol=atol,
                msg=lambda m, n=message: f"{n}: {m}",
            )
            if name.endswith("weight"):
                assert (rank["state"][name] - initial[name]).abs().max() > 1e-5, message
    actual = torch.tensor([rank["loss"] for rank in ranks], dtype=torch.float64)
    expected_losses = torch.tensor(losses, dtype=torch.float64)
    torch.testing.assert_close(actual.mean(dim=0), expected_losses, rtol=1e-6, atol=1e-9)


def _assert_told(cell: Cell, ranks: list[dict]) -> None:
    """How long ranks spoke, and what was split."""
    details = make_plan(cell).details
    for rank in ranks:
        kinds = {kind for kind, *_ in rank["spans"]}
        waits = [end - start for kind, _, start, end in rank["spans"] if kind not in NO_WAITS]
        assert rank["wait_s"] == pytest.approx(sum(waits))
        for step in range(1, STEPS):
            load, *spans = [span for span in rank["spans"] if span[1] == step]
            assert load[0] == "load"
            assert load[3] <= spans[0][2]
            assert spans[0][0] == "forward"
            assert spans[-1][0] == "update"
            for (_, _, _, end), (_, _, start, _) in pairwise(spans):
                assert start == end
        if details["group"] > 1:
            assert "all_reduce" in kinds
            if "spatial" in cell.strategy:
                assert "halo" in kinds
                until = details["until"]
                ends = "mean" if until == "head" else "gather"
                assert rank["details"]["ends_with"] == ends
                assert (until in rank["details"]["split_blocks"]) is False
            else:
                assert rank["details"]["split_layers"] > 1


def test_weights_are_dealt_out():
    """A rank of four holds about a quarter, and by rows all of them."""
    cells = [
        _cell("filter", 1, 4, "cases.split_networks:wide", batch=4),
        _cell("spatial", 1, 4, "cases.split_networks:wide", batch=4),
    ]
    (by_filter, by_rows) = train(cells, RUNS)
    whole = by_rows[0]["kept_bytes"]
    for rank in by_filter:
        assert whole / 4 < rank["kept_bytes"] < whole / 3.9


def test_devices_of_a_group_forget_the_same():
    """Layers that all compute draw what sequential training draws from the same seed."""
    cells = [_cell(strategy, 1, 3, "cases.split_networks:forgetful") for strategy in PURE]
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        torch.manual_seed(cell.seed)
        expected, losses = sequential(cell, 1, STEPS)
        other_losses = sequential(cell, 1, STEPS)[1]
        assert losses[-1] != pytest.approx(other_losses[-1])  # other numbers, other losses
        for rank in ranks:
            for name, value in expected.items():
                torch.testing.assert_close(rank["state"][name], value, rtol=1e-7, atol=1e-9)


def _train_in_bf16(cell: Cell, rank: int, store: Store | None) -> dict:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor, context = executor_of(cell), context_of(plan, process, store)
    network = with_precision(network_of(cell).float(), "bf16", "cpu")
    executor.prepare(plan, process, network, Reader(cell, process, torch.float32), context)
    record = executor.run(0, STEPS)
    state = {name: value.clone() for name, value in executor.state_dict()["network"].items()}
    barrier(store, "done", plan.world_size)
    executor.close()
    return {"state": state, "loss": record.loss}


def test_bfloat16_trains_alike():
    """Messages are bfloat16, weights float32, ranks agree; losses are about those of one device."""
    cells = [_cell(strategy, 1, 2) for strategy in PURE]
    alone = [_cell("spatial", 1, 1)]
    ((single_rank,),) = run_ranks(_train_in_bf16, alone, 1)
    for ranks in run_ranks(_train_in_bf16, cells, 2):
        for name, value in ranks[0]["state"].items():
            assert torch.equal(value, ranks[1]["state"][name]), name
        assert ranks[0]["loss"] == pytest.approx(single_rank["loss"], rel=0.05)
