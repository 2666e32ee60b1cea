"""What can be split and what cannot, without processes: the limiting layer is named."""

from __future__ import annotations

import pytest
import torch
from cases.split_layer_cases import fake_grid, fake_group, traced
from torch import nn
from torch.nn import functional

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import load
from ddlbench.networks import build
from ddlbench.networks.flat import out_of_place
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.splits.convert import GATHER_NAME, split_rows, split_weights
from ddlbench.strategies.training import with_precision

IMAGE_NETWORKS = (
    *("resnet18", "resnet50", "vgg11", "vgg16", "mobilenetv2", "alexnet"),
    pytest.param("resnet152", marks=pytest.mark.slow),
)


def _meta(network: str, dataset: str):
    with torch.device("meta"):
        blocks = out_of_place(load("ddlbench.networks", network)(DATASETS[dataset]))
    return blocks, traced(blocks, (2, *DATASETS[dataset].shape))


@pytest.mark.parametrize("network", IMAGE_NETWORKS)
def test_imagenet_splits_by_rows_filters_and_channels(network):
    blocks, traces = _meta(network, "imagenet")
    names = [trace.name for trace in traces]
    before = [name for name, _ in blocks.named_parameters()]
    rows = split_rows(blocks, traces, fake_grid("height", 4))
    assert rows.split_blocks == names[: names.index("avgpool")]
    # VGG and AlexNet average over nothing: their head reads every position.
    mean = network.startswith(("resnet", "mobilenet"))
    assert rows.ends_with == ("mean" if mean else "gather")
    assert (GATHER_NAME in dict(blocks.named_children())) is not mean
    assert [name for name, _ in blocks.named_parameters()] == before
    for by in ("filter", "channel"):
        blocks, traces = _meta(network, "imagenet")
        dealt = split_weights(blocks, traces, fake_group(8), by)
        convolutions = [n for n in before if n.endswith("weight") and "bn" not in n]
        assert len(dealt.split_layers) >= 7
        assert len(dealt.split_layers) <= len(convolutions)
        assert (dealt.split_layers[0] in ("conv1", "features_0", "features_0.0")) == (
            by == "filter"
        )


@pytest.mark.parametrize(
    ("network", "dataset", "split", "devices", "sentence"),
    [
        (
            "vgg11",
            "cifar10",
            "height",
            2,
            "layer features_20 (MaxPool2d) has 1 row, too few for 2",
        ),
        (
            "vgg16",
            "imagenet",
            "width",
            8,
            "(MaxPool2d) has 7 columns, too few for 8 devices; use 7 at most",
        ),
        ("resnet50", "mnist", "height", 5, "layer layer4_0.conv2 (Conv2d) has 4 rows"),
        ("resnet18", "cifar10", "both", 25, "layer layer4_0.conv1 (Conv2d) has 4 rows"),
        (
            "cases.split_networks:mixing",
            "mnist",
            "height",
            2,
            "block scaled calls aten.amax.default",
        ),
        (
            "cases.split_networks:unknown",
            "mnist",
            "height",
            2,
            "layer norm (GroupNorm) cannot be split",
        ),
    ],
)
def test_rows_name_the_limiting_layer(network, dataset, split, devices, sentence):
    blocks, traces = _meta(network, dataset)
    with pytest.raises(Unsupported) as error:
        split_rows(blocks, traces, fake_grid(split, devices))
    assert sentence in str(error.value)


def test_an_earlier_end_makes_room():
    blocks, traces = _meta("vgg11", "cifar10")
    rows = split_rows(blocks, traces, fake_grid("height", 2), until="features_20")
    assert rows.split_blocks[-1] == "features_19"
    names = list(dict(blocks.named_children()))
    assert names[names.index("features_19") + 1 :][:2] == [GATHER_NAME, "features_20"]


