"""A backward pass in two parts is compared with a whole one, for any graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.pipelining.stage import check_split_backward

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
