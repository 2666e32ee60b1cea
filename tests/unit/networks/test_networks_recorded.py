"""Any module becomes blocks that compute the same, or is refused with the reason."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import recorded_comparison
from ddlbench.networks.factory import build, skeleton
from ddlbench.networks.foreign import whole
from ddlbench.networks.recorded import cut_by_recording
from ddlbench.networks.recording import CannotRecord

CIFAR10 = DATASETS["cifar10"]


class Base(nn.Module):
    """Three convolutions and a classifier; ``middle`` is what each test changes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.c, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 10)
        self.prepare()

    def prepare(self) -> None:
        """What a test adds."""

    def middle(self, x: Tensor) -> Tensor:
        return x

    def forward(self, images: Tensor) -> Tensor:
        x = self.middle(torch.relu(self.a(images)))
        return self.fc(self.c(x).mean((2, 3)))


class Shortcut(Base):
    def middle(self, x):
        return x + self.norm(self.b(x))


class InPlace(Base):
    def middle(self, x):
        y = self.b(x)
        y += 1
        y.relu_()
        return self.norm(y)


class InPlaceAtTheStart(Base):
    def middle(self, x):
        x = self.b(x)
        x.mul_(2)
        return self.norm(x)


class NamedByKeywords(Base):
    def prepare(self):
        self.parts = nn.ModuleDict({"in": nn.Conv2d(8, 8, 1), "inner": nn.Conv2d(8, 8, 1)})
        self.parts["class"] = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU())

    def middle(self, x):
        return self.norm(self.parts["class"](x + self.parts["inner"](self.parts["in"](x))))


class SetsItems(Base):
    def middle(self, x):
        mask = x.new_zeros(8)
        mask[2:5] = 1
        mask[4] = 3
        x = self.b(x)
        x[:, :2] = 0
        return self.norm(x * mask[:, None, None])


class WritesThroughAView(Base):
    def middle(self, x):
        y = self.b(x)
        y[:, :2].mul_(2)
        y[:, 1].add_(3)
        return self.norm(y)


class ReadsItsMask(Base):
    def middle(self, x):
        mask = (torch.arange(x.shape[2], device=x.device) - 1).cumsum(-1)
        return self.b(x) * mask if mask[-1] > 0 and (mask[:1] == -1).all() else x


class DropsSamples(nn.Module):
    def forward(self, x):
        return x * x.new_empty(len(x), 1, 1, 1).bernoulli_(0.5) if self.training else x


class StochasticDepth(Base):
    def prepare(self):
        self.drop = DropsSamples()

    def middle(self, x):
        return x + self.drop(self.norm(self.b(x)))


class Twice(Base):
    def middle(self, x):
        return self.norm(self.b(self.b(x)))


class Tied(Base):
    def prepare(self):
        self.c.weight = self.b.weight

    def middle(self, x):
        return self.norm(self.b(x))


class Dropout(Base):
    def middle(self, x):
        return functional.dropout(self.b(x), 0.3, self.training)


class Noise(Base):
    def middle(self, x):
        return self.b(x) + torch.randn_like(x) * 0.1


class Folded(Base):
    def middle(self, x):
        count = x.shape[0]
        return self.b(x).reshape(count * 2, 4, *x.shape[2:]).reshape(count, 8, *x.shape[2:])


class Positions(Base):
    def prepare(self):
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def middle(self, x):
        rows = torch.arange(x.shape[2], device=x.device).float()[:, None] * self.scale
        return self.norm(self.b(x) + rows) + rows


class Dictionary(Base):
    def middle(self, x):
        return self.b(x)

    def forward(self, images):
        return {"logits": super().forward(images)}


class Two(Base):
    def middle(self, x):
        first, second = self.b(x).chunk(2, 1)
        return torch.cat([second, first], 1)


class WithoutGradients(Base):
    def middle(self, x):
        with torch.no_grad():
            x = torch.relu(self.b(x))
        return self.norm(x)


class StopsAFunction(Base):
    @torch.no_grad()
    def gate(self, x):
        return torch.sigmoid(x) * 2

    def middle(self, x):
        return self.b(x * self.gate(x))


