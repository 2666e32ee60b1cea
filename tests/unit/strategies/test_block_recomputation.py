"""Blocks compute the same again, whatever kind of module they are, and so do their copies."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import nn

from ddlbench.networks.inspection import copy_of
from ddlbench.strategies.recomputation import (
    buffered_block,
    recompute_in_place,
    with_copied_buffers,
)
from ddlbench.strategies.training import compile_in_place


class Block(nn.Module):
    """Counts its passes, which a copy does not."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, inputs):
        Block.passes += 1
        return torch.tanh(self.norm(self.linear(inputs))) * 2


def recorded() -> nn.Module:
    return torch.fx.symbolic_trace(Block())


def weight_norm() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))


def trained(network: nn.Module) -> list[torch.Tensor]:
    """Gradients and buffers after a pass."""
    torch.manual_seed(1)
    network(torch.randn(4, 8)).square().sum().backward()
    gradients = [weight.grad for weight in network.parameters()]
    return [*gradients, *network.buffers()]


@pytest.mark.parametrize("make", [Block, recorded, weight_norm])
def test_gradients_and_buffers_are_the_same(make):
    network = nn.Sequential(make(), make(), nn.Linear(8, 2))
    names = [name for name, _ in network.named_parameters()]
    again = copy.deepcopy(network)
    recompute_in_place(again)
    double = copy_of(again)
    expected = trained(network)
    for other in (again, double):
        assert [name for name, _ in other.named_parameters()] == names
        for value, right in zip(trained(other), expected, strict=True):
            assert torch.equal(value, right)


def test_all_blocks_but_the_last_go_forward_twice_also_in_a_copy():
    network = nn.Sequential(Block(), Block(), Block())
    recompute_in_place(network)
    for each in (network, copy_of(network)):
        Block.passes = 0
        trained(each)
        assert Block.passes == 5


def test_without_a_graph_nothing_is_computed_twice():
    network = nn.Sequential(Block(), Block())
    recompute_in_place(network)
    Block.passes = 0
    with torch.no_grad():
        network(torch.ones(4, 8))
    assert Block.passes == 2


def test_a_forward_of_the_instance_is_computed_again_too():
    block = Block()
    calls = []
    block.forward = lambda inputs: calls.append(0) or block.linear(inputs)
    network = nn.Sequential(block, nn.Linear(8, 2))
    recompute_in_place(network)
    network(torch.ones(4, 8)).sum().backward()
    assert len(calls) == 2


def test_a_block_that_occurs_twice_is_changed_once_and_the_last_one_stays():
    block, last = Block(), nn.Linear(8, 8)
    network = nn.Sequential(block, block, last)
    network.add_module("3", last)
    recompute_in_place(network)
    Block.passes = 0
    trained(network)
    assert Block.passes == 4
    assert type(last) is nn.Linear


def test_buffers_come_back_even_if_a_pass_fails():
    norm = nn.BatchNorm1d(8)
    mean = norm.running_mean
    with pytest.raises(RuntimeError), with_copied_buffers(norm):
        assert norm.running_mean is not mean
        norm(torch.ones(4, 7))
    assert norm.running_mean is mean


def test_only_blocks_without_buffers_can_be_compiled_and_recomputed():
    linear = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    assert buffered_block(nn.Sequential(linear, linear, Block())) is None
    assert buffered_block(nn.Sequential(linear, Block(), linear)) == "1"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
def test_a_compiled_network_has_the_same_gradients():
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    network = nn.Sequential(*blocks, nn.Linear(8, 2))
    again = copy.deepcopy(network)
    recompute_in_place(again)
    compile_in_place(again)
    for value, right in zip(trained(again), trained(network), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5)
