"""The sum over a group of one rank: every gradient comes back, in its shape and order."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddlbench.strategies.process_group import GradientSum, sum_gradients


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def some_gradients():
    torch.manual_seed(0)
    shapes = [(2, 3), (4,), (5, 5), (), (3, 2)]
    actual = [torch.randn(shape) for shape in shapes]
    return [*actual, torch.randn(2, dtype=torch.float64), torch.randn(6, 4).t()]


@pytest.mark.parametrize("bucket_bytes", [1, 40, 2**20])
@pytest.mark.parametrize("in_place", [False, True])
def test_sums_come_back_in_order(alone, bucket_bytes, in_place):
    gradients = some_gradients()
    before = [gradient.clone() for gradient in gradients]
    total = GradientSum(gradients, None, bucket_bytes, in_place=in_place)
    for summed, gradient in zip(total.wait(2), before, strict=True):
        assert torch.equal(summed, gradient / 2)
    if not in_place:
        assert all(torch.equal(g, b) for g, b in zip(gradients, before, strict=True))


def test_parameters_keep_their_gradients_object(alone):
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
    parameters[1].grad = torch.arange(4.0).view(2, 2)
    held = parameters[1].grad
    sum_gradients(parameters, None)
    assert parameters[0].grad is None
    assert parameters[1].grad is held
    assert torch.equal(held, torch.arange(4.0).view(2, 2))
