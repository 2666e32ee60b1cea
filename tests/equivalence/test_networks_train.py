"""All pairs of network and dataset, forward and backward at their real size."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import NETWORKS, pairs
from ddlbench.networks import build
from ddlbench.networks.inputs import made_up_inputs

# CosmoFlow's real volumes take gigabytes: it trains on smaller ones in a test of its own.
_PAIRS = [(network, spec.name) for network, spec in pairs() if spec.kind != "volumes"]
# Of the families that resnet18 and resnet50, vgg11, vit-tiny and gpt-tiny stand for: they have more
# of the same blocks, or wider ones.
_LARGE = {
    *("resnet101", "resnet152", "vgg16", "vit-small", "vit-base"),
    *("gpt-small", "gpt-medium"),
}
_LARGE_INPUTS = {("highres", name) for name in NETWORKS if name not in ("mobilenetv2", "resnet18")}
_LARGE_INPUTS |= {("tokens-gpt2", name) for name in NETWORKS if NETWORKS[name].reads == "tokens"}


@pytest.mark.parametrize(
    ("dataset", "network"),
    [
        pytest.param(
            *(dataset, network),
            marks=[pytest.mark.exhaustive]
            if network in _LARGE or (dataset, network) in _LARGE_INPUTS
            else [],
        )
        for network, dataset in _PAIRS
    ],
)
def test_every_parameter_gets_a_finite_gradient(dataset: str, network: str) -> None:
    spec = DATASETS[dataset]
    blocks = build(network, spec, seed=1)
    torch.manual_seed(2)
    output = blocks(made_up_inputs(spec, 1))
    assert output.shape == (1, *spec.target_shape, spec.num_classes)
    labels = torch.full((1, *spec.target_shape), 3)
    cross_entropy(output.flatten(0, -2), labels.flatten()).backward()
    for name, parameter in blocks.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    first = next(block for block in blocks if list(block.parameters()))
    assert any(parameter.grad.any() for parameter in first.parameters())
