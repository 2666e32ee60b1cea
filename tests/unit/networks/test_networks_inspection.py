"""A tiny step shows the traits of a network, with and without computing."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from cases import strangers_networks
from torch import nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import foreign, inspection
from ddlbench.networks.factory import build_with_traits, try_network
from ddlbench.networks.inspection import copy_of, inspect
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.planner import make_plan
from ddlbench.planning.trainable import why_not_trained

SPEC = DATASETS["cifar10"]
TRAITS = {
    "plain": {},
    "frozen": {},
    "whole_number_parameter": {"whole_numbers": ("4.order",)},
    "detached": {"unused": ("2.weight", "2.bias", "4.weight", "4.bias")},
    "hooked_weight": {"hooked": ("4.weight",)},
    "masked_weight": {"hooked": ("4.weight",)},
    "hooked_after": {"hooked": ("4.weight",), "hooked_after": ("4.weight",)},
    "recomputed": {},
    "recomputed_reentrant": {},
    "lazy": {},
    "whole_numbers": {"without_gradient": ("4",), "unused": ("2.weight", "2.bias")},
    "sparse": {
        "without_gradient": ("4",),
        "unused": ("2.weight", "2.bias"),
        "sparse": ("5.table.weight",),
    },
    "unused": {"unused": ("4.idle.weight", "4.idle.bias")},
    "weight_norm": {},
    "strided": {"strided": ("4.weight",)},
    "channels_last": {"strided": ("0.weight", "2.weight")},
    "in_place": {},
    "in_place_first": {},
    "scalar": {"scalars": ("4.scale",)},
    "complex_weights": {"complex": ("4.weight",)},
    "batch_norm": {"batch_norm": True, "needs_two_samples": True},
    "functional_batch_norm": {"batch_norm": True, "needs_two_samples": True},
    "dropout": {"random": True},
    "noisy": {"random": True},
    "tied": {},
}


def traits_of(name: str) -> NetworkTraits:
    """All but its pairs of linear layers, for which test_tensor_pairs.py looks."""
    return build_with_traits(f"cases.strangers_networks:{name}", SPEC, 1)[1]


def expected_of(name: str) -> NetworkTraits:
    """Its blocks, and where rows end, are of any network, and no part of the table."""
    actual = traits_of(name)
    return NetworkTraits(blocks=actual.blocks, rows_end_at=actual.rows_end_at, **TRAITS[name])


@pytest.mark.parametrize("name", TRAITS)
def test_each_trait_is_seen(name):
    traits = traits_of(name)
    assert traits == expected_of(name)
    assert len(traits.blocks) >= 5


class InDouble(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.softmax(1, dtype=torch.float64).float()[:, :9]


@pytest.mark.parametrize(
    ("last", "normalised_by"),
    [
        ([nn.Softmax(dim=1)], "softmax"),
        ([nn.Softmax(dim=1), nn.Unflatten(1, (5, 2)), nn.Flatten()], "softmax"),
        ([InDouble()], "softmax"),
        ([nn.Sigmoid()], "sigmoid"),
        ([nn.LogSoftmax(dim=1)], ""),  # the logarithm of its softmax is itself
        ([nn.Sigmoid(), nn.Linear(10, 10)], ""),
    ],
)
def test_outputs_that_are_normalised_already_are_seen(last, normalised_by):
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10), *last)
    assert inspect(network, SPEC).normalised_by == normalised_by


@pytest.mark.parametrize(
    ("blocks", "rows_end_at"),
    [
        ([nn.Flatten(), nn.Linear(3072, 10)], "0"),
        ([nn.Sequential(nn.Flatten()), nn.Linear(3072, 10)], "0"),
        ([nn.Conv2d(3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 10)], "1"),
    ],
)
def test_the_first_block_that_reads_all_rows_is_seen(blocks, rows_end_at):
    traits = inspect(nn.Sequential(*blocks), SPEC)
    assert traits.rows_end_at == rows_end_at
    for strategy in ("spatial", "data-spatial"):
        cell = Cell("cifar10", "mine:net", strategy, 8, nodes=1, devices_per_node=2)
        reason = why_not_trained(traits, make_plan(cell))
        assert ("needs all rows" in str(reason)) == (rows_end_at == "0")
        alone = make_plan(cell.with_(devices_per_node=1))
        assert why_not_trained(traits, alone) is None


@pytest.mark.parametrize("name", sorted(set(TRAITS) - {"noisy"}))
def test_large_networks_show_the_same_without_computing(name, monkeypatch):
    monkeypatch.setattr(inspection, "_COMPUTED_BYTES", 0)
    assert traits_of(name) == expected_of(name)


@pytest.mark.parametrize(("name", "blocks"), [("in_place", [4, 5]), ("in_place_first", [0])])
def test_a_block_that_overwrites_its_input_gets_a_copy(name, blocks):
    network, _ = build_with_traits(f"cases.strangers_networks:{name}", SPEC, 1)
    passing = torch.randn(2, *SPEC.shape)
    for number, block in enumerate(network):
        before = passing.clone()
        outputs = block(passing)
        assert torch.equal(passing, before), number
        passing = outputs
    assert [number for number, block in enumerate(network) if block._forward_pre_hooks] == blocks


def test_copies_of_recorded_blocks_do_not_overwrite_their_input_either():
    network, _ = build_with_traits("cases.strangers_networks:in_place_recorded", SPEC, 1)
    for each in (network, copy_of(network)):
        inputs = torch.ones(2, *SPEC.shape)
        each(inputs)
        assert torch.equal(inputs, torch.ones_like(inputs))


def test_inspection_leaves_no_trace():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    network, _ = build_with_traits("cases.strangers_networks:batch_norm", SPEC, 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert int(network[4].num_batches_tracked) == 0
    assert all(weight.grad is None for weight in network.parameters())


def test_lazy_layers_get_their_weights_from_the_seed():
    first, same, other = (
        build_with_traits("cases.strangers_networks:lazy", SPEC, seed)[0] for seed in (1, 1, 2)
    )
    assert isinstance(first[2], nn.Linear)
    assert torch.equal(first[2].weight, same[2].weight)
    assert not torch.equal(first[2].weight, other[2].weight)


def test_numpy_and_random_are_seeded_and_their_states_kept():
    drawn = [strangers_networks.np.random.rand(), strangers_networks.random.random()]
    first, same, other = (
        build_with_traits("cases.strangers_networks:from_numpy", SPEC, seed)[0].state_dict()
        for seed in (1, 1, 2)
    )
    assert torch.equal(first["4.weight"], same["4.weight"])
    assert not torch.equal(first["4.weight"], other["4.weight"])
    assert drawn != [strangers_networks.np.random.rand(), strangers_networks.random.random()]


HOSTILE = """
import os, threading, warnings
import torch
from torch import nn

