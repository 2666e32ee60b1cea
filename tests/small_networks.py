"""Small networks with one odd thing each, for tests that compare what strategies train."""

from __future__ import annotations

import torch
from torch import nn

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.transformers import ClassToken, Patches, TransformerBlock
from ddlbench.testing.training import Residual, blocks_in_order


class Mean(nn.Module):
    """Its gradient is one expanded number, which is not contiguous."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean(dim=(2, 3), keepdim=True)


class _Turned(nn.Module):
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


def tiny(_spec: object = None) -> nn.Sequential:
    """Nine blocks; the first has no weights, two give views, one is not contiguous."""
    return blocks_in_order(
        shrink=nn.AvgPool2d(4),
        stem=nn.Conv2d(1, 6, 3, padding=1),
        block0=Residual(6),
        turned=_Turned(),
        block1=Residual(6),
        relu=nn.ReLU(),
        mean=Mean(),
        flatten=nn.Flatten(),
        head=nn.Linear(6, 10),
    )


def odd(_spec: object = None) -> nn.Sequential:
    """Weights that are shared, unused, or not trained."""
    return blocks_in_order(
        shrink=nn.AvgPool2d(4), flatten=nn.Flatten(), odd=Shared(49), head=nn.Linear(49, 10)
    )


def normed(_spec: object = None) -> nn.Sequential:
    """Batch norm after a convolution."""
    return blocks_in_order(
        shrink=nn.AvgPool2d(4),
        stem=nn.Conv2d(1, 6, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(6),
        relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(24, 10),
    )


def transformer(_spec: object = None) -> nn.Sequential:
    """Two layers of four heads, after patches and positions."""
    return blocks_in_order(
        patches=Patches(DATASETS["mnist"], 7, 16),
        layer_0=TransformerBlock(16, 4, 24, 1e-6),
        layer_1=TransformerBlock(16, 4, 24, 1e-6),
        norm=nn.LayerNorm(16),
        class_token=ClassToken(),
        head=nn.Linear(16, 10),
    )


def linear(_spec: object = None) -> nn.Sequential:
    """One layer."""
    return blocks_in_order(flatten=nn.Flatten(), head=nn.Linear(784, 10))


def transformer_with_dropout(_spec: object = None) -> nn.Sequential:
    """A layer of a transformer between random numbers, for strategies that split no convolution."""
    return blocks_in_order(
        patches=Patches(DATASETS["mnist"], 7, 16),
        drop0=nn.Dropout(0.3),
        layer_0=TransformerBlock(16, 4, 24, 1e-6),
        drop1=nn.Dropout(0.3),
        norm=nn.LayerNorm(16),
        class_token=ClassToken(),
        head=nn.Linear(16, 10),
    )
