"""Networks that are delicate to split: named in cells as ``cases.split_networks:<function>``."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from ddlbench.experiment.dataset_spec import DatasetSpec


class Residual(nn.Module):
    """A projection where the stride is 2; operations in place, and by function."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=2, dilation=2, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride))

    def forward(self, inputs):
        out = self.relu(self.norm1(self.conv1(inputs)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(inputs)
        return F.relu6(out)


class Inverted(nn.Module):
    """Depthwise and grouped convolutions; what was there and what is new, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.conv = nn.Sequential(
            nn.Conv2d(channels, wide, 1),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide),
            nn.BatchNorm2d(wide),
            nn.Conv2d(wide, channels, 3, padding=1, groups=2),
        )

    def forward(self, inputs):
        return torch.cat([inputs, self.conv(inputs)], 1)


def odd(spec: DatasetSpec) -> nn.Sequential:
    """Extents that few numbers divide: 28 -> 14 -> 7 -> 4."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(spec.channels, 6, 7, stride=2, padding=3),
            norm=nn.BatchNorm2d(6),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(3, stride=2, padding=1),
            block0=Residual(6, 6, 1),
            block1=Residual(6, 8, 2),
            block2=Inverted(8),
            mean=nn.AvgPool2d(3, stride=1, padding=1),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(0.5),
            head=nn.Linear(16, spec.num_classes),
        )
    )


def wide(spec: DatasetSpec) -> nn.Sequential:
    """Nearly all of it are weights that four ranks can share evenly."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(spec.channels, 16, 3, stride=2, padding=1),
            norm=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
            flatten=nn.Flatten(),
            hidden=nn.Linear(16 * 14 * 14, 64),
            head=nn.Linear(64, 12),
        )
    )


class Scaled(nn.Module):
    """Mixes all positions by a function, between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, inputs):
        out = self.conv(inputs)
        return out / out.amax(dim=(2, 3), keepdim=True).clamp_min(1e-3)


def mixing(spec: DatasetSpec) -> nn.Sequential:
    """Its second block cannot be split, its first can."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(spec.channels, 1, 3, padding=1),
            scaled=Scaled(),
            flatten=nn.Flatten(),
            head=nn.Linear(4 * spec.height * spec.width, spec.num_classes),
        )
    )


def unknown(spec: DatasetSpec) -> nn.Sequential:
    """A layer that rows do not know."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(spec.channels, 4, 3, padding=1),
            norm=nn.GroupNorm(2, 4),
            flatten=nn.Flatten(),
            head=nn.Linear(4 * spec.height * spec.width, spec.num_classes),
        )
    )


class Forgetful(nn.Module):
    """Dropout by function: it stays on where tests turn dropout layers off."""

    def forward(self, inputs):
        return F.dropout(inputs, 0.5, self.training)


def forgetful(spec: DatasetSpec) -> nn.Sequential:
    """Random numbers in a layer that every rank computes."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(spec.channels, 6, 5, stride=3),
            relu=nn.ReLU(),
            conv=nn.Conv2d(6, 8, 3, padding=1),
            flatten=nn.Flatten(),
            forgetful=Forgetful(),
            head=nn.Linear(8 * 8 * 8, spec.num_classes),
        )
    )
