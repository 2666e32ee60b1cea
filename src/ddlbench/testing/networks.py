"""Small networks with the blocks that are hard to cut, to average or to repeat."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build, without_dropout
from ddlbench.networks.transformer import TransformerBlock
from ddlbench.networks.vit import ClassToken, Patches


class Residual(nn.Module):
    """A convolution and batch norm beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.relu(self.norm(self.conv(inputs)))


class Mean(nn.Module):
    """Its gradient is one expanded number, which is not contiguous."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean(dim=(2, 3), keepdim=True)


class Turned(nn.Module):
    """Its output is a view that is not contiguous."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.transpose(2, 3)


class Shared(nn.Module):
    """One weight is used twice, one is unused, and one is not trained."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.twice = nn.Parameter(torch.eye(features) + 0.1 * torch.randn(features, features))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(features), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(inputs @ self.twice) @ self.twice + self.frozen


def _blocks(**blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(blocks))


def tiny() -> nn.Sequential:
    """Nine blocks; the first has no weights, two give views, one is not contiguous."""
    return _blocks(
        shrink=nn.AvgPool2d(4),
        stem=nn.Conv2d(1, 6, 3, padding=1),
        block0=Residual(6),
        turned=Turned(),
        block1=Residual(6),
        relu=nn.ReLU(),
        mean=Mean(),
        flatten=nn.Flatten(),
        head=nn.Linear(6, 10),
    )


def residual() -> nn.Sequential:
    """Six blocks, the first and the last with weights; in float32."""
    return _blocks(
        stem=nn.Conv2d(1, 6, 3, stride=2, padding=1),
        block0=Residual(6),
        block1=Residual(6),
        pool=nn.AdaptiveAvgPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(24, 10),
    )


def odd() -> nn.Sequential:
    """Weights that are shared, unused, or not trained."""
    return _blocks(
        shrink=nn.AvgPool2d(4), flatten=nn.Flatten(), odd=Shared(49), head=nn.Linear(49, 10)
    )


def normed() -> nn.Sequential:
    """Batch norm after a convolution."""
    return _blocks(
        shrink=nn.AvgPool2d(4),
        stem=nn.Conv2d(1, 6, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(6),
        relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(24, 10),
    )


def transformer() -> nn.Sequential:
    """Two layers of four heads, after patches and positions."""
    return _blocks(
        patches=Patches(DATASETS["mnist"], 7, 16),
        layer_0=TransformerBlock(16, 4, 24, 1e-6),
        layer_1=TransformerBlock(16, 4, 24, 1e-6),
        norm=nn.LayerNorm(16),
        class_token=ClassToken(),
        head=nn.Linear(16, 10),
    )


def linear() -> nn.Sequential:
    """One layer."""
    return _blocks(flatten=nn.Flatten(), head=nn.Linear(784, 10))


def network_with_dropout() -> nn.Sequential:
    """Ten blocks: weights, statistics of a batch, and random numbers in every stage."""
    return _blocks(
        shrink=nn.AvgPool2d(4),
        stem=nn.Conv2d(1, 4, 3, padding=1),
        drop0=nn.Dropout(0.3),
        norm0=nn.BatchNorm2d(4),
        conv=nn.Conv2d(4, 4, 3, padding=1),
        drop1=nn.Dropout(0.3),
        norm1=nn.BatchNorm2d(4),
        pool=nn.AdaptiveAvgPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(16, 10),
    )


def transformer_with_dropout() -> nn.Sequential:
    """A layer of a transformer between random numbers, for strategies that split no convolution."""
    return _blocks(
        patches=Patches(DATASETS["mnist"], 7, 16),
        drop0=nn.Dropout(0.3),
        layer_0=TransformerBlock(16, 4, 24, 1e-6),
        drop1=nn.Dropout(0.3),
        norm=nn.LayerNorm(16),
        class_token=ClassToken(),
        head=nn.Linear(16, 10),
    )


RESUMED = {"dropout": network_with_dropout, "transformer-dropout": transformer_with_dropout}
SMALL = {
    function.__name__: function for function in (tiny, residual, odd, normed, linear, transformer)
}


def network_of(cell: Cell) -> nn.Sequential:
    """The cell's network from its seed, without dropout, in float64.

    ``residual`` stays in float32, as torchgpipe times layers with inputs of that type.
    """
    if cell.network not in SMALL:
        return without_dropout(build(cell.network, DATASETS[cell.dataset], cell.seed)).double()
    torch.manual_seed(cell.seed)
    network = SMALL[cell.network]()
    return network if cell.network == "residual" else network.double()
