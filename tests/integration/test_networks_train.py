"""All pairs of network and dataset, forward and backward at their real size."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import NETWORKS, pairs
from ddlbench.networks import build

# CosmoFlow's real volumes take gigabytes: it trains on smaller ones in a test of its own.
_IMAGES = [(network, spec.name) for network, spec in pairs() if spec.depth is None]
_SECONDS = {("imagenet", "resnet152"), ("imagenet", "vgg16"), ("imagenet", "vit-base")} | {
    ("highres", network) for network in NETWORKS if network not in ("mobilenetv2", "resnet18")
}


@pytest.mark.parametrize(
    ("dataset", "network"),
    [
        pytest.param(
            *(dataset, network),
            marks=[pytest.mark.exhaustive] if (dataset, network) in _SECONDS else [],
        )
        for network, dataset in _IMAGES
    ],
)
def test_every_parameter_gets_a_finite_gradient(dataset: str, network: str) -> None:
    spec = DATASETS[dataset]
    blocks = build(network, spec, seed=1)
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(1, *spec.shape, generator=generator)
    output = blocks(images)
    assert output.shape == (1, spec.num_classes)
    cross_entropy(output, torch.tensor([3])).backward()
    for name, parameter in blocks.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    first = next(block for block in blocks if list(block.parameters()))
    assert any(parameter.grad.any() for parameter in first.parameters())