class Rounded(torch.autograd.Function):
    """Whole numbers, whose gradient goes straight through."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient


class HasItsOwnBackward(Base):
    def middle(self, x):
        return self.norm(Rounded.apply(self.b(x) * 10))


class Powers(Base):
    def middle(self, x):
        x = torch.sigmoid(self.b(x)) ** 2
        x **= 3
        return self.norm(2**x + x * self.norm.weight[:, None, None] ** 2)


class ScalesByNumpy(Base):
    def middle(self, x):
        return self.norm(self.b(x) * np.sqrt(2) + np.float32(0.5))


class FullPrecision(Base):
    def middle(self, x):
        with torch.autocast("cpu", enabled=False):
            x = self.b(x.float()) @ x.float()
        return self.norm(x)


class FullPrecisionInAutocast(Base):
    """As rotary positions of transformers, it leaves autocast only where that is on."""

    def middle(self, x):
        off = torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False) if off else nullcontext():
            x = self.b(x.float()) @ x.float()
        return self.norm(x)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Shortcut, ["a", "norm", "c", "fc"]),
        (InPlace, ["a", "b", "norm", "c", "fc"]),
        (InPlaceAtTheStart, ["a", "b", "norm", "c", "fc"]),
        (NamedByKeywords, ["a", "parts_inner", "parts_class", "norm", "c", "fc"]),
        (SetsItems, ["a", "b", "norm", "c", "fc"]),
        (WritesThroughAView, ["a", "b", "norm", "c", "fc"]),
        (ReadsItsMask, ["a", "b", "c", "fc"]),
        (StochasticDepth, ["a", "drop", "c", "fc"]),
        (Twice, ["a", "b", "norm", "c", "fc"]),
        (Tied, ["a", "c", "fc"]),
        (Dropout, ["a", "b", "c", "fc"]),
        (Noise, ["a", "b", "c", "fc"]),
        (Folded, ["a", "b", "c", "fc"]),
        (Positions, ["a", "b", "norm", "c", "fc"]),
        (Dictionary, ["a", "b", "c", "fc"]),
        (Two, ["a", "b", "c", "fc"]),
        (WithoutGradients, ["a", "b", "norm", "c", "fc"]),
        (StopsAFunction, ["a", "b", "c", "fc"]),
        (Powers, ["a", "b", "norm", "c", "fc"]),
        (ScalesByNumpy, ["a", "b", "norm", "c", "fc"]),
        (FullPrecision, ["a", "b", "norm", "c", "fc"]),
        (HasItsOwnBackward, ["a", "b", "norm", "c", "fc"]),
    ],
)
def test_blocks_compute_what_the_module_does(kind, names) -> None:
    torch.manual_seed(0)
    module = whole(kind(), "it is one block")[0]
    other = copy.deepcopy(module)
    blocks = cut_by_recording(other, CIFAR10)
    assert list(blocks._modules) == names
    for training in (True, False):
        module.train(training), blocks.train(training)
        for samples in (4, 1, 7):  # not those of the recording
            inputs = torch.randn(samples, 3, 32, 32)
            outputs = []
            for call in (module, blocks):
                torch.manual_seed(samples)
                output = call(inputs.clone())
                output.square().sum().backward()
                outputs.append(output)
            assert torch.allclose(*outputs, rtol=1e-5, atol=1e-6)
    used, trained = (
        {n for n, weight in network.module.named_parameters() if weight.grad is not None}
        for network in (module, other)
    )
    assert used == trained
    for name in used:
        pair = (network.get_parameter(name).grad for network in (module.module, other.module))
        assert torch.allclose(*pair, rtol=1e-4, atol=1e-5), name
    state = {name.partition(".")[2] for name in blocks.state_dict()}
    assert used <= state <= set(module.module.state_dict())


@pytest.mark.parametrize("compared_bytes", [2**28, 0], ids=["computed", "on fakes"])
@pytest.mark.parametrize("kind", [FullPrecision, FullPrecisionInAutocast])
def test_what_a_module_computes_in_full_precision_stays_so(
    kind, compared_bytes, monkeypatch
) -> None:
    monkeypatch.setattr(recorded_comparison, "_CHECKED_BYTES", compared_bytes)
    module = whole(kind(), "it is one block")[0]
    blocks = cut_by_recording(copy.deepcopy(module), CIFAR10)
    assert list(blocks._modules) == ["a", "b", "norm", "c", "fc"]
    images = torch.randn(3, 3, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(images), blocks(images))


class Reader(nn.Module):
    """Of tokens, with a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 8, sparse=True)
        self.bag = nn.EmbeddingBag(256, 8, mode="sum", sparse=True)
        self.fc = nn.Linear(8, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        bags = self.bag(tokens.reshape(-1, 1)).reshape(*tokens.shape, 8)
        return self.fc(self.embed(tokens) + bags)


def test_a_module_with_sparse_gradients_is_compared() -> None:
    blocks = cut_by_recording(whole(Reader(), "it is one block")[0], DATASETS["tokens"])
    assert list(blocks._modules) == ["embed", "fc"]


class AutocastsItself(Base):
    def middle(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(x).float()


class ReadsData(Base):
    def middle(self, x):
        return self.b(x) if x.sum() > 0 else self.norm(x)


class ReadsItem(Base):
    def middle(self, x):
        return self.b(x) * x.mean().item()


class ReadsTheBatch(Base):
    def middle(self, x):
        return self.b(x) if x.shape[0] % 2 else self.norm(self.b(x))


class DropsLayers(Base):
    def middle(self, x):
        return x if torch.rand(()) < 0.5 and self.training else x + self.b(x)


class Counts(Base):
    def prepare(self):
        self.calls = 0

    def middle(self, x):
        self.calls += 1
        return self.b(x) * self.calls


class WritesItsBuffer(Base):
    def prepare(self):
        self.register_buffer("sum", torch.zeros(1))

    def middle(self, x):
        self.sum += 1
        return self.b(x) * self.sum


class NewBuffer(WritesItsBuffer):
    def middle(self, x):
        self.sum = self.sum + 1
        return self.b(x) * self.sum


class FromNumpy(Base):
    def middle(self, x):
        return self.b(x) * torch.from_numpy(np.ones(1, dtype="float32"))


class TwoPaths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8, 10)

    def forward(self, images):
        return self.fc((self.a(images) * self.b(images)).mean((2, 3))) + images.mean()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10)
        self.c.weight = self.a.weight

    def forward(self, images):
        return self.c(self.b(self.a(images.mean((2, 3)).repeat(1, 4)[:, :10])))


