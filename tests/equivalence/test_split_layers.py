"""Every split layer equals the layer unsplit: outputs, all gradients, statistics; real processes.

Random kernels, strides, dilations, paddings, groups and odd extents on 2, 3 and 4 ranks, two or
three dimensions, split along one of them or a grid of two.
"""

from __future__ import annotations

import pytest
from cases.split_layer_cases import Case, Cases, compare_all, random_rows, random_weights

from ddlbench.equivalence.rank_pool import run_ranks

CHAIN = (
    ("conv2", {"in_channels": 3, "out_channels": 4, "kernel_size": 7, "stride": 2, "padding": 3}),
    ("norm2", {"num_features": 4}),
    ("relu", {"inplace": True}),
    ("max2", {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("conv2", {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "groups": 4, "padding": 1}),
    ("mean2", {"kernel_size": 2, "stride": 1, "ceil_mode": True}),
    ("conv2", {"in_channels": 4, "out_channels": 5, "kernel_size": 3, "dilation": 2, "padding": 2}),
)
THIN = (
    ("conv2", {"in_channels": 2, "out_channels": 2, "kernel_size": 5, "padding": 2}),
    ("max2", {"kernel_size": 5, "stride": 1, "padding": 2}),
)
VOLUME = (
    ("conv3", {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "padding": 1}),
    ("norm3", {"num_features": 3}),
    ("mean3", {"kernel_size": 2, "stride": 2}),
    ("conv3", {"in_channels": 3, "out_channels": 2, "kernel_size": 2, "padding": "same"}),
)


def _written(world_size: int) -> list[Case]:
    cases = [Case(split, (2, 3, 33, 35), CHAIN) for split in ("height", "width", "both")]
    cases += [Case("height", (2, 2, world_size, 6), THIN)]
    cases += [Case(split, (1, 2, 8, 9, 10), VOLUME) for split in ("depth", "height", "both")]
    line = ("conv1", {"in_channels": 2, "out_channels": 3, "kernel_size": 4, "stride": 2})
    cases.append(Case("width", (2, 2, 19), (line,)))
    return cases


@pytest.mark.parametrize("world_size", [1, 2, 3, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_rows(world_size):
    cases = [*_written(world_size), *random_rows(60, world_size, seed=world_size)]
    run_ranks(compare_all, [Cases("rows", world_size, tuple(cases))], world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_filters_and_channels(world_size):
    cases = random_weights(40, world_size, seed=world_size)
    run_ranks(compare_all, [Cases("weights", world_size, tuple(cases))], world_size)
