"""What a list of functions would not repeat stays in a module: as a layer, or as one block."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import recorded, recorded_state
from ddlbench.networks.foreign import whole
from ddlbench.networks.inspection import copy_of
from ddlbench.networks.recorded import cut_by_recording
from ddlbench.networks.recording import CannotRecord

CIFAR10, TOKENS = DATASETS["cifar10"], DATASETS["tokens"]
CALLS = [0]


class Middle(nn.Module):
    """A linear layer; each kind below does something beside."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.prepare()

    def prepare(self) -> None:
        """What a kind adds."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x)


class Outer(nn.Module):
    """The middle as a module of its own, or as part of the whole module."""

    def __init__(self, middle: nn.Module, *, inner: bool) -> None:
        super().__init__()
        self.a, self.middle, self.fc = nn.Linear(3072, 8), middle, nn.Linear(8, 10)
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.a(images.flatten(1)))
        return self.fc(self.middle(x) if self.inner else self.middle.forward(x))


# The number of samples ---------------------------------------------------------------------------


class NormalisesGroups(Middle):
    def forward(self, x):
        return torch.cat([self.norm(part) for part in x.chunk(math.ceil(len(x) / 8))])


class SplitsLargeBatches(Middle):
    def forward(self, x):
        return torch.cat([self.norm(part) for part in x.split(128)])


class CentresManySamples(Middle):
    def forward(self, x):
        x = self.b(x)
        return x - x.mean(0) if x.shape[0] >= 8 else x


class LimitsItsCount(Middle):
    def forward(self, x):
        return self.b(x) / min(x.size(0), 16)


class CountsPowersOfTwo(Middle):
    def forward(self, x):
        return self.b(x) * len(x).bit_length()


class EvenGroups(Middle):
    def forward(self, x):
        return self.b(x).relu() if x.shape[0] % 16 == 0 else self.b(x)


# Gradients ---------------------------------------------------------------------------------------


class HooksItsGradient(Middle):
    def forward(self, x):
        x = self.b(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        return x


class HooksItsGraph(Middle):
    def forward(self, x):
        x = self.b(x)
        if x.grad_fn is not None:
            x.grad_fn.register_hook(lambda gradients, _: tuple(2 * g for g in gradients))
        return x


class HasABackwardHook(Middle):
    def prepare(self):
        self.register_full_backward_hook(lambda _, given, __: tuple(2 * g for g in given))


class HasAHookBefore(Middle):
    def prepare(self):
        self.register_full_backward_pre_hook(lambda _, gradients: tuple(3 * g for g in gradients))


class Recomputes(Middle):
    def forward(self, x):
        return checkpoint(self.b, x, use_reentrant=False)


class RecomputesByItsFunction(Middle):
    def forward(self, x):
        return checkpoint(self.b, x, use_reentrant=True)


class KeepsActivationsOnTheHost(Middle):
    def forward(self, x):
        with save_on_cpu():
            return torch.relu(self.b(x))


class ChoosesItsKernel(Middle):
    def forward(self, x):
        with sdpa_kernel(SDPBackend.MATH):
            return functional.scaled_dot_product_attention(x, self.b(x), x)


# Random numbers of Python ------------------------------------------------------------------------


class DropsByPython(Middle):
    def forward(self, x):
        return x if random.random() < 0.01 else self.b(x)


class DropsByNumpy(Middle):
    def forward(self, x):
        return x if np.random.uniform() < 0.01 else self.b(x)


class DropsByTorch(Middle):
    def forward(self, x):
        return x if torch.empty(1).uniform_().item() < 0.01 else self.b(x)


class DropsByItsGenerator(Middle):
    def prepare(self):
        self.generator = random.Random(0)

    def forward(self, x):
        return x if self.generator.random() < 0.01 else self.b(x)


class DropsByItsNumpyGenerator(Middle):
    def prepare(self):
        self.generator = np.random.default_rng(0)

    def forward(self, x):
        return x if self.generator.random() < 0.01 else self.b(x)


# State -------------------------------------------------------------------------------------------


@dataclass
class Tracker:
    history: dict[str, list[int]] = field(default_factory=lambda: {"calls": [0]})


class CountsInADictionary(Middle):
    def prepare(self):
        self.state = {"calls": 0}

    def forward(self, x):
        self.state["calls"] += 1
        return self.b(x) if self.state["calls"] < 20 else x


class CountsInAnObject(Middle):
    def prepare(self):
        self.tracker = Tracker()

    def forward(self, x):
        self.tracker.history["calls"][0] += 1
        return self.b(x) if self.tracker.history["calls"][0] < 20 else x


class CountsInAQueue(Middle):
    def prepare(self):
        self.latest = deque(maxlen=50)

    def forward(self, x):
        self.latest.append(1)
        return self.b(x) if len(self.latest) < 20 else x


class CountsInATensor(Middle):
    def prepare(self):
        self.calls = torch.zeros((), device="cpu")

    def forward(self, x):
        self.calls += 1
        return self.b(x)


class CountsInAnIterator(Middle):
    def prepare(self):
        self.calls = itertools.count()

    def forward(self, x):
        return self.b(x) if next(self.calls) < 20 else x


class CountsInItsClass(Middle):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return self.b(x) if self.calls < 20_000 else x


class CountsInAGlobalList(Middle):
    def forward(self, x):
        CALLS[0] += 1
        return self.b(x) if CALLS[0] < 20_000 else x


class CountsWithNumbers(Middle):
    """The device meta cannot run it, as numpy cannot read such a tensor."""

    def forward(self, x):
        scale = float(torch.ones(2).add_(1).numpy().sum())
        return self.b(x) * (scale if len(x) < 40 else 1)


# Modes -------------------------------------------------------------------------------------------


class StaysInEvaluation(Middle):
    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.norm(x)


class ReadsItsOptionsInTrain(Middle):
    """As the models of transformers do."""

    kernels = False

    def train(self, mode=True):
        changed = self.training != mode
        super().train(mode)
        if self.kernels and changed:
            self.norm.eval()
        return self

    def eval(self):
        return self.train(False)


@contextmanager
def named(name):
    yield name


class IsDecorated(Middle):
    numbers = itertools.count()

    def prepare(self):
        self.number = next(self.numbers)

    @named("forward")
    def forward(self, x):
        return self.b(x)


class FreezesInItsForward(Middle):
    def forward(self, x):
        self.norm.eval()
        return self.norm(x)


KINDS = [
    (NormalisesGroups, "calls other functions for 64 samples in evaluation than for 2"),
    (SplitsLargeBatches, "calls other functions for 1031 samples than for 2"),
    (CentresManySamples, "calls other functions for 64 samples in evaluation than for 2"),
    (LimitsItsCount, "has constants that differ from run to run"),
    (CountsPowersOfTwo, "has constants that differ from run to run"),
    (EvenGroups, "calls other functions"),
    (HooksItsGradient, "hooks or computes gradients in its forward pass"),
    (HooksItsGraph, "hooks or computes gradients in its forward pass"),
    (Recomputes, "keeps or recomputes activations in a way of its own"),
    (RecomputesByItsFunction, "gives a Linear to a layer or function"),
    (KeepsActivationsOnTheHost, "keeps or recomputes activations in a way of its own"),
    (ChoosesItsKernel, "chooses kernels of torch in its forward pass"),
    (CountsWithNumbers, "has constants that differ from run to run"),
    (DropsByPython, "draws random numbers in Python"),
    (DropsByNumpy, "draws random numbers in Python"),
    (DropsByTorch, "reads a value of its data"),
    (DropsByItsGenerator, ""),
    (DropsByItsNumpyGenerator, ""),
    (CountsInADictionary, ""),
    (CountsInAnObject, ""),
    (CountsInAQueue, ""),
    (CountsInATensor, "uses a tensor that no function of torch made"),
    (CountsInAnIterator, ""),
    (CountsInItsClass, ""),
    (CountsInAGlobalList, ""),
    (FreezesInItsForward, "changes between training and evaluation in its forward pass"),
]


@pytest.mark.parametrize(("kind", "why"), KINDS)
def test_what_functions_would_not_repeat_makes_one_block(kind, why) -> None:
    sentence = f"it {why}" if why else "middle keeps something from call to call"
    with pytest.raises(CannotRecord, match=sentence):
        cut_by_recording(whole(Outer(kind(), inner=False), "")[0], CIFAR10, compare=False)


@pytest.mark.parametrize(
    "kind",
    [
        *(kind for kind, _ in KINDS if kind is not FreezesInItsForward),
        HasABackwardHook,
        HasAHookBefore,
        StaysInEvaluation,
    ],
)
def test_within_another_module_it_is_a_layer(kind) -> None:
    torch.manual_seed(0)
    module = whole(Outer(kind(), inner=True), "")[0]
    other = copy_of(module)
    blocks = cut_by_recording(other, CIFAR10)
    assert list(blocks._modules) == ["a", "middle", "fc"]
    assert any(isinstance(child, kind) for child in blocks.modules())
    for samples in (16, 5):
        images = torch.randn(samples, 3, 32, 32)
        results = []
        for network in (module, blocks):
            random.seed(samples), np.random.seed(samples), torch.manual_seed(samples)
            output = network.train()(images)
            output.sum().backward()
            results.append(output)
        assert torch.equal(*results)
    weights = (network.module.a.weight.grad for network in (module, other))
    assert torch.allclose(*weights)


@pytest.mark.parametrize("kind", [ReadsItsOptionsInTrain, IsDecorated])
def test_what_changes_nothing_is_cut(kind) -> None:
    blocks = cut_by_recording(whole(Outer(kind(), inner=True), "")[0], CIFAR10)
    assert len(blocks) == 3
    assert not any(isinstance(child, kind) for child in blocks.modules())


@pytest.mark.parametrize("in_place", [True, False])
def test_a_network_with_a_compiled_part_is_one_block(in_place) -> None:
    part = Middle()
    part.compile() if in_place else None
    network = Outer(part if in_place else torch.compile(part), inner=True)
    with pytest.raises(CannotRecord, match="a part of it is compiled"):
        cut_by_recording(whole(network, "")[0], CIFAR10)


class KnowsItsBatch(Middle):
    def forward(self, x):
        return self.b(x).relu() if len(x) == 32 else self.b(x)


class KnowsAPower(Middle):
    def forward(self, x):
        return self.b(x) * (2 if x.shape[0] in (128, 512) else 1)


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("kind", [KnowsItsBatch, KnowsAPower])
def test_usual_sizes_of_batches_are_told_apart_by_the_comparison(kind, inner) -> None:
    why = "calls other functions for 32 samples|has constants that differ"
    with pytest.raises(CannotRecord, match=why):
        cut_by_recording(whole(Outer(kind(), inner=inner), "")[0], CIFAR10)


class Fails(nn.Module):
    def forward(self, x):
        raise AttributeError("module 'torch' has no attribute 'nowhere'")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_blocks_that_fail_in_any_way_make_one_block(device, monkeypatch) -> None:
    monkeypatch.setattr(recorded, "blocks_of", lambda *_: nn.Sequential(Fails()))
    with torch.device(device):
        network = whole(Outer(Middle(), inner=True), "")[0]
    with pytest.raises(CannotRecord, match="its blocks fail .AttributeError: .* 'nowhere'"):
        cut_by_recording(network, CIFAR10)


def test_a_large_container_is_looked_into_up_to_a_bound() -> None:
    middle = Middle()
    middle.table = {row: {column: [row, column] for column in range(300)} for row in range(300)}
    left = recorded_state._Left()
    recorded_state._state(middle.table, 4, left)
    assert -1000 < left.values <= 0
    assert recorded_state.state_of(middle) == recorded_state.state_of(middle)
