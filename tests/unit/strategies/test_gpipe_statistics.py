"""Batch norm counts a micro-batch once, also where torchgpipe computes it twice."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchgpipe import GPipe

from ddlbench.strategies.torchgpipe.statistics import count_once


@pytest.mark.parametrize("checkpoint", ["always", "except_last"])
def test_statistics_are_those_of_one_pass(checkpoint):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    plain = copy.deepcopy(network)
    count_once(network)
    pipeline = GPipe(network, [2, 1], devices=["cpu", "cpu"], chunks=4, checkpoint=checkpoint)
    inputs = torch.randn(8, 3, dtype=torch.float64)
    for _ in range(2):
        pipeline(inputs).square().sum().backward()
        for part in inputs.chunk(4):
            plain(part).square().sum().backward()
    for (name, value), expected in zip(network.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(value, expected, msg=name)
    for weight, expected in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, expected.grad)
