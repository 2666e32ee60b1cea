"""A network, and strategies with a fault each, for ``ddlbench check``."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import torch
from torch import Tensor, nn

from ddlbench.planning.data_parallel import DataParallel
from ddlbench.strategies.ddp.descriptor import DistributedDataParallel
from ddlbench.strategies.ddp.executor import DdpExecutor
from ddlbench.strategies.executor import Executor, Unsupported

HERE = "cases.checked_parts"


# Networks -----------------------------------------------------------------------------------------


def plain(spec) -> nn.Sequential:
    """Seven blocks that every strategy but a split of rows can train."""
    features = spec.channels * (spec.height // 4) * (spec.width // 4)
    return nn.Sequential(
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(features, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, spec.num_classes),
    )


class Kept(nn.Module):
    """Weights of every kind: trained, frozen, unused, complex, and whole numbers."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(features).flip(0), requires_grad=False)
        self.wave = nn.Parameter(torch.ones(features // 2 + 1, dtype=torch.complex64) * (1 + 0.5j))
        self.shift = nn.Parameter(torch.ones(features), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> Tensor:
        turned = torch.fft.rfft(inputs[:, self.order] + self.shift) * self.wave
        return torch.fft.irfft(turned, n=inputs.shape[1])


def kept(spec) -> nn.Sequential:
    """``plain`` with weights that not all are trained."""
    network = plain(spec)
    network[3] = Kept(8)
    return network


class Noise(nn.Module):
    """Random numbers of its own, which are no dropout layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.01 * torch.randn_like(inputs)


def noisy(spec) -> nn.Sequential:
    network = plain(spec)
    network[3] = Noise()
    return network


def unseeded(spec) -> nn.Sequential:
    """Initial weights of the system's own random numbers, which no seed fixes."""
    network = plain(spec)
    with torch.no_grad():
        network[4].weight.fill_(random.SystemRandom().random())
    return network


class Half(nn.Module):
    """Computes in bfloat16, whatever the other blocks do."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, features, dtype=torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.to(torch.bfloat16)).float()


def half(spec) -> nn.Sequential:
    network = plain(spec)
    network[4] = Half(8)
    return network


class Fails(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.requires_grad:
            raise ValueError("no gradient can pass. It is a test.")
        return inputs


def untrainable(spec) -> nn.Sequential:
    network = plain(spec)
    network[3] = Fails()
    return network


# Strategies ---------------------------------------------------------------------------------------


class _Faulty(DataParallel):
    label = colour = ""

    @property
    def name(self):  # type: ignore[override]
        return f"{HERE}:{type(self).__name__}"


class Doubled(DistributedDataParallel):
    """Trains with twice the gradient on its second rank."""

    name = f"{HERE}:Doubled"
    executor = f"{HERE}:DoubledExecutor"


class DoubledExecutor(DdpExecutor):
    def backward(self, loss: Tensor) -> None:
        super().backward(loss * (1 + self.process.rank))


class Wrapped(_Faulty):
    """Raises an error as libraries do: wrapped, with the cause inside."""

    executor = f"{HERE}:WrappedExecutor"


class WrappedExecutor(Executor):
    def run(self, first: int, count: int):
        if self.process.rank == 0:
            time.sleep(30)  # waits for the other
        try:
            np.ones(2).reshape(3)
        except ValueError as error:
            raise RuntimeError("[Stage 1] failed to run forward") from error


class Killed(_Faulty):
    executor = f"{HERE}:KilledExecutor"


class KilledExecutor(Executor):
    def run(self, first: int, count: int):
        if self.process.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(30)


class Hanging(_Faulty):
    executor = f"{HERE}:HangingExecutor"


class HangingExecutor(Executor):
    def run(self, first: int, count: int):
        time.sleep(60)


class Refusing(_Faulty):
    executor = f"{HERE}:RefusingExecutor"


class RefusingExecutor(Executor):
    def place(self, network: nn.Sequential) -> nn.Module:
        raise Unsupported("block 3 cannot be cut")


class OutOfOrder(DataParallel):
    """Updates with old gradients in an order that no one knows."""

    name = f"{HERE}:OutOfOrder"
    label = colour = ""
    executor = f"{HERE}:DoubledExecutor"
    synchronous = False
