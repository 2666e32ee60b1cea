"""Every synchronous pipeline trains exactly what sequential training trains; real gloo processes.

In float64, after several steps with momentum, cut at places that torch's schedules are delicate
about: a first stage without weights, activations that are views or not contiguous, gradients that
are not. Batch norm sees a micro-batch at a time, and so does the reference.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ddlbench.equivalence.examination import STATISTICS
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.testing.training import network_of, reference, train

ALL = ("pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb", "pipe-zbv")
TWO_STAGES = ALL[2:]
STEPS = 4
RUNS = ((0, 1), (1, STEPS - 1))
WAITS = ("wait", "all_reduce")
TWO_CUTS = ("1+8", "6+3")
FOUR_CUTS = ("1+2+1+5", "2+4+1+2", "1+5+2+1")


def _cell(strategy: str, nodes: int, devices: int, batch: int = 16, **options) -> Cell:
    """Nine blocks, dealt as evenly as can be where no balance is given."""
    network = options.pop("network", "small_networks:tiny")
    if "balance" not in options and network == "small_networks:tiny":
        ranks = nodes * devices // options.get("replicas", 1)
        stages = ranks * (options.get("stages_per_rank", 2) if strategy in TWO_STAGES else 1)
        counts = [9 // stages + (stage < 9 % stages) for stage in range(stages)]
        options["balance"] = "+".join(map(str, counts))
    return Cell(
        dataset="mnist",
        network=network,
        strategy=strategy,
        batch_size=batch,
        nodes=nodes,
        devices_per_node=devices,
        learning_rate=0.5 if network == "small_networks:tiny" else 0.01,
        options=tuple(sorted(options.items())),
    )


ONE_DEVICE = [_cell(strategy, 1, 1) for strategy in ALL]
TWO_DEVICES = [
    *(_cell(strategy, 1, 2) for strategy in ALL),
    *(_cell(strategy, 2, 1, replicas=2, chunks=2) for strategy in ALL),
    *(_cell(s, 1, 2, balance=b) for s in ("pipe-gpipe", "pipe-1f1b") for b in TWO_CUTS),
    *(_cell(s, 1, 2, balance=b) for s in ("pipe-interleaved", "pipe-zb") for b in FOUR_CUTS),
    *(_cell("pipe-zbv", 1, 2, balance=b) for b in FOUR_CUTS),
    _cell("pipe-zb", 1, 2, stages_per_rank=1),
    _cell("pipe-interleaved", 1, 2, chunks=1),
    *(_cell(s, 1, 2, network="small_networks:transformer", balance="2+4") for s in ALL[:2]),
    *(_cell(s, 1, 2, network="small_networks:transformer", balance="1+1+1+3") for s in TWO_STAGES),
]
FOUR_DEVICES = [
    *(_cell(strategy, 2, 2, chunks=8) for strategy in ALL),
    *(_cell(strategy, 2, 2, replicas=2) for strategy in ALL),
    *(_cell(s, 1, 4, batch=20, chunks=10) for s in ("pipe-interleaved", "pipe-zb")),
    *(_cell(s, 1, 4, batch=12, chunks=3) for s in ALL if s != "pipe-1f1b"),
]


@pytest.mark.parametrize(
    "cells", [ONE_DEVICE, TWO_DEVICES, FOUR_DEVICES], ids=["1 device", "2 devices", "4 devices"]
)
def test_weights_and_losses_equal_sequential_training(cells):
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        details = make_plan(cell).details
        expected, losses = reference(cell, details["replicas"] * details["chunks"], STEPS)
        _assert_whole(cell, ranks, expected)
        _assert_losses(cell, ranks, losses)
        _assert_order(cell, ranks)


@pytest.mark.exhaustive
def test_the_papers_networks_too():
    """Residual blocks, operations in place, depthwise convolutions, cut by the plan."""
    cells = [
        _cell("pipe-zbv", 1, 2, 8, chunks=2, network="resnet18"),
        _cell("pipe-zb", 1, 2, 8, chunks=2, network="mobilenetv2"),
        _cell("pipe-interleaved", 1, 2, 8, chunks=2, network="vgg11"),
        _cell("pipe-zb", 1, 2, 8, chunks=2, network="vit-tiny"),
    ]
    for cell, ranks in zip(cells, train(cells, RUNS, limit_s=600), strict=True):
        expected, _ = reference(cell, 2, STEPS)
        actual = {name: value for rank in ranks for name, value in rank["state"].items()}
        assert set(actual) == set(expected)
        for name, value in expected.items():
            # Batch norm after batch norm amplifies the last bit.
            torch.testing.assert_close(actual[name], value, rtol=1e-6, atol=1e-8, msg=name)


def _assert_whole(cell: Cell, ranks: list[dict], expected: dict) -> None:
    """The ranks of each replica hold the network between them, with the expected weights."""
    initial = network_of(cell).state_dict()
    processes = make_plan(cell).processes
    for replica in range(processes[-1].replica + 1):
        actual: dict = {}
        for process, rank in zip(processes, ranks, strict=True):
            if process.replica == replica:
                assert not set(actual) & set(rank["state"])
                actual |= rank["state"]
        assert set(actual) == set(expected)
        for name, value in expected.items():
            if name.endswith(STATISTICS) and processes[-1].replica:
                continue  # each replica has the statistics of its own samples
            message = f"{cell.id}: {name}"
            torch.testing.assert_close(actual[name], value, rtol=0, atol=1e-10, msg=message)
            if name.endswith("weight"):
                assert (actual[name] - initial[name]).abs().max() > 1e-4, message


def _assert_losses(cell: Cell, ranks: list[dict], losses: list[float]) -> None:
    """The last stage of each replica has its mean; other ranks have none."""
    processes = make_plan(cell).processes
    for process, rank in zip(processes, ranks, strict=True):
        assert len(rank["loss"]) == (STEPS if "labels" in process.needs else 0)
        assert rank["ids"] == list(range(STEPS))
    actual = torch.tensor([rank["loss"] for rank in ranks if rank["loss"]], dtype=torch.float64)
    torch.testing.assert_close(
        actual.mean(dim=0), torch.tensor(losses, dtype=torch.float64), rtol=1e-12, atol=0
    )


def _assert_order(cell: Cell, ranks: list[dict]) -> None:
    """The recorded spans follow one another and are the planned passes, of every step."""
    descriptor = strategy_of(cell.strategy)
    planned = descriptor.pipeline_schedule(cell)
    for process, rank in zip(make_plan(cell).processes, ranks, strict=True):
        wanted = [
            f"{action.kind} {action.micro_batch}.{action.stage}"
            for action in planned.computations(process.stage)
        ]
        waits = [end - start for kind, _, start, end in rank["spans"] if kind in WAITS]
        assert rank["wait_s"] == pytest.approx(sum(waits))
        for step in range(1, STEPS):
            step_spans = [span for span in rank["spans"] if span[1] == step]
            loads, spans = (
                [s for s in step_spans if (s[0] == "load") is load] for load in (True, False)
            )
            assert len(loads) == bool(process.needs)
            assert all(load[3] <= spans[0][2] for load in loads)
            assert [kind for kind, *_ in spans if " " in kind] == wanted
            others = {kind for kind, *_ in spans if " " not in kind}
            average = {"all_reduce"} if planned.world_size < cell.devices else set()
            loss = {"loss"} if "labels" in process.needs else set()
            assert others == {"wait", "update"} | average | loss
            for (_, _, _, end), (_, _, start, _) in pairwise(spans):
                assert start == end
