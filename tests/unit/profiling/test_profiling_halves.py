"""Halves of a backward pass give the gradients of a whole one; every block gets both."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from odd_blocks import Planted, Residual
from torch import Tensor, nn

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.profiling.blocks import (
    Block,
    blocks_of,
    clear_gradients,
    halved,
    next_input,
    time_halves,
)
from ddlbench.profiling.timers import CpuMarks, PassTimer, Samples

CPU = torch.device("cpu")
MARKS = partial(CpuMarks, processor=True)


def gradients(block: Block, inputs: Tensor, *, split: bool) -> list[Tensor | None]:
    """Of the input, then of all weights, for a gradient of ones."""
    clear_gradients(block.module)
    entering = inputs.detach().requires_grad_()
    torch.manual_seed(0)  # dropout draws alike
    outputs = block.forward(entering)
    if outputs._is_view():
        outputs = outputs.clone()
    if split:
        halved(block, entering, outputs, torch.ones_like(outputs), CpuMarks(False))
    else:
        outputs.backward(torch.ones_like(outputs))
    return [entering.grad, *(weight.grad for weight in block.module.parameters())]


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "mobilenetv2"])
def test_both_halves_are_the_whole(name) -> None:
    network = build(name, DATASETS["cifar10"], seed=0)
    inputs = torch.randn(2, 3, 32, 32)
    for block in blocks_of(network, "fp32", CPU, resident=True):
        whole = gradients(block, inputs, split=False)
        split = gradients(block, inputs, split=True)
        for first, second in zip(whole, split, strict=True):
            assert (first is None) == (second is None), block.name
            if first is not None:
                torch.testing.assert_close(first, second)
        inputs = next_input(block.forward(inputs)).detach()


def test_every_block_gets_both_halves() -> None:
    # A pass of known length that has no weights; the last block is a view of its input.
    network = nn.Sequential(
        nn.Conv2d(1, 4, 1), Residual(4), Planted(0.0, 0.02), nn.Flatten(), nn.Flatten()
    )
    blocks = blocks_of(network, "fp32", CPU, resident=True)
    samples = Samples()
    time_halves(blocks, torch.randn(2, 1, 4, 4), PassTimer(MARKS, lambda _s: 3, samples))
    for block in blocks:
        for half in ("forward", "backward"):
            assert [t["batch_size"] for t in samples.timings(block.index, half)] == [2]
    input_half, weight_half = (samples.timings(2, half)[0] for half in ("forward", "backward"))
    assert input_half["time_s"] > 5 * weight_half["time_s"]
    assert all(weight.grad is None for weight in network.parameters())
