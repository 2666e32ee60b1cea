"""Emulated blocks: sizes and times are the profile's, a split backward pass has halves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.site import Accelerator
from ddlbench.networks import build, emulated, num_parameters
from ddlbench.networks.factory import skeleton
from ddlbench.planning.device_table import DeviceTable, table_for, write_table
from ddlbench.strategies.recomputation import recompute_in_place

ROOT = Path(__file__).resolve().parents[3]
CIFAR = DATASETS["cifar10"]
IMAGENET = DATASETS["imagenet"]
ONE_CORE = Accelerator(str(ROOT / "config" / "accelerators" / "one-core"), slow_down=2)
PIPEDREAM = Accelerator(str(ROOT / "config" / "accelerators" / "pipedream"))


@pytest.fixture
def occupied(monkeypatch) -> list[float]:
    """Seconds for which the device would have worked, in order."""
    seconds: list[float] = []
    monkeypatch.setattr(emulated, "occupy", seconds.append)
    return seconds


def table_of(network: str) -> DeviceTable:
    return table_for(ONE_CORE, "cifar10", network)


@pytest.mark.parametrize("network", ["vgg11", "resnet18", "mobilenetv2", "stack"])
def test_an_emulated_network_has_the_blocks_and_weights_of_the_real_one(network):
    real = build(network, CIFAR, seed=1)
    copy = emulated.emulated_network(ONE_CORE, network, CIFAR)
    assert list(copy._modules) == list(real._modules)
    assert num_parameters(copy) == num_parameters(real)
    tensors = [sorted(p.numel() for p in block.parameters()) for block in real]
    assert [sorted(p.numel() for p in block.parameters()) for block in copy] == tensors
    inputs = torch.zeros(2, *CIFAR.shape)
    with torch.no_grad():
        for emulated_block, real_block in zip(copy, real, strict=True):
            inputs = real_block(inputs)
            assert emulated_block(torch.zeros(2, 1)).numel() == inputs.numel()


@pytest.mark.parametrize("network", ["vgg11", "mobilenetv2"])
def test_a_pass_saves_as_many_bytes_as_the_profile_says(network, occupied):
    """In the way in which a profile counts them, or predicted memory would lack activations."""
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.nbytes)
        return tensor

    blocks = emulated.emulated_network(ONE_CORE, network, CIFAR)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        blocks(torch.zeros(8, *CIFAR.shape))
    expected = sum(8 * block.saved_bytes for block in table_of(network).blocks)
    assert sum(saved) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("network", ["vgg11", "resnet18"])
def test_a_shrunk_network_has_a_share_of_the_bytes_and_the_same_times(network, occupied):
    tenth = replace(ONE_CORE, shrink=10)
    whole, small = (
        emulated.emulated_network(accelerator, network, CIFAR) for accelerator in (ONE_CORE, tenth)
    )
    assert num_parameters(small) == pytest.approx(num_parameters(whole) / 10, rel=0.01)
    buffers = [sum(b.numel() for b in module.buffers()) for module in (whole, small)]
    assert buffers[1] == pytest.approx(buffers[0] / 10, rel=0.01)
    passed, saved, seconds = [], [], []
    for module in (whole, small):
        kept: list[int] = []
        occupied.clear()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, kept=kept: kept.append(tensor.numel()) or tensor, lambda packed: packed
        ):
            first = module[:-1](torch.zeros(4, *CIFAR.shape))
        passed.append(first.numel())
        saved.append(sum(kept))
        seconds.append(sum(occupied))
        assert module[-1](first).shape == (4, CIFAR.num_classes)  # labels stay as they are
    assert passed[1] == pytest.approx(passed[0] / 10, abs=4)
    assert saved[1] == pytest.approx(saved[0] / 10, rel=0.01)
    assert seconds[1] == seconds[0]


def test_no_tensor_of_a_network_vanishes():
    tiny = emulated.emulated_network(replace(ONE_CORE, shrink=1000), "resnet18", CIFAR)
    assert all(parameter.numel() for parameter in tiny.parameters())
    assert tiny(torch.zeros(2, *CIFAR.shape)).shape == (2, CIFAR.num_classes)


def test_a_step_takes_the_times_of_the_profile(occupied):
    table = table_of("vgg11")
    network = emulated.emulated_network(ONE_CORE, "vgg11", CIFAR)
    outputs = network(torch.zeros(8, *CIFAR.shape))
    forward_s = sum(block.forward.at(8) for block in table.blocks)
    assert sum(occupied) == pytest.approx(2 * forward_s)
    occupied.clear()
    loss = torch.nn.functional.cross_entropy(outputs, torch.zeros(8, dtype=torch.long))
    assert torch.isfinite(loss)
    loss.backward()
    blocks = list(enumerate(table.blocks))
    backward_s = sum(b.backward.at(8) for i, b in blocks if i > 0 or b.parameter_bytes)
    assert sum(occupied) == pytest.approx(2 * backward_s)
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_recomputed_block_goes_forward_twice(occupied):
    blocks = table_of("vgg11").blocks
    network = emulated.emulated_network(ONE_CORE, "vgg11", CIFAR)
    recompute_in_place(network)
    outputs = network(torch.zeros(8, *CIFAR.shape))
    occupied.clear()
    outputs.sum().backward()
    with_gradient = [block for i, block in enumerate(blocks) if i > 0 or block.parameter_bytes]
    backward_s = sum(block.backward.at(8) for block in with_gradient)
    again_s = sum(block.forward.at(8) for block in with_gradient[:-1])
    assert sum(occupied) == pytest.approx(2 * (backward_s + again_s))


def test_a_split_backward_pass_takes_each_half_once(occupied):
    table = table_of("vgg11")
    stage = emulated.emulated_network(ONE_CORE, "vgg11", CIFAR)[3:10]
    blocks = table.blocks[3:10]
    inputs = torch.zeros(8, 4, requires_grad=True)
    outputs = stage(inputs)
    occupied.clear()
    gradient = torch.ones_like(outputs)
    (of_inputs,), groups = stage_backward_input([outputs], [gradient], [inputs], stage.parameters())
    of_input_s = sum(occupied)
    occupied.clear()
    stage_backward_weight(stage.parameters(), groups)
    whole_s = 2 * sum(block.backward.at(8) for block in blocks)
    weights_s = sum(
        2 * block.backward.at(8) * block.weight_share / (block.input_share + block.weight_share)
        for block in blocks
        if block.parameter_bytes
    )
    assert of_inputs.shape == inputs.shape
    assert sum(occupied) == pytest.approx(weights_s)
    assert of_input_s == pytest.approx(whole_s - weights_s)
    assert all(parameter.grad is not None for parameter in stage.parameters())


def test_a_network_without_a_table_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cifar10/vgg11\.csv: no such table; make it with"):
        emulated.emulated_network(Accelerator(str(tmp_path)), "vgg11", CIFAR)


@pytest.mark.parametrize("network", ["alexnet", "vgg16", "resnet18", "resnet50", "resnet101"])
def test_published_tables_have_the_weights_of_the_real_networks(network):
    """A conv, linear or batch norm has the tensors that torchvision's has, split by its text."""
    copy = emulated.emulated_network(PIPEDREAM, network, IMAGENET)
    real = skeleton(network, IMAGENET)
    assert list(copy._modules) == list(real._modules)
    for ours, theirs in zip(copy, real, strict=True):
        assert sorted(p.numel() for p in ours.parameters()) == sorted(
            p.numel() for p in theirs.parameters()
        )


def test_a_name_that_torch_has_itself_is_refused(tmp_path):
    table = table_of("vgg11")
    wrong = replace(table, parameters=({"type": 8}, *table.parameters[1:]))
    write_table(tmp_path / "cifar10" / "vgg11.csv", wrong)
    with pytest.raises(ConfigError, match="torch has a type of its own; rename it"):
        emulated.emulated_network(Accelerator(str(tmp_path)), "vgg11", CIFAR)
