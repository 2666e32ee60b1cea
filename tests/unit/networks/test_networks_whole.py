"""Networks that are one block: any module, and those of libraries."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import SHIPPED_STRATEGIES, load
from ddlbench.networks.factory import build, checked, skeleton, try_network
from ddlbench.networks.foreign import tensor_of, whole, why_uncut
from ddlbench.planning.labels import network_label
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.trainable import why_not_cut

CIFAR10, IMAGENET, TOKENS = (DATASETS[name] for name in ("cifar10", "imagenet", "tokens"))
PHOTOS = replace(CIFAR10, name="own", native_format="imagefolder", source="/data")
LOGITS = torch.ones(2, 10)
Outputs = namedtuple("Outputs", "logits aux")


class Returns(nn.Module):
    """Hands on what it was made with."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.returned


class ByKeyword(nn.Module):
    def forward(self, input_ids: Any = None, labels: Any = None) -> torch.Tensor:
        assert labels is None
        return input_ids + 1


class WantsTwo(nn.Module):
    def forward(self, images: Any, labels: Any, *rest: Any, scale: float = 1.0) -> Any:
        return images + labels


class WantsAKeyword(nn.Module):
    def forward(self, images: Any, *, mask: Any) -> Any:
        return images * mask


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (WantsTwo(), r"forward of WantsTwo wants 2 inputs \(images, labels\), and only one"),
        (nn.Sequential(nn.ReLU(), WantsAKeyword()), r"WantsAKeyword wants 2 inputs \(images, mask"),
        (nn.Bilinear(2, 2, 2), r"Bilinear wants 2 inputs \(input1, input2\)"),
    ],
)
def test_more_inputs_than_a_dataset_gives_are_refused(network, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        checked("mynets:net", network)


def test_inputs_that_a_hook_or_a_default_gives_are_not_missing() -> None:
    network = nn.Bilinear(2, 2, 2)
    network.register_forward_pre_hook(lambda _, inputs: (inputs[0], inputs[0]))
    assert why_uncut(checked("mynets:net", network))
    assert why_uncut(checked("mynets:net", ByKeyword()))


@pytest.mark.parametrize(
    "returned",
    [
        LOGITS,
        Outputs(LOGITS, None),
        SimpleNamespace(logits=LOGITS),
        {"logits": LOGITS, "hidden": torch.zeros(3)},
        {"out": LOGITS, "aux": torch.zeros(3)},
        (LOGITS, torch.zeros(3)),
        [None, LOGITS],
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_tensor_of_what_a_module_returns(returned: Any) -> None:
    network = whole(Returns(returned), "it is one")
    assert network(torch.zeros(2)) is LOGITS


@pytest.mark.parametrize("returned", [None, 3, {}, {"loss": LOGITS}, (), ({},)])
def test_what_is_no_tensor_is_one_sentence(returned: Any) -> None:
    with pytest.raises(ConfigError, match="without a tensor called logits or out; return one"):
        tensor_of(returned)


def test_the_first_argument_is_given_by_keyword_where_libraries_want_it() -> None:
    assert whole(ByKeyword(), "it is one")(torch.tensor([1, 2])).tolist() == [2, 3]


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "vit_b_16",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mobilenet_v3_small", "googlenet")
        ),
    ],
)
def test_torchvision_s_networks_are_built_for_the_dataset(name: str) -> None:
    tried = try_network(f"torchvision:{name}", CIFAR10 if name != "googlenet" else IMAGENET)
    assert tried.operations > 0
    assert not tried.traits.uncut
    assert not tried.traits.unused


