"""Saved and output bytes of layers whose backward pass is known."""

from __future__ import annotations

import pytest
import torch
from odd_blocks import Residual
from torch import nn

from ddlbench.profiling.blocks import blocks_of
from ddlbench.profiling.layers import network_bytes

F4 = 4  # bytes of a float32


def traced(*modules, shape=(2, 6, 6), precision="fp32"):
    blocks = blocks_of(nn.Sequential(*modules), precision, torch.device("cpu"), resident=True)
    return network_bytes(blocks, lambda samples: torch.randn(samples, *shape))


def saved(*modules, **options):
    return [size for _, _, size in traced(*modules, **options).blocks]


def test_a_linear_layer_keeps_its_input():
    assert saved(nn.Flatten(), nn.Linear(72, 5)) == [0, 72 * F4]


def test_a_convolution_keeps_its_input_not_its_weight():
    assert saved(nn.Conv2d(2, 3, 3)) == [72 * F4]


@pytest.mark.parametrize("inplace", [False, True])
def test_relu_keeps_its_output_once(inplace):
    # conv's input, then one tensor that is the ReLU's result and the next convolution's input.
    network = nn.Sequential(
        nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(inplace), nn.Conv2d(2, 2, 3, padding=1)
    )
    actual = traced(network)
    assert [leaf.saved_bytes for leaf in actual.leaves[0]] == [72 * F4, 72 * F4, 0]
    assert actual.blocks[0][2] == 2 * 72 * F4


def test_storage_shared_across_a_boundary_counts_with_the_first_block():
    layers = (nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1))
    assert saved(*layers) == [72 * F4, 72 * F4, 0]


def test_a_view_shares_storage_across_boundaries():
    layers = (nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5))
    assert saved(*layers) == [72 * F4, 72 * F4, 0, 0]


def test_batch_norm_keeps_its_input_and_no_statistics():
    # Means and variances do not grow with the batch; running ones are buffers.
    assert saved(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)) == [72 * F4, 72 * F4]


def test_max_pooling_keeps_its_input_and_indices():
    assert saved(nn.Conv2d(2, 2, 1), nn.MaxPool2d(2)) == [72 * F4, 72 * F4 + 2 * 9 * 8]


def test_a_residual_block():
    # Conv1's input, the first ReLU's result (conv2's input too), the second one's. The first
    # ReLU is called again: two operations of one module.
    actual = traced(nn.Conv2d(2, 2, 1), Residual(2))
    assert actual.blocks[1][2] == 3 * 72 * F4
    assert [leaf.name for leaf in actual.leaves[1]] == [
        "1.conv1", "1.relu", "1.conv2", "1.relu#2",
    ]  # fmt: skip
    assert [leaf.saved_bytes for leaf in actual.leaves[1]] == [72 * F4, 72 * F4, 0, 72 * F4]


def test_input_and_output_bytes():
    actual = traced(nn.Conv2d(2, 5, 3), nn.Flatten())
    assert [block[:2] for block in actual.blocks] == [
        (72 * F4, 80 * F4),
        (80 * F4, 80 * F4),
    ]


def test_parameters_count_with_the_first_call():
    linear = nn.Linear(72, 72)
    actual = traced(nn.Flatten(), nn.Sequential(linear, nn.ReLU(), linear))
    assert [leaf.parameter_bytes for leaf in actual.leaves[1]] == [72 * 73 * F4, 0, 0]


def test_bf16_keeps_half():
    # A bfloat16 copy of the input is what the convolution keeps.
    assert saved(nn.Conv2d(2, 3, 3), precision="bf16") == [72 * 2]
