"""Building by name: equal weights from equal seeds, a user's own network, and clear errors."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from math import prod
from types import ModuleType

import pytest
import torch
from torch import nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import NETWORKS, load, mismatch
from ddlbench.networks import build, num_parameters, without_dropout
from ddlbench.networks.factory import apart, checked, num_layers, try_out
from ddlbench.networks.foreign import why_uncut

CIFAR10 = DATASETS["cifar10"]
LARGE = {
    "resnet50",
    "resnet152",
    "vgg16",
    "vit-small",
    "vit-base",
}  # of families that have a smaller one
IMAGE_NETWORKS = [name for name in NETWORKS if mismatch(name, "cifar10") is None]


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, importable as ``user_networks``."""
    module = ModuleType("user_networks")
    monkeypatch.setitem(sys.modules, "user_networks", module)
    return module


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in LARGE else [])
        for name in IMAGE_NETWORKS
    ],
)
def test_same_seed_gives_same_weights_and_another_seed_does_not(network: str) -> None:
    first, same, other = (build(network, CIFAR10, seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_weights_do_not_depend_on_the_global_generator_nor_move_it() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build("mobilenetv2", CIFAR10, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = build("mobilenetv2", CIFAR10, seed=7)
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right)


def test_built_on_the_cpu_whatever_the_default_device() -> None:
    with torch.device("meta"):
        network = build("mobilenetv2", CIFAR10, seed=7)
    assert {parameter.device.type for parameter in network.parameters()} == {"cpu"}


@pytest.mark.parametrize("dataset", ["cifar10", "imagenet"])
@pytest.mark.parametrize("network", IMAGE_NETWORKS)
def test_no_block_overwrites_its_input(network: str, dataset: str) -> None:
    with torch.device("meta"):
        blocks = load("ddlbench.networks", network)(DATASETS[dataset])
    for name, block in blocks.named_children():
        first = next(module for module in block.modules() if not list(module.children()))
        assert not getattr(first, "inplace", False), name


def test_names_and_counts() -> None:
    network = build("resnet18", CIFAR10, seed=1)
    assert list(network._modules) == [
        *("conv1", "bn1", "relu"),
        *(f"layer{stage}_{index}" for stage in (1, 2, 3, 4) for index in (0, 1)),
        *("avgpool", "flatten", "fc"),
    ]
    assert num_parameters(network) == 11_173_962
    assert num_layers(build("vgg11", CIFAR10, seed=1)) == 9


def test_without_dropout() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout2d(0.1)), nn.ReLU())
    assert without_dropout(network) is network
    assert [network[0].p, network[1][0].p] == [0, 0]


def test_users_own_network(user_module: ModuleType) -> None:
    def tiny(spec: DatasetSpec) -> nn.Sequential:
        features = spec.channels * spec.height * spec.width
        return nn.Sequential(
            nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(features, spec.num_classes)
        )

    user_module.tiny = tiny  # type: ignore[attr-defined]
    network = build("user_networks:tiny", CIFAR10, seed=3)
    assert network(torch.randn(2, *CIFAR10.shape)).shape == (2, 10)
    assert not network[0].inplace
    again = build("user_networks:tiny", CIFAR10, seed=3)
    assert torch.equal(network[2].weight, again[2].weight)


def test_a_block_that_occurs_twice_is_two_blocks(user_module: ModuleType) -> None:
    def net(spec: DatasetSpec) -> nn.Sequential:
        relu, layer = nn.ReLU(), nn.Linear(spec.image_bytes, 10)
        return nn.Sequential(nn.Flatten(), relu, layer, relu)

    user_module.twice = net  # type: ignore[attr-defined]
    network = build("user_networks:twice", CIFAR10, seed=3)
    assert len(list(network.named_children())) == 4


class OwnForward(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def _views_of_one_memory() -> nn.Sequential:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = nn.Parameter(first.weight.detach().t())
    return nn.Sequential(first, second)


def _shared_buffer() -> nn.Sequential:
    first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    second.running_mean = first.running_mean
    return nn.Sequential(first, second)


def _hooked() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(4, 4))
    network.register_forward_pre_hook(lambda _module, _inputs: None)
    return network


def _with_a_buffer() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(4, 4))
    network.register_buffer("temperature", torch.ones(1))
    return network


def _scripted() -> nn.Sequential:
    return nn.Sequential(torch.jit.script(nn.Linear(4, 4)))


def _shared() -> nn.Sequential:
    linear = nn.Linear(4, 4)
    return nn.Sequential(linear, nn.ReLU(), linear)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda spec: None, "must return a torch.nn.Module, not NoneType"),
        (lambda spec: nn.Sequential(), "has no blocks"),
        (lambda spec: _scripted(), "block '0' is scripted"),
        (lambda spec: torch.jit.script(nn.Linear(4, 4)), "the network is scripted"),
        (3, "is not callable"),
    ],
)
def test_what_is_no_network_is_a_config_error(
    user_module: ModuleType, returned: object, message: str
) -> None:
    user_module.bad = returned  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=message):
        build("user_networks:bad", CIFAR10, seed=1)