@pytest.mark.parametrize(
    ("network", "dataset", "devices", "last"),
    [
        ("vgg11", "cifar10", 2, "features_19"),
        ("vgg11", "cifar10", 4, "features_14"),
        ("resnet18", "mnist", 4, "layer4_1"),
        ("resnet18", "mnist", 5, "layer3_1"),
        ("cosmoflow", "cosmoflow", 4, "relu6"),
    ],
)
def test_an_end_that_finds_itself(network, dataset, devices, last):
    blocks, traces = _meta(network, dataset)
    rows = split_rows(blocks, traces, fake_grid("height", devices), until="auto")
    assert rows.split_blocks[-1] == last


@pytest.mark.parametrize(
    ("until", "sentence"),
    [
        ("fc", "until: fc names no block up to the head; write one of bn1, "),
        ("nothing", "names no block"),
        ("conv1", "the first block, conv1, needs all rows"),
    ],
)
def test_ends_that_are_none(until, sentence):
    blocks, traces = _meta("resnet18", "mnist")
    with pytest.raises(Unsupported, match=sentence):
        split_rows(blocks, traces, fake_grid("height", 2), until=until)


@pytest.mark.parametrize(
    ("network", "by", "devices", "sentence"),
    [
        ("resnet18", "filter", 11, "layer fc (Linear) has 10 filters, too few for 11 devices"),
        ("mobilenetv2", "filter", 17, "layer classifier (Linear) has 10 filters, too few"),
        ("mobilenetv2", "channel", 17, "has 16 input channels, too few for 17 devices"),
    ],
)
def test_weights_name_the_limiting_layer(network, by, devices, sentence):
    blocks, traces = _meta(network, "mnist")
    with pytest.raises(Unsupported) as error:
        split_weights(blocks, traces, fake_group(devices), by)
    assert sentence in str(error.value)


def test_by_channel_the_first_layer_stays_whole():
    blocks, traces = _meta("resnet18", "cifar10")
    dealt = split_weights(blocks, traces, fake_group(4), "channel")
    assert "conv1" not in dealt.split_layers
    assert "conv1" in dealt.whole_layers
    assert dealt.split_layers[:2] == ["layer1_0.conv1", "layer1_0.conv2"]


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("by", ["filter", "channel"])
def test_a_part_of_a_layer_is_not_read_as_the_whole(name, by):
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    split_weights(network, traced(network, (2, 4)), fake_group(2), by)
    with pytest.raises(Unsupported, match=f"a block reads the {name} of a layer that is split"):
        getattr(network[1], name)
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    split_weights(network, traced(network, (2, 4)), fake_group(2), by)
    assert network[1].bias is None


class _ElementWise(nn.Module):
    """A function between layers."""

    def __init__(self, function):
        super().__init__()
        self.function, self.inner = function, nn.Identity()

    def forward(self, inputs):
        return self.function(self.inner(inputs))


@pytest.mark.parametrize(
    "function",
    [
        functional.hardswish,
        functional.logsigmoid,
        functional.mish,
        functional.gelu,
        lambda x: functional.hardswish(x + 1, inplace=True),
        lambda x: functional.threshold(x, 0.1, 20),
        lambda x: x.masked_fill(x > 1, 1.0),
        lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    ],
)
def test_functions_that_treat_every_position_alike_mix_no_rows(function):
    (block,) = traced(nn.Sequential(_ElementWise(function)), (2, 3, 4, 4))
    assert not block.mixing


def test_tracing_leaves_the_network_as_it_is():
    network = build("mobilenetv2", DATASETS["mnist"], seed=0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    hooks = sum(len(m._forward_hooks) for m in network.modules())
    traces = traced(network, (2, 1, 28, 28))
    assert traces[0].shapes == ((2, 1, 28, 28), (2, 32, 28, 28))
    assert traces[-1].layers == {"classifier": [((2, 1280), (2, 10))]}
    assert not any(trace.mixing for trace in traces[:-3])
    assert sum(len(m._forward_hooks) for m in network.modules()) == hooks
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_bfloat16_blocks_are_split_within_their_wrapping():
    network = with_precision(build("resnet18", DATASETS["mnist"], seed=0), "bf16", "cpu")
    rows = split_rows(network, traced(network, (2, 1, 28, 28)), fake_grid("height", 2))
    assert rows.ends_with == "mean"
    assert type(network[0].block).__name__ == "SpatialConvolution"
