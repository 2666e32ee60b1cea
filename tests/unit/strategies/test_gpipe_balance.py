"""torchgpipe cuts where the plan says, when the plan was made from a profile."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.executor import Context, Unsupported

pytest.importorskip("torchgpipe")


@pytest.mark.parametrize("strategy", ["gpipe", "model-parallel"])
def test_a_planned_balance_is_kept_to(strategy) -> None:
    from ddlbench.strategies.torchgpipe.executor import GPipeExecutor

    cell = Cell("mnist", "tiny", strategy, 8, devices_per_node=2, options=(("balance", "profile"),))
    descriptor = strategy_of(strategy)
    details = {**descriptor.option_values(cell), "blocks_per_device": [1, 3]}
    executor = GPipeExecutor()
    executor.plan = Plan(cell, descriptor.placement(cell), details)
    executor.context = Context((torch.device("cpu"),) * 2)
    module = executor.place(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))))
    assert executor.balance == [1, 3]
    assert [len(partition) for partition in module.partitions] == [1, 3]
    with pytest.raises(Unsupported, match=r"deals 4 blocks .* the network has 5"):
        executor.place(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))))


def recorder_of_sizes(calls):
    """Takes what torchgpipe's own function takes; the test below compares the two."""

    def balance_by_size(
        partitions,
        module,
        input,  # noqa: A002 - torchgpipe's name
        *,
        chunks=1,
        param_scale=2.0,
        device=torch.device("cuda"),  # noqa: B008 - torchgpipe's default
    ):
        calls.append((partitions, module, input, chunks, param_scale, device))
        return [1, 3]

    return balance_by_size


def test_the_recorder_takes_what_torchgpipe_takes() -> None:
    from torchgpipe.balance import balance_by_size

    def form(function):
        actual = inspect.signature(function).parameters.values()
        return [(parameter.name, parameter.kind, parameter.default) for parameter in actual]

    assert form(recorder_of_sizes([])) == form(balance_by_size)


@pytest.mark.parametrize("shape", [(3, 8, 8), (4, 8, 8, 8)], ids=["images", "volumes"])
def test_balance_by_size_asks_torchgpipe_about_the_mini_batch(shape, monkeypatch) -> None:
    from ddlbench.strategies.torchgpipe import executor as gpipe

    calls = []
    monkeypatch.setattr(gpipe, "balance_by_size", recorder_of_sizes(calls))
    network = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    sample, gpu = torch.rand(6, *shape), torch.device("cuda", 0)
    actual = gpipe.choose_balance("size", network, sample, [gpu, torch.device("cuda", 1)], chunks=5)
    assert actual == [1, 3]
    ((parts, module, mini_batch, chunks, scale, device),) = calls
    assert (parts, module, chunks, scale, device) == (2, network, 5, 2.0, gpu)
    assert mini_batch.shape == (30, *shape)
    assert torch.equal(mini_batch[:1], sample[:1])


def test_what_cannot_be_balanced_by_size_is_one_sentence(monkeypatch) -> None:
    from ddlbench.strategies.torchgpipe import executor as gpipe

    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    sample = torch.rand(6, 4)
    with pytest.raises(Unsupported, match="reads CUDA's memory counters"):
        gpipe.choose_balance("size", network, sample, [torch.device("cpu")] * 2, 3)

    def one_sample(_parts, module, sample, **_named):
        module.train()(sample[:1])

    monkeypatch.setattr(gpipe, "balance_by_size", one_sample)
    with pytest.raises(Unsupported, match="batch norm refuses one value"):
        gpipe.choose_balance("size", network, sample, [torch.device("cuda", 0)] * 2, 3)
