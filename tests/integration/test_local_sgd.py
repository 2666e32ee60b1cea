"""Local SGD against several replicas in one process, whose weights are averaged by hand."""

from __future__ import annotations

import pytest
import torch
from local_cells import LOCAL_SGD, local_site, run_one

from ddlbench.equivalence.one_device import whole_batches
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.strategies.local_sgd.executor import replay
from ddlbench.testing.training import assert_same_weights, loss_of, network_of, train

RUNS = ((0, 2), (2, 6))  # a call ends within a round, and so does the last round
STEPS = 8
ROUND = 3
AVERAGE = {"average_every_steps": ROUND}
NESTEROV = {**AVERAGE, "outer_optimizer": "nesterov"}


def cell_of(
    devices: int, network: str = "small_networks:normed", momentum: float = 0.9, **options
) -> Cell:
    return Cell(
        dataset="mnist",
        network=network,
        strategy="local-sgd",
        batch_size=16,
        devices_per_node=devices,
        learning_rate=0.05,
        momentum=momentum,
        options=tuple(sorted(options.items())),
    )


def by_hand(cell: Cell, ranks: int) -> tuple[list[dict[str, torch.Tensor]], list[list[float]]]:
    """States and losses of all replicas: local steps, the mean of a round, DiLoCo's algorithm 1."""
    networks = [network_of(cell) for _ in range(ranks)]
    batches = whole_batches(cell, STEPS, torch.float64)
    losses = list(replay(make_plan(cell), networks, [(STEPS, batches)], loss_of(cell)))
    return [net.state_dict() for net in networks], [
        list(each) for each in zip(*losses, strict=True)
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_replica_is_that_of_the_simulation(ranks):
    cells = [
        cell_of(ranks, **AVERAGE),
        cell_of(ranks, **NESTEROV),
        cell_of(ranks, momentum=0.0, **NESTEROV, outer_lr=0.3, outer_momentum=0.5),
        cell_of(ranks, "small_networks:odd", **NESTEROV),
    ]
    for cell, actual in zip(cells, train(cells, RUNS), strict=True):
        states, losses = by_hand(cell, ranks)
        for rank, result in enumerate(actual):
            # Two steps into a round the replicas differ; batch norm's statistics always do.
            for name, value in states[rank].items():
                torch.testing.assert_close(result["state"][name], value, rtol=1e-10, atol=1e-12)
            assert result["loss"] == pytest.approx(losses[rank])
        weights = [result["state"]["head.weight"] for result in actual]
        assert not torch.equal(weights[0], weights[1])


def test_a_round_ends_with_the_same_weights_everywhere():
    cells = [cell_of(3, **AVERAGE), cell_of(3, **NESTEROV)]
    for ranks in train(cells, ((0, 2 * ROUND),)):
        for rank in ranks[1:]:
            assert_same_weights(rank["state"], ranks[0]["state"], rtol=0, atol=0)


def test_only_nesterov_keeps_weights_and_momentum_of_its_own():
    (plain,), (outer,) = train([cell_of(1, **AVERAGE), cell_of(1, **NESTEROV)], RUNS)
    weights = sum(p.nbytes for p in network_of(cell_of(1)).parameters())
    assert outer["kept_bytes"] - plain["kept_bytes"] == 2 * weights


def test_a_result_says_that_its_step_is_of_whole_rounds(shared_cells):
    result = shared_cells.run(LOCAL_SGD).result  # 2 epochs of 6 steps
    assert result["update_semantics"] == "stale"
    assert "whole rounds of 3 steps" in result["timing"]["combined"]
    assert result["timing"]["step_s"]["count"] == 12
    assert result["notes"] == []


def test_less_than_a_round_is_refused(tmp_path):
    cell = LOCAL_SGD.with_(epochs=1, max_steps=2)
    result, _ = run_one(cell, local_site(tmp_path), tmp_path)
    assert (result["status"], result["reason_code"]) == ("unsupported", "too_few_steps")
    assert "a round of 3 steps is longer than all measured ones (2)" in result["reason"]
