"""The table of built-in networks has DDLBench's counts."""

from __future__ import annotations

import csv
import io
from functools import cache

import pytest

from ddlbench.experiment.registry import pairs
from ddlbench.networks.factory import pairs_table

# Parameters of DDLBench's own networks for small images, and of the perceptron by hand (784 or
# 3072 to 128 to 64 to 10); MNIST has one input channel.
SMALL = {
    "resnet18": (11_172_810, 11_173_962),
    "resnet50": (23_519_690, 23_520_842),
    "resnet152": (58_155_466, 58_156_618),
    "vgg11": (9_224_458, 9_225_610),
    "vgg16": (14_718_666, 14_719_818),
    "mobilenetv2": (2_296_346, 2_296_922),
    "mlp": (109_386, 402_250),
}


@cache
def _rows() -> dict[tuple[str, str], list[str]]:
    rows = list(csv.reader(io.StringIO(pairs_table())))[1:]
    return {(row[0], row[1]): row[2:] for row in rows}


def test_one_row_a_pair() -> None:
    assert list(_rows()) == [(network, spec.name) for network, spec in pairs()]


@pytest.mark.parametrize("network", SMALL)
def test_parameters_of_small_networks(network: str) -> None:
    rows = _rows()
    counts = tuple(int(rows[network, name][-1]) for name in ("mnist", "cifar10"))
    assert counts == SMALL[network]


@pytest.mark.parametrize(("dataset", "layers"), [("mnist", "9"), ("imagenet", "11")])
def test_layers_of_vgg11(dataset: str, layers: str) -> None:
    assert _rows()["vgg11", dataset][2] == layers
