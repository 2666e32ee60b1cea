"""Every network runs under torchgpipe wherever it is cut, with the results of the uncut one.

GPipe normalises each micro-batch by itself, so the reference is the uncut network called on one
micro-batch after the other. Recomputation is on (torchgpipe's default): it is what an operation
that overwrites a partition's input would break.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchgpipe import GPipe

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import NETWORKS, mismatch
from ddlbench.networks import build, without_dropout

CHUNKS = 2
IMAGE_NETWORKS = [name for name in NETWORKS if mismatch(name, "imagenet") is None]
# Of the families that resnet18, vgg11 and vit-tiny stand for.
LARGE = {"resnet50", "resnet101", "resnet152", "vgg16", "vit-small", "vit-base"}
# Of which a dense layer takes most of the time: their blocks are cut on small images.
DENSE = {"alexnet", "vgg11"}


def _images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def _gpipe(network: nn.Sequential, balance: list[int]) -> GPipe:
    return GPipe(network, balance, devices=["cpu"] * len(balance), chunks=CHUNKS)


def _train(network: nn.Sequential, outputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    # Not autograd.grad: torchgpipe's recomputation adds to .grad behind its back.
    network.zero_grad()
    cross_entropy(outputs, torch.arange(len(outputs))).backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return outputs.detach(), gradients


def _assert_cut_equals_uncut(
    network: nn.Sequential, images: Tensor, balances: list[list[int]]
) -> None:
    network = without_dropout(network)
    start = copy.deepcopy(network.state_dict())
    outputs, gradients = _train(
        network, torch.cat([network(chunk) for chunk in images.chunk(CHUNKS)])
    )
    names = [name for name, _ in network.named_parameters()]
    for balance in balances:
        network.load_state_dict(start)
        cut_outputs, cut_gradients = _train(network, _gpipe(network, balance)(images))
        torch.testing.assert_close(cut_outputs, outputs)
        for name, cut, uncut in zip(names, cut_gradients, gradients, strict=True):
            torch.testing.assert_close(cut, uncut, msg=f"{name}, balance {balance}")

    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(_gpipe(network, balances[0])(images), network(images))


def _balances(blocks: int) -> list[list[int]]:
    """Everywhere at once, in the middle, and in unequal thirds."""
    return [
        [1] * blocks,
        [blocks // 2, blocks - blocks // 2],
        [2, blocks // 2, blocks - 2 - blocks // 2],
    ]


@pytest.mark.parametrize(
    "dataset", [pytest.param("mnist", marks=pytest.mark.exhaustive), "cifar10"]
)
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in LARGE else [])
        for name in IMAGE_NETWORKS
    ],
)
def test_small_images(network: str, dataset: str) -> None:
    spec = DATASETS[dataset]
    blocks = build(network, spec, seed=1)
    balances = _balances(len(blocks))
    # One dataset shows that parts of several blocks are alike.
    few = dataset == "mnist" or network == "resnet152"
    _assert_cut_equals_uncut(blocks, _images(2, *spec.shape), balances[:1] if few else balances)


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in LARGE | DENSE else [])
        for name in IMAGE_NETWORKS
        # The first layer of these takes images of one size.
        if name != "mlp" and not name.startswith("vit-")
    ],
)
def test_networks_of_imagenet_and_highres(network: str) -> None:
    blocks = build(network, DATASETS["imagenet"], seed=1)
    # What is cut does not depend on the size of the image; a small one is faster.
    _assert_cut_equals_uncut(blocks, _images(2, 3, 96, 96), _balances(len(blocks))[:1])


@pytest.mark.exhaustive
def test_mobilenetv2_at_each_boundary() -> None:
    spec = DATASETS["cifar10"]
    blocks = build("mobilenetv2", spec, seed=1)
    balances = [[first, len(blocks) - first] for first in range(1, len(blocks))]
    _assert_cut_equals_uncut(blocks, _images(2, *spec.shape), balances)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dataset", ["imagenet", "highres"])
def test_mobilenetv2_of_real_size(dataset: str) -> None:
    """The two bars that DDLBench's figures leave empty."""
    spec = DATASETS[dataset]
    blocks = build("mobilenetv2", spec, seed=1)
    _assert_cut_equals_uncut(blocks, _images(2, *spec.shape), _balances(len(blocks))[:1])
