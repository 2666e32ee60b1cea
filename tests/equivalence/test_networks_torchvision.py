"""For large images the flat networks are torchvision's: same counts, outputs and gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import load
from ddlbench.networks import build, num_parameters, without_dropout
from ddlbench.networks.torchvision_compat import models

# Of families that have a smaller one here, or with layers of 100 million weights.
_LARGE = {"resnet152", "vgg11", "vgg16"}
# Published beside torchvision's pretrained weights.
PUBLISHED = {
    "resnet18": (models.resnet18, 11_689_512),
    "resnet50": (models.resnet50, 25_557_032),
    "resnet152": (models.resnet152, 60_192_808),
    "vgg11": (models.vgg11, 132_863_336),
    "vgg16": (models.vgg16, 138_357_544),
    "mobilenetv2": (models.mobilenet_v2, 3_504_872),
}


def flat_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a torchvision state, renamed for the flat network."""
    return {re.sub(r"^(\w+)\.(\d+)\.", r"\1_\2.", key): value for key, value in state.items()}


def _output_and_gradients(model: nn.Module, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    output = model(images)
    cross_entropy(output, torch.arange(len(images))).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return output, gradients


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in _LARGE else [])
        for name in PUBLISHED
    ],
)
def test_same_as_torchvision(network: str) -> None:
    original_factory, published = PUBLISHED[network]
    flat = without_dropout(build(network, DATASETS["imagenet"], seed=1))
    original = without_dropout(original_factory())
    assert num_parameters(flat) == num_parameters(original) == published
    flat.load_state_dict(flat_state_dict(original.state_dict()))

    # The layers do not depend on the size of the image, so a smaller one tells as much.
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    output, gradients = _output_and_gradients(flat, images)
    expected, expected_gradients = _output_and_gradients(original, images)
    torch.testing.assert_close(output, expected)
    expected_gradients = flat_state_dict(expected_gradients)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], msg=name)

    flat.eval()
    original.eval()
    with torch.no_grad():
        torch.testing.assert_close(flat(images), original(images))


@pytest.mark.parametrize(
    "network",
    ["resnet18", pytest.param("vgg11", marks=pytest.mark.exhaustive), "mobilenetv2"],
)
def test_same_initial_weights_as_torchvision(network: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = flat_state_dict(PUBLISHED[network][0]().state_dict())
    state = build(network, DATASETS["imagenet"], seed=5).state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in state.items())


@pytest.mark.parametrize("network", PUBLISHED)
def test_highres_is_the_network_of_imagenet(network: str) -> None:
    factory = load("ddlbench.networks", network)
    with torch.device("meta"):
        imagenet, highres = (factory(DATASETS[name]) for name in ("imagenet", "highres"))
    assert repr(imagenet) == repr(highres)


def test_real_size_output_is_torchvisions() -> None:
    flat = build("mobilenetv2", DATASETS["highres"], seed=1).eval()
    original = models.mobilenet_v2().eval()
    flat.load_state_dict(flat_state_dict(original.state_dict()))
    images = torch.randn(1, 3, 512, 512, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(flat(images), original(images))