@pytest.mark.slow
def test_the_weights_are_the_library_s_and_follow_from_the_seed() -> None:
    from ddlbench.networks.torchvision_compat import models

    (first, second, other) = (build("torchvision:resnet18", CIFAR10, seed) for seed in (1, 1, 2))
    names = {name.partition(".")[2] for name in first.state_dict()}
    assert names == set(models.resnet18(num_classes=10).state_dict())
    weights = [network.conv1.conv1.weight for network in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert skeleton("torchvision:resnet18", CIFAR10).fc.fc.weight.is_meta


@pytest.mark.parametrize(
    ("network", "dataset", "sentence"),
    [
        ("torchvision:resnet5", CIFAR10, "torchvision has no network 'resnet5'; did you mean"),
        ("torchvision:", CIFAR10, "torchvision has no network ''; known: alexnet"),
        ("torchvison:resnet18", CIFAR10, "no module torchvison; did you mean 'torchvision'?"),
        ("torchvision:fcn_resnet50", CIFAR10, "for segmentation; networks here classify images"),
        ("torchvision:raft_small", CIFAR10, "for optical flow; networks here classify images"),
        ("torchvision:resnet18?weights=DEFAULT", IMAGENET, "weights would load the weights of oth"),
        ("torchvision:resnet18?a=1&b=2", IMAGENET, "write name=value, with commas between"),
        ("torchvision:alexnet", CIFAR10, "too small; a network for images of 224 pixels may need"),
        ("torchvision:alexnet", PHOTOS, "of 224 pixels needs size: 224 at data.own"),
        ("torchvision:vit_h_14", CIFAR10, "cannot be built for cifar10, 3x32x32: Input shape indi"),
        (
            "torchvision:vit_b_16?num_layers=1000000000",
            IMAGENET,
            "num_layers is 10+; write at",
        ),
        ("hf:vit?num_hidden_layers=1e9", IMAGENET, "num_hidden_layers is 10+.0; write at most"),
        ("torchvision:resnet18?depth=3", CIFAR10, "does not take these arguments: .*depth"),
        ("torchvision:resnet18", TOKENS, "reads images, but dataset tokens has tokens"),
        ("torchvision:resnet18", DATASETS["mnist"], "reads 3 channels, but dataset mnist has 1"),
    ],
)
def test_a_name_or_dataset_that_does_not_fit_is_one_sentence(network, dataset, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        try_network(network, dataset)


def skip_without(package: str) -> None:
    """Skip a test; the package itself is imported by what is tested, after its repairs."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize(
    ("package", "network", "dataset", "sentence"),
    [
        ("timm", "timm:convnext_tinny", CIFAR10, "did you mean 'convnext_tiny'?"),
        ("timm", "timm:resnet18?pretrained=true", CIFAR10, "pretrained would load the weights of"),
        (
            "transformers",
            "hf:gpt2?n_layr=3",
            TOKENS,
            "has no argument 'n_layr'; did you mean 'n",
        ),
        (
            "transformers",
            "hf:gpt2?n_head=5",
            TOKENS,
            "cannot be built for tokens, 128: .*divisible",
        ),
        ("transformers", "hf:t5", TOKENS, "no causal language model of type t5, .*; take hf:g"),
        ("transformers", "hf:gpt2", CIFAR10, "no image classifier of type gpt2, .*; take hf:v"),
        (
            "transformers",
            "hf:vit",
            DATASETS["cosmoflow"],
            "reads images, but dataset cosmof",
        ),
    ],
)
def test_so_it_is_with_libraries_to_be_installed(package, network, dataset, sentence) -> None:
    skip_without(package)
    with pytest.raises(ConfigError, match=sentence):
        try_network(network, dataset)


@pytest.mark.parametrize(
    ("network", "count"),
    [
        ("hf:gpt2?n_layer=2,n_embd=32,n_head=2", 8),
        ("hf:roberta?hidden_size=32,num_hidden_layers=2,num_attention_heads=2", 13),
        (
            "hf:mixtral?hidden_size=32,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=2",
            7,
        ),
    ],
)
def test_language_models_are_cut(network, count) -> None:
    skip_without("transformers")
    tried = try_network(network, TOKENS)
    assert len(tried.traits.blocks) == count
    assert not tried.traits.unused


@pytest.mark.parametrize(("word", "package"), [("timm", "timm"), ("hf", "transformers")])
def test_a_library_that_is_missing_is_named(word: str, package: str, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ConfigError, match=f"{package} is not installed .*pip install {package}"):
        load("ddlbench.networks", f"{word}:resnet50")


def test_arguments_stand_behind_a_question_mark() -> None:
    name = "torchvision:resnet18?zero_init_residual=true,width_per_group=32"
    cell = Cell("cifar10", name, "ddp", 32, devices_per_node=2)
    assert cell.id.split("/")[1].endswith("resnet18~~zero_init_residual=true~width_per_group=32")
    assert Cell.from_id(cell.id) == cell
    with pytest.raises(ConfigError, match="width_per_group"):  # basic blocks have one width
        try_network(name, CIFAR10)
    network = build("torchvision:resnet18?zero_init_residual=true", CIFAR10, seed=1)
    assert not network.layer1_0.get_parameter("layer1.0.bn2.weight").any()


@pytest.mark.parametrize(
    "name", ["m:f?", "m:f?a", "m:f?a=", "m:f?=1", "m:f?a=1,", "m:f?a=1?b=2", "m:f?a=/x", "?a=1"]
)
def test_wrong_arguments_are_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot stand in a path: .*\?argument=value"):
        Cell("cifar10", name, "ddp", 32)


@pytest.mark.parametrize(
    ("network", "label"),
    [
        ("torchvision:resnet50", "ResNet-50 (torchvision)"),
        ("torchvision:vit_b_16", "ViT b 16 (torchvision)"),
        ("timm:convnext_tiny", "ConvNeXt tiny (timm)"),
        ("timm:dm_nfnet_f0", "dm nfnet f0 (timm)"),
        ("hf:gpt2?n_layer=4,n_embd=64", "GPT-2, n_layer=4, n_embd=64 (hf)"),
        ("hf:gpt2?n_layer=4,n_embd=64,n_head=4", "GPT-2, n_layer=4 ... d7df (hf)"),
        ("hf:mine.json", "mine.json (hf)"),
        ("mine.models:unet", "unet"),
    ],
)
def test_labels_name_the_library(network: str, label: str) -> None:
    assert network_label(network) == label


@pytest.mark.parametrize("strategy", SHIPPED_STRATEGIES)
def test_only_strategies_with_stages_need_cuts(strategy: str) -> None:
    uncut = NetworkTraits(blocks=("ResNet",), uncut=why_uncut(whole(nn.ReLU(), "it is one block")))
    cell = Cell("cifar10", "torchvision:resnet18", strategy, 32, devices_per_node=2)
    why = why_not_cut(uncut, cell)
    if "balance" in strategy_of(strategy).options.defaults():
        assert why is not None
        assert why.code == "cannot_be_cut"
        assert "it is one block" in why
    else:
        assert why is None
    assert why_not_cut(NetworkTraits(), cell) is None
    assert why_not_cut(uncut, cell.with_(devices_per_node=1)) is None
