"""Batch norm counts a micro-batch once, also where torchgpipe computes it twice."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torchgpipe import GPipe

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.strategies.recomputation import why_not_recomputed
from ddlbench.strategies.torchgpipe.executor import count_once


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


class Counts(nn.Module):
    """Gives another result at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return inputs * self.calls


class Descends(nn.Module):
    """Takes the gradient of its input, which a pass without a graph has not."""

    def forward(self, inputs):
        inputs = inputs.requires_grad_()
        return torch.autograd.grad(inputs.square().sum(), inputs, create_graph=True)[0]


@pytest.mark.parametrize(
    ("block", "why"),
    [(Counts(), "gives another result than the first one"), (Descends(), "fails: element 0")],
)
def test_a_pass_that_cannot_run_again_is_refused(block, why):
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), block)
    mnist, instead = DATASETS["mnist"], "checkpoint: never"
    reason = why_not_recomputed(network, mnist, torch.float32, instead, with_graph=False)
    assert re.search(f"{why}.*; write {instead}", reason)


def test_batch_norm_and_dropout_run_again():
    layers = nn.Linear(784, 10), nn.BatchNorm1d(10), nn.Dropout(0.5)
    network = nn.Sequential(nn.Flatten(), *layers)
    assert why_not_recomputed(network, DATASETS["mnist"], torch.float32, "") is None
