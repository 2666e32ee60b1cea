"""A backward pass in two parts is compared with a whole one, for any graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.pipelining.stage import check_split_backward, store_expanded_gradients

CELL = Cell("mnist", "net", "pipe-zb", 8)
STAGES = (range(3), range(3, 5), range(5, 7))


def check(network: nn.Sequential) -> None:
    last = range(5, len(network))
    check_split_backward(network, (*STAGES[:2], last), CELL)


def network_of(name: str) -> nn.Sequential:
    return build(f"cases.strangers_networks:{name}", DATASETS["mnist"], 1)


@pytest.mark.parametrize(
    "name",
    ["plain", "frozen", "recomputed", "weight_norm", "batch_norm", "dropout", "tied", "unused"],
)
def test_the_parts_are_the_whole(name):
    network = network_of(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state = torch.get_rng_state()
    check(network)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hooked_input", "4.weight would get another gradient than from a whole pass"),
        ("detached", "7.weight would get another gradient than from a whole pass"),
        ("recomputed_reentrant", "that fails: When use_reentrant=True"),
    ],
)
def test_what_differs_is_refused(name, sentence):
    stages = (range(4), range(4, len(network_of(name))))
    with pytest.raises(Unsupported, match="splits backward passes, and on stage 1") as caught:
        check_split_backward(network_of(name), stages, CELL)
    assert sentence in str(caught.value)
    assert "take pipe-1f1b" in str(caught.value)
    assert caught.value.args[0].code == "split_backward_differs"


class Scale(nn.Module):
    """Its weight's gradient is one number expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2, 4))

    def forward(self, x):
        return x * self.weight.sum()


def test_expanded_gradients_of_micro_batches_add_up():
    stage = nn.Sequential(nn.Linear(3, 3), Scale())
    micro_batches = [torch.rand(2, 3), torch.rand(2, 3)]
    for inputs in micro_batches:
        received = inputs.clone().requires_grad_()
        outputs = stage(received)
        weights = list(stage.parameters())
        _, groups = stage_backward_input([outputs], [outputs.detach()], [received], iter(weights))
        stage_backward_weight(iter(weights), groups)
        store_expanded_gradients(stage)
    split = [weight.grad for weight in stage.parameters()]
    stage.zero_grad()
    for inputs in micro_batches:
        outputs = stage(inputs)
        outputs.backward(outputs.detach())
    for gradient, weight in zip(split, stage.parameters(), strict=True):
        assert torch.allclose(gradient, weight.grad)
