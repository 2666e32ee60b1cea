"""Vision transformers: published counts, torchvision's outputs and gradients, layers that match."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import load
from ddlbench.networks import build, num_parameters
from ddlbench.networks.factory import try_out
from ddlbench.networks.torchvision_compat import models

# At 224 pixels and 1000 classes. ViT-B/16: torchvision, beside its weights. ViT-S/16 and ViT-Ti/16
# are DeiT-S and DeiT-Ti; their multiply-adds are those of timm's model cards, to one decimal.
PUBLISHED = {
    "vit-tiny": (5_717_416, 1.3),
    "vit-small": (22_050_664, 4.6),
    "vit-base": (86_567_656, 17.6),
}


@pytest.mark.parametrize("network", PUBLISHED)
def test_parameters_and_operations_are_the_published_ones(network: str) -> None:
    parameters, giga_multiply_adds = PUBLISHED[network]
    spec = DATASETS["imagenet"]
    with torch.device("meta"):
        assert num_parameters(load("ddlbench.networks", network)(spec)) == parameters
    assert round(try_out(network, spec) / 2e9, 1) == giga_multiply_adds


def test_vit_b_has_torchvisions_counts() -> None:
    published = models.ViT_B_16_Weights.IMAGENET1K_V1.meta
    assert published["num_params"] == PUBLISHED["vit-base"][0]
    assert round(try_out("vit-base", DATASETS["imagenet"]) / 2e9, 3) == published["_ops"]


def _ours(name: str) -> str:
    """Where a parameter of torchvision's VisionTransformer is here."""
    for theirs, ours in (
        ("class_token", "patches.class_token"),
        ("conv_proj", "patches.cut"),
        ("encoder.pos_embedding", "patches.positions"),
        ("encoder.layers.encoder_layer_", "layer_"),
        ("encoder.ln", "norm"),
        ("heads.head", "head"),
        (".ln_", ".norm"),
        (".self_attention.out_proj", ".attention.output"),
        (".mlp.0.", ".fc1."),
        (".mlp.3.", ".fc2."),
    ):
        name = name.replace(theirs, ours)
    return name


def _split(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Under our names; torchvision has one projection for query, key and value."""
    ours = {}
    for name, value in tensors.items():
        layer, _, kind = name.rpartition(".in_proj_")
        if layer:
            for part, tensor in zip(("query", "key", "value"), value.chunk(3), strict=True):
                ours[f"{_ours(layer + '.')[:-1]}.{part}.{kind}".replace("self_", "")] = tensor
        else:
            ours[_ours(name)] = value
    return ours


def test_it_computes_what_torchvisions_does() -> None:
    spec = DATASETS["cifar10"]
    flat = build("vit-tiny", spec, seed=1).double()
    theirs = models.VisionTransformer(32, 4, 12, 3, 192, 768, num_classes=10).double()
    torch.nn.init.normal_(theirs.heads.head.weight)  # theirs begins with zeros
    flat.load_state_dict(_split(theirs.state_dict()))
    images = torch.randn(2, *spec.shape, dtype=torch.float64)
    labels = torch.tensor([1, 2])
    outputs = []
    for network in (flat, theirs):
        outputs.append(network(images))
        cross_entropy(outputs[-1], labels).backward()
    torch.testing.assert_close(*outputs)
    expected = _split({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in flat.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


@pytest.mark.parametrize(
    ("dataset", "tokens"), [("mnist", 50), ("cifar10", 65), ("imagenet", 197), ("highres", 1025)]
)
def test_an_image_is_so_many_tokens(dataset: str, tokens: int) -> None:
    spec = DATASETS[dataset]
    with torch.device("meta"):
        network = load("ddlbench.networks", "vit-tiny")(spec)
        shapes = [network[:end](torch.empty(2, *spec.shape)).shape for end in (1, 13, -1)]
    assert shapes == [(2, tokens, 192), (2, tokens, 192), (2, 192)]


def test_its_layers_are_equal_blocks() -> None:
    network = build("vit-tiny", DATASETS["mnist"], seed=1)
    layers = [f"layer_{number}" for number in range(12)]
    assert list(network._modules) == ["patches", *layers, "norm", "class_token", "head"]
    counts = {num_parameters(network.get_submodule(name)) for name in layers}
    assert counts == {12 * 192**2 + 13 * 192}


def test_patches_that_do_not_cover_the_image_are_refused() -> None:
    odd = DatasetSpec("odd", "Odd", 10, 3, 200, 224, 8, 8, "raw")
    with pytest.raises(ConfigError, match=r"200x224 pixels into patches of 16x16.*multiples of 16"):
        build("vit-tiny", odd, seed=1)
