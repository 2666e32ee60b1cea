"""ParaDL's other two networks: their counts, and CosmoFlow layer by layer as it was published."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import load
from ddlbench.networks import build, num_parameters
from ddlbench.predict.paradl.workload import load_workload


def _cube(side: int) -> DatasetSpec:
    return DatasetSpec("cube", "Cube", 4, 4, side, side, 8, 8, "raw", depth=side)


def _meta(network: str, spec: DatasetSpec) -> nn.Sequential:
    with torch.device("meta"):
        blocks: nn.Sequential = load("ddlbench.networks", network)(spec)
    return blocks


def test_alexnet_of_imagenet_is_torchvisions() -> None:
    assert num_parameters(_meta("alexnet", DATASETS["imagenet"])) == 61_100_840


@pytest.mark.parametrize(("dataset", "first"), [("mnist", 64 * 121), ("cifar10", 3 * 64 * 121)])
def test_alexnet_of_small_images(dataset: str, first: int) -> None:
    network = build("alexnet", DATASETS[dataset], seed=1)
    others = 192 * (64 * 25 + 1) + 384 * (192 * 9 + 1) + 256 * (384 * 9 + 1) + 256 * (256 * 9 + 1)
    assert num_parameters(network) == first + 64 + others + 2570
    assert network[:-3](torch.randn(2, *DATASETS[dataset].shape)).shape == (2, 256, 1, 1)


def test_cosmoflow_is_what_paradl_published() -> None:
    """Weights, inputs and outputs of every layer, from the oracle's workload."""
    wanted = [layer for layer in load_workload("cosmoflow-256").layers if layer.kind != "relu"]
    network = _meta("cosmoflow", DATASETS["cosmoflow"])
    passing = torch.empty((1, *DATASETS["cosmoflow"].shape), device="meta")
    actual = []
    for name, block in network.named_children():
        passing = block(passing)
        if not isinstance(block, nn.ReLU | nn.Flatten):
            extents = [*passing.shape[1:], *[1] * (5 - passing.dim())]
            actual.append((name, num_parameters(block), extents))
    assert actual == [(layer.name, layer.weights, [*layer.output]) for layer in wanted]


@pytest.mark.parametrize("side", [4, 6, 9, 16, 32])
def test_cosmoflow_of_smaller_volumes_trains(side: int) -> None:
    network = build("cosmoflow", _cube(side), seed=1)
    output = network(torch.randn(2, 4, side, side, side))
    assert output.shape == (2, 4)
    nn.functional.cross_entropy(output, torch.tensor([0, 3])).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [(DATASETS["mnist"], "reads volumes, but dataset 'mnist' has images"), (_cube(3), "has 3")],
)
def test_cosmoflow_says_what_it_reads(spec: DatasetSpec, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build("cosmoflow", spec, seed=1)
