"""Which linear layers of a network are pairs, and what is refused."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from small_networks import transformer
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.site import load_site
from ddlbench.networks.block_forms import TensorForm
from ddlbench.networks.foreign import Whole
from ddlbench.networks.linear_pairs import find_pairs, known_pairs, linear_pairs, used_alone
from ddlbench.networks.recorded import cut_by_recording
from ddlbench.planning.matrix import why_unsupported
from ddlbench.planning.network_tables import NetworkTraits, Pair, pairs_of
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.tensor_parallel.executor import pairs_in
from ddlbench.strategies.training import with_precision


def chain(*kinds: str) -> list[tuple[str, str]]:
    return [(f"block{number}", kind) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kinds", "halves"),
    [
        (["Linear", "ReLU", "Linear"], [(0, 2)]),
        (["Linear", "Linear"], [(0, 1)]),
        (["Flatten", "Linear", "GELU", "Identity", "Linear", "ReLU", "Linear"], [(1, 4)]),
        (["Linear", "ReLU", "Linear", "ReLU", "Linear", "ReLU", "Linear"], [(0, 2), (4, 6)]),
        (["Linear", "Dropout", "Linear"], []),
        (["Linear", "ReLU", "LayerNorm", "Linear"], []),
        (["Linear", "Softmax", "Linear"], []),
        (["Linear"], []),
        ([], []),
    ],
)
def test_pairs_of_a_chain(kinds: list[str], halves: list[tuple[int, int]]) -> None:
    actual = [(pair.columns, pair.row) for pair in pairs_of(chain(*kinds))]
    assert actual == [((f"block{a}",), f"block{b}") for a, b in halves]


def test_attention_is_one_pair() -> None:
    names = [f"layer.attention.{name}" for name in ("query", "key", "value", "output")]
    layers = [(name, "Linear") for name in names]
    assert pairs_of(layers) == [Pair(tuple(names[:3]), (), names[3])]
    # Without the last one, what is between two of them is not known to be nothing.
    assert pairs_of(layers[:1]) == []


def test_layers_of_different_modules_are_no_pair() -> None:
    assert pairs_of([("one.fc", "Linear"), ("two.fc", "Linear")]) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pairs_of_a_transformer(precision: str) -> None:
    network = with_precision(transformer(), precision, "cpu")
    actual = pairs_in(network)
    assert [entry.pair.row for entry in actual] == [
        f"layer_{number}.{name}" for number in (0, 1) for name in ("attention.output", "fc2")
    ]
    assert [entry.units for entry in actual] == [4, 24, 4, 24]
    for entry in actual:
        assert isinstance(network.get_submodule(entry.row), nn.Linear)


class _UserModule(nn.Module):
    """Nobody knows what a module of a user does between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 8)


def test_only_modules_whose_calls_are_known_are_split() -> None:
    assert find_pairs(nn.Sequential(_UserModule())) == []
    halves = OrderedDict(fc1=nn.Linear(8, 6), gelu=nn.GELU(), fc2=nn.Linear(6, 8))
    network = nn.Sequential(nn.Conv2d(1, 1, 2), nn.Sequential(halves))
    known = linear_pairs(network, find_pairs(network))
    assert (known.pairs, known.heads, known.hidden) == (1, 0, 6)
    assert (known.convolutions, known.weights) == (5, 5 + 54 + 56)


class _Perceptron(nn.Module):
    """A pair, and in what way the forward pass uses it."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.use, self.pair = use, nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        if use == "tied":
            self.pair[2].weight = self.pair[0].weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, middle, last = self.pair
        if self.use == "alone":
            hidden = middle(first(inputs))
            return last(hidden / hidden.norm())
        if self.use == "partly":
            return self.pair(inputs) + self.pair[:2](inputs).sum(-1, keepdim=True)
        if self.use == "read":
            return self.pair(inputs) * last.weight.norm()
        return self.pair(inputs.to(first.weight.dtype))


class _OwnCalls(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self[1](self[0](inputs))
        return self[2](hidden / hidden.norm())


@pytest.mark.parametrize(
    ("use", "layers"),
    [
        ("called", set()),
        ("alone", {"1.pair.0", "1.pair.2"}),
        ("partly", {"1.pair.0"}),
        ("read", {"1.pair.2"}),
        ("tied", {"1.pair.0", "1.pair.2"}),
    ],
)
def test_layers_that_are_used_otherwise_are_no_pair(use: str, layers: set[str]) -> None:
    network = nn.Sequential(nn.Linear(8, 8), _Perceptron(use), nn.Linear(8, 8))
    alone = used_alone(network, TensorForm((2, 8), torch.float32))
    assert alone == layers
    assert len(find_pairs(network, alone)) == (not layers)


def test_a_layer_that_torch_compiles_is_looked_at_as_it_was_written() -> None:
    compiled = torch.compile(nn.Linear(8, 8))
    network = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), compiled)  # type: ignore[arg-type]
    assert used_alone(network, TensorForm((2, 8), torch.float32)) == set()


class _Elsewhere(nn.Linear):
    """Has no kernel for CPUs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.device.type == "cpu":
            raise NotImplementedError
        return super().forward(inputs)


