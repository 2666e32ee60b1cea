"""Data, tensor and pipeline parallelism at once trains what sequential training trains."""

from __future__ import annotations

import pytest
import torch

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.testing.training import reference, train

STEPS = 4
RUNS = ((0, 1), (1, STEPS - 1))


def cell_of(nodes: int, devices: int, **options) -> Cell:
    """Six blocks in two stages, whose middle ones have two heads and eight hidden features."""
    return Cell(
        dataset="mnist",
        network="small_networks:transformer",
        strategy="data-tensor-pipe",
        batch_size=16,
        nodes=nodes,
        devices_per_node=devices,
        learning_rate=0.01,
        options=tuple(sorted({"balance": "3+3", "group": 2, **options}.items())),
    )


@pytest.mark.parametrize(
    "cells",
    [
        [cell_of(1, 4), cell_of(2, 2), cell_of(2, 2, group=1, replicas=2)],
        [cell_of(2, 4, replicas=2, chunks=2)],
    ],
    ids=["4 devices", "8 devices"],
)
def test_weights_and_losses_equal_sequential_training(cells) -> None:
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        plan = make_plan(cell)
        parts = plan.details["replicas"] * plan.details["chunks"]
        expected, losses = reference(cell, parts, STEPS)
        seen = set()
        for process, rank in zip(plan.processes, ranks, strict=True):
            assert len(rank["loss"]) == (STEPS if "labels" in process.needs else 0)
            for name, value in rank["state"].items():
                torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10, msg=name)
            seen |= set(rank["state"])
        assert seen == set(expected)
        of_replicas = [rank["loss"] for rank in ranks if rank["loss"]]
        mean = torch.tensor(of_replicas, dtype=torch.float64).mean(dim=0)
        torch.testing.assert_close(mean, torch.tensor(losses, dtype=torch.float64))


def test_the_ranks_of_a_stage_are_neighbours() -> None:
    plan = make_plan(cell_of(2, 4, replicas=2, chunks=2))
    assert plan.details["stage_ranks"] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [process.replica for process in plan.processes] == [0, 0, 0, 0, 1, 1, 1, 1]