class RowsFirst(nn.Module):
    """Samples in the second dimension, as of a recurrent layer without ``batch_first``."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.LSTM(96, 8), nn.Linear(8, 10)

    def forward(self, images):
        rows, _ = self.rnn(images.permute(2, 0, 1, 3).flatten(2))
        return self.fc(torch.relu(rows)).mean(0)


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner(images)


class UnusedState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 10)
        self.rnn, self.attention = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2)
        self.attention.batch_first = True

    def forward(self, images):
        pixels = self.a(images).mean(2).transpose(1, 2)
        steps, _ = self.rnn(pixels)
        mixed, _ = self.attention(steps, steps, steps)
        return self.fc(mixed).mean(1)


def test_a_state_that_nobody_uses_is_not_carried_over_a_cut() -> None:
    torch.manual_seed(0)
    blocks = cut_by_recording(whole(UnusedState(), "it is one block")[0], CIFAR10)
    assert list(blocks._modules) == ["a", "rnn", "attention", "fc"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (ReadsData, r"it reads a value of its data \(Tensor.__bool__\)"),
        (ReadsItem, r"it reads a value of its data \(Tensor.item\)"),
        (ReadsTheBatch, "calls other functions for 3 samples than for 2"),
        (DropsLayers, "reads a value of its data"),
        (Counts, r"it keeps something from call to call \(self.calls\)"),
        (WritesItsBuffer, "sum is changed by the forward pass"),
        (NewBuffer, "it keeps something from call to call"),
        (FromNumpy, "uses a tensor that no function of torch made"),
        (AutocastsItself, "it turns autocast on"),
        (TwoPaths, "several of its tensors are alive wherever it could be cut"),
        (Tied, "share weights"),
        (RowsFirst, "batch_first=True"),
        (lambda: Wrapper(Counts()), r"inner keeps something from call to call \(self.calls\)"),
        (lambda: Wrapper(nn.Conv2d(3, 3, 1)), "inner is its only layer with weights"),
    ],
)
def test_what_a_recording_would_get_wrong_is_refused(kind, why) -> None:
    torch.manual_seed(0)
    with pytest.raises(CannotRecord, match=why):
        cut_by_recording(whole(kind(), "it is one block")[0], CIFAR10)


def test_a_module_that_reads_its_data_is_one_layer_of_others() -> None:
    network = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), ReadsData(), nn.Linear(10, 10))
    network.register_buffer("outside", torch.ones(1))
    blocks = cut_by_recording(whole(network, "it has a buffer outside of its blocks")[0], CIFAR10)
    assert list(blocks._modules) == ["0", "1", "2"]


def test_a_mask_is_read_without_numbers() -> None:
    with torch.device("meta"):
        blocks = cut_by_recording(whole(ReadsItsMask(), "it is one block")[0], CIFAR10)
    assert list(blocks._modules) == ["a", "b", "c", "fc"]


@pytest.mark.parametrize(
    ("network", "count"),
    [
        ("resnet18", 11),
        pytest.param("mobilenet_v2", 55, marks=pytest.mark.slow),
        pytest.param("swin_t", 34, marks=pytest.mark.slow),
    ],
)
def test_torchvision_s_networks_are_cut(network, count) -> None:
    name = f"torchvision:{network}"
    blocks = build(name, CIFAR10, seed=1)
    assert len(blocks) == count
    assert list(skeleton(name, CIFAR10)._modules) == list(blocks._modules)
