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
_SECONDS = (
    {("imagenet", "resnet152"), ("imagenet", "vgg16"), ("imagenet", "vit-base")}
    | {("highres", network) for network in NETWORKS if network not in ("mobilenetv2", "resnet18")}
    | {("tokens", "gpt-small"), ("tokens", "gpt-medium")}
)
_SECONDS |= {
    ("tokens-gpt2", network) for network in NETWORKS if NETWORKS[network].reads == "tokens"
}


@pytest.mark.parametrize(
    ("dataset", "network"),
    [
        pytest.param(
            *(dataset, network),
            marks=[pytest.mark.exhaustive] if (dataset, network) in _SECONDS else [],
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
