"""The smallest cells that show what a strategy does, and what one device trains in their place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddlbench.equivalence.examination import plain, scope_of, steps_of
from ddlbench.equivalence.look import tiny_cells
from ddlbench.equivalence.one_device import train_in_parts, whole_batches
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.strategies.local_sgd.executor import replay
from ddlbench.strategies.pipedream.executor import OldWeights

BLOCKS = 7


def chosen(strategy: str, geometry=(1, 2), batch_size=None, blocks=BLOCKS, **options):
    cell = Cell("mnist", "mine:net", strategy, 1, options=tuple(options.items()))
    return tiny_cells(cell, blocks, geometry, batch_size)


@pytest.mark.parametrize(
    ("strategy", "geometry", "batch_size", "balances"),
    [
        ("sequential", "1x1", 4, []),
        ("ddp", "1x2", 8, []),
        ("parameter-server", "1x3", 8, []),  # a server, and two that train
        ("pipedream", "1x2", 4, ["4+3", "6+1"]),
        ("pipe-1f1b", "1x2", 16, ["4+3", "6+1"]),
        ("pipe-zbv", "1x2", 16, ["2+2+2+1", "4+1+1+1"]),
    ],
)
def test_each_part_has_a_few_samples(strategy, geometry, batch_size, balances):
    cells = chosen(strategy)
    assert {(cell.geometry, cell.batch_size) for cell in cells} == {(geometry, batch_size)}
    assert [cell.option("balance") for cell in cells] == (balances or [None])
    assert batch_size >= 4 * make_plan(cells[0]).parts


def test_what_the_user_says_is_kept():
    (cell,) = chosen("ddp", geometry=(2, 2), batch_size=4)
    assert (cell.geometry, cell.batch_size) == ("2x2", 4)
    (cell,) = chosen("pipedream", balance="2+5")
    assert cell.option("balance") == "2+5"


def test_too_few_blocks_and_uneven_batches_are_reasons():
    assert "1 block is too few" in chosen("pipe-1f1b", blocks=1)
    assert "does not divide" in chosen("ddp", batch_size=3)


def test_statistics_are_compared_where_all_samples_pass_one_replica():
    def scope(strategy: str, **options):
        return scope_of(make_plan(chosen(strategy, **options)[0]))

    assert scope("pipe-1f1b").statistics
    assert scope("local-sgd").statistics  # each replica has its own twin
    assert not scope("ddp").statistics
    assert not scope("pipedream", replicas=2).statistics
    assert scope("ddp", hook="fp16").first_loss
    assert scope("parameter-server", mode="async") is None


def test_old_weights_and_rounds_take_more_steps():
    steps = {name: steps_of(make_plan(chosen(name)[0])) for name in ("ddp", "pipedream")}
    assert steps["pipedream"] > steps["ddp"] >= 3
    assert steps_of(make_plan(chosen("local-sgd", average_every_steps=6)[0])) == 6


def test_a_plain_cell_has_no_settings_of_long_runs():
    cell = Cell("mnist", "mlp", "ddp", 8, compile=True, validate=True, learning_rate=0.3, repeat=2)
    assert plain(cell) == Cell("mnist", "mlp", "ddp", 8, learning_rate=0.3)


# What one device trains ---------------------------------------------------------------------------

CELL = Cell("mnist", "mlp", "sequential", 8, learning_rate=0.1, learning_rate_warmup_steps=2)


def small(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 10)]
    if norm:
        layers.insert(3, nn.BatchNorm1d(12))
    return nn.Sequential(*layers).double()


def batches(steps: int = 4):
    return list(whole_batches(CELL, steps, torch.float64))


def assert_close(actual, expected):
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-12, atol=1e-12, msg=name)


def test_parts_add_up_to_the_whole():
    loss = nn.functional.cross_entropy
    whole = train_in_parts(CELL, small(), batches(), loss)
    parted = train_in_parts(CELL, small(), batches(), loss, shards=2, micro_batches=2)
    assert_close(parted.states[1], whole.states[0])
    means = torch.tensor(parted.losses).mean(dim=0)
    torch.testing.assert_close(means, torch.tensor(whole.losses[0]))


def test_each_shard_has_the_statistics_of_its_samples():
    loss = nn.functional.cross_entropy
    trained = train_in_parts(CELL, small(norm=True), batches(), loss, shards=2)
    means = [state["3.running_mean"] for state in trained.states]
    assert not torch.equal(means[0], means[1])
    assert all(int(state["3.num_batches_tracked"]) == 4 for state in trained.states)


def test_gradients_that_are_not_old_are_those_of_sequential_training():
    loss = nn.functional.cross_entropy
    stages = [(0, 3, 1), (3, 5, 1)]

    def trained_with(version_of):
        network, every = small(), list(batches())
        training = OldWeights(CELL, network, stages, lambda _count: version_of)
        return list(training.train([(len(every), every)], loss)), network.state_dict()

    whole = train_in_parts(CELL, small(), batches(), loss)
    losses, state = trained_with(lambda _stage, number: number)
    assert_close(state, whole.states[0])
    assert losses == pytest.approx(whole.losses[0])
    _, late = trained_with(lambda stage, number: max(0, number - 1 + stage))
    assert not torch.allclose(late["2.weight"], whole.states[0]["2.weight"])


def test_replicas_that_average_each_step_are_sequential_training():
    loss = nn.functional.cross_entropy
    every, networks = list(batches()), [small(), small()]
    averaging = (("average_every_steps", 1),)
    cell = CELL.with_(strategy="local-sgd", devices_per_node=2, options=averaging)
    losses = list(replay(make_plan(cell), networks, [(len(every), every)], loss))
    whole = train_in_parts(CELL, small(), every, loss)
    for network in networks:
        assert_close(network.state_dict(), whole.states[0])
    assert [sum(of_step) / 2 for of_step in losses] == pytest.approx(whole.losses[0])
