"""Small networks of strangers: each has one trait that a strategy may not train as one device does.

All read images and are callables of a dataset's spec, so that ``cases.strangers_networks:NAME``
names them. They are made after public bug reports of other projects; the report is at each.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 8


def _small(spec, *middle: nn.Module) -> nn.Sequential:
    """Seven blocks and the middle: pooled images, two linear layers around the middle."""
    features = spec.channels * (spec.height // 4) * (spec.width // 4)
    return nn.Sequential(
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(features, WIDTH),
        nn.Tanh(),
        *middle,
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, spec.num_classes),
    )


class Function(nn.Module):
    """A function as a block."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def plain(spec):
    return _small(spec)


def frozen(spec):  # torchtitan#3886, fairseq#4702
    network = _small(spec, nn.Linear(WIDTH, WIDTH))
    network[4].requires_grad_(False)
    return network


class Order(nn.Module):
    """A parameter of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(WIDTH).flip(0), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, self.order]


def whole_number_parameter(spec):
    return _small(spec, Order())


def detached(spec):  # pytorch#152827, torchtitan#2748: linear probing
    return _small(spec, nn.Linear(WIDTH, WIDTH), nn.Tanh(), Function(torch.Tensor.detach))


class Damped(nn.Module):
    """Halves the gradient by a hook on its input (pytorch#185331)."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.requires_grad:
            inputs.register_hook(lambda gradient: 0.5 * gradient)
        return inputs * 1.0


def hooked_input(spec):
    return _small(spec, nn.Linear(WIDTH, WIDTH), Damped(), nn.Linear(WIDTH, WIDTH), Damped())


def hooked_weight(spec):
    network = _small(spec)
    network[4].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return network


def masked_weight(spec):
    network = _small(spec)
    mask = torch.arange(WIDTH) % 2
    network[4].weight.register_hook(lambda gradient: gradient * mask)
    return network


def _clamp(weight):
    weight.grad.clamp_(-0.01, 0.01)


def hooked_after(spec):
    network = _small(spec)
    network[4].weight.register_post_accumulate_grad_hook(_clamp)
    return network


class Recomputed(nn.Module):
    """A part that is computed again in the backward pass (pipedream#22, pytorch#97436)."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH))
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = checkpoint(self.part, inputs, use_reentrant=self.reentrant)
        return inputs + outputs


def recomputed(spec):
    return _small(spec, Recomputed(False), Recomputed(False))


def recomputed_reentrant(spec):
    return _small(spec, Recomputed(True), Recomputed(True))


def from_numpy(spec):  # torchtitan#166, pytorch#75870
    network = _small(spec)
    with torch.no_grad():
        weight = network[4].weight
        values = np.random.randn(WIDTH, WIDTH) * random.uniform(0.1, 0.2)
        weight.copy_(torch.from_numpy(values))
    return network


def from_the_system(spec):
    """Weights that no seed decides."""
    network = _small(spec)
    with torch.no_grad():
        network[4].weight[0, 0] = random.SystemRandom().random()
    return network


def lazy(spec):  # pytorch#53366, Lightning#13764
    return nn.Sequential(
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.LazyLinear(WIDTH),
        nn.Tanh(),
        nn.LazyLinear(spec.num_classes),
    )


class Signs(nn.Module):
    """Whole numbers: the signs of its input (PiPPy#941)."""

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs > 0).long()


class Table(nn.Module):
    """An embedding, of sparse gradient if wished (pytorch#111422, horovod#1230)."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(2, WIDTH, sparse=sparse)

    def forward(self, codes: Tensor) -> Tensor:
        return self.table(codes).mean(1)


def whole_numbers(spec):
    return _small(spec, Signs(), Table(False))


def sparse(spec):
    return _small(spec, Signs(), Table(True))


class HalfUsed(nn.Module):
    """One of its layers is never used (pytorch#45325, transformers#30633)."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)


def unused(spec):
    return _small(spec, HalfUsed())


def weight_norm(spec):  # pytorch#28594, #102981
    return _small(spec, torch.nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)))


class Strided(nn.Module):
    """A weight that is a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH + 3).t())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight[:WIDTH]


def strided(spec):  # horovod#3491, #3622
    return _small(spec, Strided())


def channels_last(spec):  # DeepSpeed#6571
    network = nn.Sequential(
        nn.Conv2d(spec.channels, 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, spec.num_classes),
    )
    return network.to(memory_format=torch.channels_last)


class InPlace(nn.Module):
    """Overwrites its input, in one of its own operations (torchgpipe#9, pytorch#26546)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.layer = nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.relu(inputs)
        return inputs + self.layer(inputs)


def in_place(spec):
    return _small(spec, InPlace(), InPlace())


def in_place_first(spec):
    return nn.Sequential(Function(lambda x: x.mul_(1.7).add_(0.3)), *_small(spec))


class InPlaceRecorded(nn.Module):
    """No sequence of blocks: its operations are recorded."""

    def __init__(self, spec) -> None:
        super().__init__()
        self.blocks = _small(spec)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.blocks(inputs.mul_(1.7).add_(0.3))


def in_place_recorded(spec):
    return InPlaceRecorded(spec)


class Scale(nn.Module):
    """A weight without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


def scalar(spec):
    return _small(spec, Scale())


class Spectrum(nn.Module):
    """Complex weights of a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, dtype=torch.complex64) * (1 + 0.5j))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(inputs) * self.weight, n=WIDTH)


def complex_weights(spec):
    return _small(spec, Spectrum())


def batch_norm(spec):  # pytorch#65907, torchgpipe#14
    return _small(spec, nn.BatchNorm1d(WIDTH))


class FunctionalNorm(nn.Module):
    """Batch norm without a layer of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(WIDTH))
        self.register_buffer("running_var", torch.ones(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var
        return nn.functional.batch_norm(inputs, *statistics, training=self.training)


def functional_batch_norm(spec):
    return _small(spec, FunctionalNorm())


def dropout(spec):
    return _small(spec, nn.Dropout(0.5))


def noisy(spec):
    """Random numbers that no layer of dropout draws."""
    return _small(spec, Function(lambda x: x + 0.1 * torch.rand_like(x)))


def tied(spec):
    """Two names of one weight, within a block."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return _small(spec, nn.Sequential(first, nn.Tanh(), second))


ALL = [
    value.__name__
    for value in list(globals().values())
    if callable(value) and getattr(value, "__module__", "") == __name__ and value.__name__.islower()
    if not value.__name__.startswith("_")
]