os.chdir("/")
os.environ["CUDA_VISIBLE_DEVICES"] = "3"
os.environ.pop("RANK", None)
warnings.simplefilter("error")
torch.set_grad_enabled(False)
torch.set_default_dtype(torch.float64)


class Block(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layer = nn.Linear(spec.image_bytes, spec.num_classes)
        self.lock, self.cache = threading.Lock(), {"twice": [2 * self.layer.weight]}

    def forward(self, inputs):
        with self.lock:
            return self.layer(inputs)


def net(spec):
    return nn.Sequential(nn.Flatten(), Block(spec))
"""


def test_what_a_module_does_to_the_process_is_undone(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder, filters = Path.cwd(), list(warnings.filters)
    network, traits = build_with_traits("hostile:net", SPEC, 1)
    assert (Path.cwd(), warnings.filters) == (folder, filters)
    assert os.environ["RANK"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert torch.is_grad_enabled()
    assert network[1].layer.weight.dtype == torch.float32
    assert traits.trains  # and the block with a lock and a computed weight was copied


class Alternates(nn.Module):
    """Uses its layers in turn (pytorch#45325)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.calls = nn.ModuleList([nn.Linear(3072, 10), nn.Linear(3072, 10)]), 0

    def forward(self, inputs):
        self.calls += 1
        return self.layers[self.calls % 2](inputs)


class Experts(nn.Module):
    """Two layers, each for the samples that a gate gives it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, inputs):
        chosen = self.gate(inputs).argmax(1)
        outputs = torch.zeros_like(inputs)
        for number, expert in enumerate(self.experts):
            if (mine := chosen == number).any():
                outputs[mine] = expert(inputs[mine])
        return outputs


@pytest.mark.parametrize("seed", range(4))
def test_experts_that_not_every_sample_uses_are_irregular(seed):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 8), nn.Tanh(), Experts(), nn.Linear(8, 10)
    )
    assert inspect(network, SPEC).irregular


def test_weights_that_not_every_step_uses_are_irregular():
    block = Alternates()
    traits = inspection.inspect(nn.Sequential(nn.Flatten(), block), SPEC)
    names = {f"1.layers.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")}
    assert set(traits.irregular) == set(traits.unused) == names
    assert block.calls == 0


class Clamps(nn.Module):
    """Changes its weight in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3072, 10)

    def forward(self, inputs):
        self.layer.weight.data.clamp_(-0.001, 0.001)
        return self.layer(inputs)


class Auxiliary(Clamps):
    """Calls backward in its forward pass."""

    def forward(self, inputs):
        self.layer.weight.square().sum().backward()
        return self.layer(inputs)


class Reads(nn.Module):
    """Holds the layers of another block in a list."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layers = [layer]

    def forward(self, inputs):
        return inputs + self.layers[0].bias


def test_what_a_forward_pass_does_to_weights_is_seen():
    flat = nn.Flatten()
    assert inspection.inspect(nn.Sequential(flat, Clamps()), SPEC).written == ("1.layer.weight",)
    assert inspection.inspect(nn.Sequential(flat, Auxiliary()), SPEC).backward_within
    layer = nn.Linear(3072, 10)
    assert inspection.inspect(nn.Sequential(flat, layer, Reads(layer)), SPEC).borrowed == ("2",)


class MakesItsLayer(nn.Module):
    def forward(self, inputs):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(inputs.shape[1], 10)
        return self.layer(inputs)


class Squeezes(nn.Module):
    def forward(self, inputs):
        return inputs.squeeze()


@pytest.mark.parametrize(
    ("layers", "needs_two"),
    [((), False), ((Squeezes(),), True), ((Squeezes(), nn.BatchNorm1d(10)), True)],
)
def test_a_network_that_loses_the_dimension_of_one_sample_needs_two(layers, needs_two):
    network = nn.Sequential(nn.Flatten(), nn.Linear(SPEC.image_bytes, 10), *layers)
    assert inspection.inspect(network, SPEC).needs_two_samples == needs_two


def test_weights_that_the_forward_pass_makes_are_refused():
    with pytest.raises(ConfigError, match=r"makes weights in its forward pass \(1.layer.weight\)"):
        inspection.inspect(nn.Sequential(nn.Flatten(), MakesItsLayer()), SPEC)


def test_several_types_and_no_gradient_are_traits():
    both = nn.Sequential(nn.Flatten(), nn.Linear(SPEC.image_bytes, 8))
    both[1].register_parameter("extra", nn.Parameter(torch.ones(1, dtype=torch.float64)))
    assert inspection.inspect(both, SPEC).mixed_types == ("1",)
    assert not inspection.inspect(both.requires_grad_(False), SPEC).trains


def test_a_network_of_another_type_is_refused_before_a_job(tmp_path, monkeypatch):
    (tmp_path / "of_doubles.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net(spec):\n"
        "    torch.set_default_dtype(torch.float64)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(spec.image_bytes, spec.num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="block '1' fails on an input of shape"):
        try_network("of_doubles:net", SPEC)
    assert torch.get_default_dtype() == torch.float32


def cell_of(strategy: str, devices: int = 4) -> Cell:
    return Cell("mnist", "vgg11", strategy, batch_size=12, devices_per_node=devices)


class Clamped(nn.Linear):
    """Its weights are clamped in each pass, whatever the samples."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.01, 0.01)
        return super().forward(inputs)


def test_weights_that_samples_change_are_told_from_others() -> None:
    images = DATASETS["mnist"]
    clamped = inspect(nn.Sequential(nn.Flatten(), Clamped(784, 10)), images)
    assert clamped.written == ("1.weight",)
    assert clamped.written_by_samples == ()
    tokens = DATASETS["tokens"]
    far = nn.Embedding(256, 4, max_norm=100.0)  # which no row has before it is trained
    shortened = inspect(nn.Sequential(far, nn.Linear(4, 256)), tokens)
    assert shortened.written == shortened.written_by_samples == ("0.weight",)
    assert inspect(nn.Sequential(nn.SyncBatchNorm(1)), images).synchronised == ("0",)


def test_a_pass_over_a_part_of_the_batch_does_not_write_weights() -> None:
    traits = NetworkTraits(written=("a",), written_by_samples=("a",))
    for strategy in ("ddp", "horovod", "local-sgd", "parameter-server"):
        why = why_not_trained(traits, make_plan(cell_of(strategy)))
        assert "by the samples that it sees (a)" in str(why)
    assert why_not_trained(traits, make_plan(cell_of("sequential", 1))) is None
    assert why_not_trained(NetworkTraits(written=("a",)), make_plan(cell_of("ddp"))) is None


def test_layers_for_gpus_only_are_refused_on_cpus() -> None:
    traits = NetworkTraits(synchronised=("bn",))
    assert "GPUs only" in str(why_not_trained(traits, make_plan(cell_of("ddp"))))
    assert why_not_trained(traits, make_plan(cell_of("ddp")), "cuda") is None
    assert why_not_trained(traits, make_plan(cell_of("sequential", 1))) is None


@pytest.mark.parametrize("strategy", ["parameter-server", "pipedream", "pipe-1f1b"])
def test_layers_that_wait_for_all_ranks_are_refused_where_some_lack_them(strategy: str) -> None:
    traits = NetworkTraits(synchronised=("bn",))
    assert "waits for all ranks" in str(
        why_not_trained(traits, make_plan(cell_of(strategy)), "cuda")
    )


def test_horovod_would_leave_such_layers_unsynchronised() -> None:
    traits = NetworkTraits(synchronised=("bn",))
    why = why_not_trained(traits, make_plan(cell_of("horovod")), "cuda")
    assert "no group of ranks for SyncBatchNorm" in str(why)
    assert why_not_trained(traits, make_plan(cell_of("ddp")), "cuda") is None


def test_a_module_that_imports_torchvision_is_tried_again_beside_its_operators(monkeypatch):
    monkeypatch.setattr(foreign, "_COMPAT", "json")
    errors = [RuntimeError("operator torchvision::nms does not exist"), ValueError("its own")]

    @foreign.finding_torchvision
    def build(number: int) -> int:
        if len(errors) > number:
            raise errors.pop(0)
        return number

    assert build(1) == 1
    with pytest.raises(ValueError, match="its own"):
        build(0)


def test_a_network_that_ends_python_is_one_sentence(monkeypatch):
    def net(_spec):
        sys.exit(2)  # as argparse does

    monkeypatch.setattr(strangers_networks, "ends", net, raising=False)
    with pytest.raises(
        ConfigError, match=r"it ends Python \(exit status 2\); read no command line"
    ):
        try_network("cases.strangers_networks:ends", SPEC)
