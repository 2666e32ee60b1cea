"""A parameter server in step trains as sequential training does; out of step it loses nothing."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from cases.parameter_server_cells import FEW_BYTES, RUNS, cell_of

from ddlbench.strategies.parameter_server.server import Served, ServiceLog
from ddlbench.testing.training import assert_same_weights, reference, train

STEPS = sum(count for _, count in RUNS)


def parted(ranks: list[dict]) -> tuple[list[dict], list[dict]]:
    """Servers and workers."""
    return [[rank for rank in ranks if rank["role"] == role] for role in ("server", "worker")]


def kinds_of(rank: dict) -> set[str]:
    return {kind for kind, *_ in rank["spans"]}


@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_in_step_it_equals_sequential_training(servers, workers):
    cells = [
        cell_of(servers, workers, "small_networks:odd"),
        cell_of(servers, workers, "small_networks:odd", message_bytes=FEW_BYTES),
        cell_of(servers, workers, "small_networks:odd", momentum=0.0, message_bytes=FEW_BYTES),
        cell_of(servers, workers, "small_networks:normed", message_bytes=FEW_BYTES),
    ]
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        expected, losses = reference(cell, workers, STEPS)
        served, trained = parted(ranks)
        assert (len(served), len(trained)) == (servers, workers)
        for rank in trained:
            assert_same_weights(rank["state"], expected)
        mean = torch.tensor([rank["loss"] for rank in trained], dtype=torch.float64).mean(dim=0)
        torch.testing.assert_close(mean, torch.tensor(losses, dtype=torch.float64))


def test_each_worker_keeps_its_own_batch_norm_statistics():
    (ranks,) = train([cell_of(1, 3, "small_networks:normed")], RUNS)
    means = [rank["state"]["norm.running_mean"] for rank in parted(ranks)[1]]
    assert not torch.equal(means[0], means[1])
    assert not torch.equal(means[1], means[2])
    for rank in parted(ranks)[1]:
        assert int(rank["state"]["norm.num_batches_tracked"]) == STEPS


def test_what_the_ranks_tell():
    (ranks,) = train([cell_of(2, 1, message_bytes=FEW_BYTES)], RUNS)
    for rank in ranks:
        assert rank["ids"] == list(range(STEPS))
        assert rank["steps"] == rank["loads"] == [count for _, count in RUNS] + [0]
        assert rank["progress"] == [1, 2, 1, 2, 3, 4]
        assert rank["wait_s"] > 0
    served, trained = parted(ranks)
    assert [rank["loss"] for rank in served] == [[], []]
    assert all(kinds_of(rank) == {"receive_wait", "update"} for rank in served)
    assert kinds_of(trained[0]) == {"load", "forward", "backward", "receive_wait"}
    details = served[0]["details"]
    first, second = details["server_bytes"]
    assert abs(first - second) <= FEW_BYTES
    assert [server["rank"] for server in details["service"]] == [0, 1]
    assert all(0 < server["busy"] < 1 for server in details["service"])
    assert all("mean_staleness" not in server for server in details["service"])
    # Weights, momentum, and what one worker's gradients are received into.
    assert [rank["kept_bytes"] for rank in served] == [3 * first, 3 * second]
    # A worker: weights and gradients of 2904 values, and the 49 that are not trained.
    assert trained[0]["kept_bytes"] == (2 * 2904 + 49) * 8
    assert first + second == (2416 + 16 + 496 + 16) * 8  # each tensor begins aligned


@pytest.mark.parametrize(
    ("runs", "counted"),
    [
        ([(0, 5), (5, 3), (7, 1)], 3),  # warm-up, measured, one step for memory
        ([(0, 5), (5, 2), (7, 2), (8, 1)], 4),  # with a checkpoint behind two steps
        ([(0, 5), (7, 2), (8, 1)], 2),  # after a restart: its own segments
        ([(0, 5)], 0),
    ],
)
def test_a_server_tells_of_its_measured_runs(runs, counted):
    log = ServiceLog(next=5)
    for first, count in runs:
        log.add(first, Served(count, 0.1 * count, 0.2 * count, Counter({1: count})))
    assert log.served.mini_batches == counted
    assert log.served.busy_s == pytest.approx(0.1 * counted)
    assert log.served.elapsed_s == pytest.approx(0.2 * counted)
    assert log.served.staleness[1] == counted


@pytest.mark.parametrize("servers", [1, 2])
def test_a_lone_worker_out_of_step_equals_sequential_training(servers):
    cells = [
        cell_of(servers, 1, "small_networks:odd", mode="async", message_bytes=FEW_BYTES),
        cell_of(servers, 1, "small_networks:normed", mode="async"),
    ]
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        expected, losses = reference(cell, 1, STEPS)
        served, (worker,) = parted(ranks)
        assert_same_weights(worker["state"], expected)
        assert worker["loss"] == pytest.approx(losses)
        for server in served[0]["details"]["service"]:
            assert (server["mean_staleness"], server["max_staleness"]) == (0, 0)


@pytest.mark.parametrize("servers", [1, 2])
def test_out_of_step_no_update_is_lost(servers):
    """Gradients that do not depend on the weights add up to the same in every order."""
    linear = cell_of(
        servers, 3, "small_networks:linear", mode="async", momentum=0.0, message_bytes=FEW_BYTES
    )
    odd = cell_of(servers, 3, "small_networks:odd", mode="async", message_bytes=FEW_BYTES)
    for cell, ranks in zip([linear, odd], train([linear, odd], RUNS), strict=True):
        served, workers = parted(ranks)
        if cell is linear:
            assert_same_weights(workers[0]["state"], reference(linear, 3, STEPS)[0])
        for worker in workers[1:]:  # a run ends with the same weights everywhere
            assert_same_weights(worker["state"], workers[0]["state"])
        for rank in ranks:
            assert rank["steps"] == [count for _, count in RUNS] + [0]
        assert served[0]["progress"] == [1, 2, 1, 2, 3, 4]
        details = served[0]["details"]
        assert details["learning_rate"] == pytest.approx(0.05 / 3)
        for server in details["service"]:
            # While a worker computes, the two others can each push all they have.
            assert 0 <= server["mean_staleness"] <= server["max_staleness"] <= 2 * STEPS