def test_layers_are_looked_at_on_the_device_that_trains_them() -> None:
    network = nn.Sequential(_Elsewhere(8, 8), nn.Linear(8, 8))
    assert used_alone(network, TensorForm((2, 8), torch.float32), "meta") == set()


def test_a_sequence_with_a_forward_of_its_own_has_no_pair() -> None:
    layers = nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)
    assert find_pairs(nn.Sequential(_OwnCalls(*layers))) == []


class _Residual(nn.Module):
    """The pair lies within a skip connection, and so within a recorded block."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(8, 8), nn.Linear(8, 10)
        self.perceptron = _Perceptron(use)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embedding(images.flatten(1)[:, :8])
        return self.head(x + self.perceptron(x))


@pytest.mark.parametrize(("use", "rows"), [("called", ["pair.2"]), ("alone", []), ("partly", [])])
def test_a_recorded_block_shows_its_pairs(use: str, rows: list[str]) -> None:
    network = cut_by_recording(Whole(_Residual(use), ""), DATASETS["cifar10"])
    alone = used_alone(network, TensorForm((2, *DATASETS["cifar10"].shape), torch.float32))
    assert alone == set()
    assert [entry.row[-6:] for entry in find_pairs(network)] == rows


def cell_of(strategy: str, network: str, devices: int, **options: Any) -> Cell:
    dataset = "tokens" if network.startswith("gpt") else "mnist"
    made = tuple(options.items())
    return Cell(dataset, network, strategy, 12, devices_per_node=devices, options=made)


@pytest.mark.parametrize(
    ("cell", "reason", "code"),
    [
        (cell_of("tensor-parallel", "gpt-small", 4), None, ""),
        (cell_of("tensor-parallel", "mlp", 2), None, ""),
        (cell_of("tensor-parallel", "mine:network", 7), None, ""),
        (
            cell_of("tensor-parallel", "resnet18", 2),
            "convolutions hold 100% of the weights of resnet18, and tensor-parallel splits pairs "
            "of linear layers only; take strategy filter or channel",
            "cannot_be_split",
        ),
        (
            cell_of("tensor-parallel", "vgg11", 2).with_(dataset="imagenet"),
            "vgg11 has no two linear layers that tensor-parallel could split: only activations may "
            "lie between them, no dropout, in one nn.Sequential; take strategy filter or channel",
            "cannot_be_split",
        ),
        (
            cell_of("tensor-parallel", "vit-tiny", 2),
            "3 attention heads of vit-tiny do not divide over a group of 2 devices; make groups "
            "of a number that divides 3",
            "uneven_split",
        ),
        (
            cell_of("tensor-parallel", "mlp", 3),
            "128 hidden features of mlp do not divide over a group of 3 devices; make groups of a "
            "number that divides 128",
            "uneven_split",
        ),
        (cell_of("data-tensor", "vit-tiny", 6, group=3), None, ""),
        (
            cell_of("data-tensor", "vit-tiny", 4, group=3),
            "4 devices do not make equal groups of 3; write another group",
            "uneven_groups",
        ),
        (
            cell_of("data-tensor", "mlp", 10, group=2),
            "a mini-batch of 12 does not divide over 5 groups; make batch_size a multiple of 5",
            "uneven_batch",
        ),
    ],
    ids=lambda value: value.id if isinstance(value, Cell) else "",
)
def test_what_is_refused(cell: Cell, reason: str | None, code: str) -> None:
    actual = strategy_of(cell.strategy).supports(cell)
    assert actual == reason
    assert getattr(actual, "code", "") == code


@pytest.mark.parametrize("strategy", ["tensor-parallel", "data-tensor", "data-tensor-pipe"])
@pytest.mark.parametrize(
    ("use", "reason"), [("called", "8 hidden features"), ("alone", "has no two linear layers")]
)
def test_own_networks_are_refused_before_there_is_a_plan(
    strategy: str, use: str, reason: str
) -> None:
    network = cut_by_recording(Whole(_Residual(use), ""), DATASETS["cifar10"])
    traits = NetworkTraits(pairs=known_pairs(network, DATASETS["cifar10"]))
    options = {} if strategy == "tensor-parallel" else {"group": 3}
    three = cell_of(strategy, "mine:network", 3, **options)
    why = strategy_of(strategy).why_not_layers(traits, three)
    assert reason in str(why)
    assert strategy_of(strategy).why_not_layers(NetworkTraits(), three) is None


@pytest.mark.parametrize(
    "strategy", ["filter", "tensor-parallel", "data-tensor", "data-tensor-pipe"]
)
def test_no_accelerator_emulates_parts_of_layers(strategy: str) -> None:
    """Its network sleeps for whole blocks, and would be trained whole by every device."""
    cell = cell_of(strategy, "vit-small", 2).with_(dataset="imagenet")
    why = why_unsupported(cell, load_site("emulated-4-gpus"))
    assert getattr(why, "code", "") == "layers_not_emulated"


def test_groups_lie_side_by_side() -> None:
    cell = cell_of("data-tensor", "vit-tiny", 3).with_(nodes=2)
    processes = strategy_of(cell.strategy).placement(cell)
    assert [(p.node, p.shard, p.num_shards) for p in processes] == [
        (node, node, 2) for node in (0, 0, 0, 1, 1, 1)
    ]