class Returns(nn.Module):
    """A linear classifier whose output ``what`` changes."""

    def __init__(self, what: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.fc, self.what = nn.Linear(3072, 10), what

    def forward(self, images: torch.Tensor) -> object:
        return self.what(self.fc(images.flatten(1)))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda logits: logits.mean(), "not one number, as a loss is"),
        (lambda logits: logits.t(), r"not \(10, 2\) for two samples"),
        (lambda logits: logits[:, :3], r"not \(N, 3\)$"),
        (lambda logits: {"loss": logits}, "'user_networks:bad': the network returns dict without"),
    ],
)
def test_outputs_of_a_wrong_form_are_named_as_they_are(
    user_module: ModuleType, what: Callable[[torch.Tensor], object], message: str
) -> None:
    user_module.bad = lambda spec: Returns(what)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=message):
        try_out("user_networks:bad", CIFAR10)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (nn.Linear(2, 2), "it returns a Linear, not a torch.nn.Sequential"),
        (OwnForward(nn.ReLU()), "OwnForward has a forward or a call of its own"),
        (_shared(), "its blocks '0' and '2' share a parameter"),
        (_views_of_one_memory(), "its blocks '0' and '1' share a parameter"),
        (_shared_buffer(), "its blocks '0' and '1' share a buffer"),
        (_hooked(), "it has hooks, which belong to no block"),
        (_with_a_buffer(), "'temperature' is outside of its blocks"),
    ],
)
def test_what_is_not_its_blocks_is_one_block(returned: nn.Module, why: str) -> None:
    network = apart(checked("odd", returned))
    assert len(network) == 1
    assert why in why_uncut(network)


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="unknown network 'lenet'"):
        build("lenet", CIFAR10, seed=1)
    with pytest.raises(ConfigError, match="cannot load 'no_such_module:net'"):
        build("no_such_module:net", CIFAR10, seed=1)


@pytest.mark.parametrize(
    "network", [n for n in IMAGE_NETWORKS if ".convolutional:" in NETWORKS[n].build]
)
def test_large_images_have_three_channels(network: str) -> None:
    gray = DatasetSpec("gray", "Gray", 10, 1, 224, 224, 10, 10, "raw")
    with pytest.raises(ConfigError, match="read 3 channels, but dataset 'gray' has 1"):
        build(network, gray, seed=1)


class FrozenWhileTraining(nn.Module):
    """Freezes its first layer when it is told to train."""

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(prod(spec.shape), 4), nn.Linear(4, spec.num_classes)

    def train(self, mode: bool = True) -> FrozenWhileTraining:
        super().train(mode)
        self.body.requires_grad_(False)
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images.flatten(1)))


def patched(spec: DatasetSpec) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.shape), spec.num_classes))
    forward = network[1].forward
    network[1].forward = lambda values: 2 * forward(values)
    return network


def test_a_module_may_freeze_weights_where_it_is_told_to_train() -> None:
    network = build(f"{__name__}:FrozenWhileTraining", DATASETS["mnist"], 1)
    trained = [name for name, weight in network.named_parameters() if weight.requires_grad]
    assert len(trained) == 2
    assert all("head" in name for name in trained)


def test_a_forward_that_copies_would_lose_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"put into its layer 1 \(Linear\)"):
        build(f"{__name__}:patched", DATASETS["mnist"], 1)


def negates(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(forward)
    def decorated(self: nn.Module, images: torch.Tensor) -> torch.Tensor:
        return forward(self, images, -1.0)

    return decorated


class Chosen(nn.Module):
    """Its forward is decorated, calls a logger, and is one of its methods."""

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(prod(spec.shape), 4), nn.Linear(4, spec.num_classes)
        self.forward = self.negative

    @negates
    def negative(self, images: torch.Tensor, sign: float) -> torch.Tensor:
        LOG.debug("called")
        return self.head(torch.relu(sign * self.body(images.flatten(1))))


LOG = logging.getLogger("chosen")


def traced(spec: DatasetSpec) -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.shape), 4), nn.ReLU())
    return torch.fx.symbolic_trace(nn.Sequential(*layers, nn.Linear(4, spec.num_classes)))


@pytest.mark.parametrize("name", ["Chosen", "traced"])
def test_usual_ways_to_make_a_forward_are_cut(name: str) -> None:
    logging.basicConfig()
    assert len(build(f"{__name__}:{name}", DATASETS["mnist"], 1)) > 1
