"""Tensor parallelism trains what sequential training trains; real gloo processes, in float64.

After several steps with momentum: weights and losses, of transformers and of a perceptron.
"""

from __future__ import annotations

import pytest
import torch

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.testing.training import assert_same_weights, network_of, reference, train

STEPS = 4
RUNS = ((0, 1), (1, STEPS - 1))


def cell_of(
    strategy: str,
    nodes: int,
    devices: int,
    network: str = "small_networks:transformer",
    **options: int,
):
    tokens = network.startswith("gpt")
    return Cell(
        dataset="tokens" if tokens else "mnist",
        network=network,
        strategy=strategy,
        batch_size=4 if tokens else 8,
        nodes=nodes,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


ONE_DEVICE = [cell_of("tensor-parallel", 1, 1), cell_of("data-tensor", 1, 1)]
TWO_DEVICES = [
    cell_of("tensor-parallel", 1, 2),
    cell_of("tensor-parallel", 1, 2, "mlp"),
    cell_of("tensor-parallel", 1, 2, "gpt-tiny"),
    cell_of("data-tensor", 2, 1),
]
FOUR_DEVICES = [
    cell_of("tensor-parallel", 2, 2),
    cell_of("tensor-parallel", 1, 4, "mlp"),
    cell_of("data-tensor", 2, 2),
    cell_of("data-tensor", 1, 4, group=2),
    cell_of("data-tensor", 2, 2, "mlp", group=4),
]


@pytest.mark.parametrize(
    "cells", [ONE_DEVICE, TWO_DEVICES, FOUR_DEVICES], ids=["1 device", "2 devices", "4 devices"]
)
def test_weights_and_losses_equal_sequential_training(cells: list[Cell]) -> None:
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
        groups = make_plan(cell).details["replicas"]
        expected, losses = reference(cell, groups, STEPS)
        initial = network_of(cell).state_dict()
        for rank in ranks:
            assert list(rank["state"]) == list(expected), cell.id
            assert_same_weights(rank["state"], expected, cell.id, rtol=1e-9, atol=1e-12)
        for name, value in initial.items():
            if name.endswith("weight"):
                assert (ranks[0]["state"][name] - value).abs().max() > 1e-5, f"{cell.id}: {name}"
        actual = torch.tensor([rank["loss"] for rank in ranks], dtype=torch.float64)
        torch.testing.assert_close(
            actual.mean(dim=0), torch.tensor(losses, dtype=torch.float64), rtol=1e-9, atol=1e-12
        )
