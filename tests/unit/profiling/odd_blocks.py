"""Networks for the tests of profiling; each takes a DatasetSpec, some are wrong on purpose."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn


def burn(seconds: float) -> None:
    """Keep the processor busy."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class _Planted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, forward_s, backward_s):
        burn(forward_s)
        ctx.backward_s = backward_s
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        burn(ctx.backward_s)
        return gradient, None, None


class Planted(nn.Module):
    """Takes known seconds of the processor, forward and backward."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.seconds = forward_s, backward_s

    def forward(self, inputs: Tensor) -> Tensor:
        return _Planted.apply(inputs, *self.seconds)


class Residual(nn.Module):
    """Conv, ReLU in place, conv, sum, and the same ReLU again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.relu(self.conv2(self.relu(self.conv1(inputs))) + inputs)


class Shared(nn.Module):
    """One linear layer twice, beside one that is used once and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(10, 10)
        self.once = nn.Linear(10, 10)
        self.never = nn.Linear(10, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.twice(torch.relu(self.twice(inputs))) + self.once(inputs)


def tiny(spec) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(spec.channels, 4, 3, padding=1),
        nn.ReLU(),
        Residual(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, spec.num_classes),
    )


def not_a_sequential(spec) -> nn.Module:
    return Residual(spec.channels)


not_callable = 3
