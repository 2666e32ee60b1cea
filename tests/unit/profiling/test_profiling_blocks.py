"""Block by block is the whole network; times are those of the blocks; gradients come in order."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from odd_blocks import Planted, Residual, Shared, tiny
from torch import nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.profiling.blocks import (
    ReadyOrder,
    blocks_of,
    clear_gradients,
    cut_step,
    ready_block_by_block,
    tensor_entries,
    time_blocks,
    time_one_by_one,
)
from ddlbench.profiling.layers import recorded, time_leaves
from ddlbench.profiling.timers import CpuMarks, PassTimer, Samples

CPU = torch.device("cpu")
MARKS = partial(CpuMarks, processor=True)


def blocks(network, *, resident=True):
    return blocks_of(network, "fp32", CPU, resident)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2"])
def test_block_by_block_is_the_whole_network(name):
    network = build(name, DATASETS["mnist"], seed=0)
    images = torch.randn(4, 1, 28, 28)
    torch.manual_seed(1)
    _, outputs = cut_step(blocks(network), images, CpuMarks(False))
    cut = {n: p.grad for n, p in network.named_parameters()}
    clear_gradients(network)
    torch.manual_seed(1)
    whole = network(images)
    whole.backward(torch.randn_like(whole) / len(whole))
    assert torch.equal(outputs, whole)
    for parameter_name, parameter in network.named_parameters():
        assert torch.equal(cut[parameter_name], parameter.grad), parameter_name


def planted():
    # Parameters first: else nothing behind would want a gradient.
    return nn.Sequential(
        nn.Conv2d(1, 1, 1),
        Planted(0.02, 0.05),
        nn.Sequential(Planted(0.01, 0.03), Planted(0.04, 0.02)),
    )


def timer(samples, passes):
    return PassTimer(MARKS, lambda _pass_s: passes, samples)


def seconds(samples, piece):
    return [samples.timings(piece, phase)[0]["time_s"] for phase in ("forward", "backward")]


@pytest.mark.parametrize("whole", [True, False])
def test_planted_times_of_blocks(whole):
    samples = Samples()
    pieces = blocks(planted(), resident=whole)
    images = torch.randn(2, 1, 4, 4)
    if whole:
        time_blocks(pieces, images, timer(samples, 3))
    else:
        time_one_by_one(pieces, images, timer(samples, 3))
    # Ratios: the machine that runs this test may be busy, and then all times are longer.
    unit = seconds(samples, 1)[0] / 0.02
    assert seconds(samples, 1)[1] / unit == pytest.approx(0.05, rel=0.2)
    assert seconds(samples, 2)[0] / unit == pytest.approx(0.05, rel=0.2)
    assert seconds(samples, 2)[1] / unit == pytest.approx(0.05, rel=0.2)
    assert seconds(samples, 0)[0] / unit < 0.01


def test_planted_times_of_leaves():
    samples = Samples()
    time_leaves(blocks(planted()), torch.randn(2, 1, 4, 4), timer(samples, 3))
    unit = seconds(samples, "2.0")[0] / 0.01
    assert seconds(samples, "2.0")[1] / unit == pytest.approx(0.03, rel=0.2)
    assert seconds(samples, "2.1")[0] / unit == pytest.approx(0.04, rel=0.2)
    assert seconds(samples, "2.1")[1] / unit == pytest.approx(0.02, rel=0.2)


def test_a_wait_is_seen_by_the_wall_clock():
    class Sleep(nn.Module):
        def forward(self, inputs):
            threading_event.wait(0.05)
            return inputs * 1

    import threading

    threading_event = threading.Event()
    samples = Samples()
    time_blocks(
        blocks(nn.Sequential(Sleep())),
        torch.randn(1, 1),
        PassTimer(partial(CpuMarks, processor=False), lambda _pass_s: 3, samples),
    )
    assert samples.timings(0, "forward")[0]["time_s"] >= 0.05


def test_the_first_block_has_no_gradient_to_compute():
    samples = Samples()
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    time_blocks(blocks(network), torch.randn(3, 1, 2, 2), timer(samples, 2))
    assert samples.timings(0, "backward") == [
        {"batch_size": 3, "time_s": 0.0, "interval_s": [0.0, 0.0]}
    ]


def test_recorded_inputs_are_copies():
    (block,) = blocks(nn.Sequential(Residual(2)))
    images = torch.randn(1, 2, 4, 4)
    with recorded(block) as calls:
        block.forward(images)
    assert [call.name for call in calls] == ["0.conv1", "0.relu", "0.conv2", "0.relu#2"]
    assert (calls[1].arguments[0] < 0).any()  # before the ReLU overwrote it


def test_a_block_that_overwrites_its_input_is_one_sentence():
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Sequential(nn.ReLU(inplace=True)))
    with pytest.raises(ConfigError, match=r"block '1' overwrites its input"):
        cut_step(blocks(network), torch.randn(1, 1, 2, 2), CpuMarks(False))


def ready_names(network, images):
    order, marks = ReadyOrder(), CpuMarks(True)
    outputs = network(images).sum()
    with order.listening(network, marks):
        begin = marks.mark()
        outputs.backward()
        end = marks.mark()
    return order.fractions(marks, begin, end)


def test_gradients_of_a_chain_come_last_layer_first():
    network = build("vgg11", DATASETS["mnist"], seed=0)
    actual = ready_names(network, torch.randn(2, 1, 28, 28))
    layers = [name.rpartition(".")[0] for name, _ in actual]
    modules = [name for name, m in network.named_modules() if list(m.parameters(recurse=False))]
    assert list(dict.fromkeys(layers)) == modules[::-1]
    fractions = [fraction for _, fraction in actual]
    assert fractions == sorted(fractions)
    assert fractions[0] >= 0 and 0.5 < fractions[-1] <= 1


def test_block_by_block_gives_the_same_order():
    network = tiny(DATASETS["mnist"])
    images = torch.randn(2, 1, 28, 28)
    whole = ready_names(network, images)
    cut = ready_block_by_block(blocks(network, resident=False), images, CpuMarks(True))
    assert [name for name, _ in cut] == [name for name, _ in whole]
    assert [fraction for _, fraction in cut] == sorted(fraction for _, fraction in cut)


def test_shared_and_unused_parameters():
    network = nn.Sequential(Shared())
    names = [name for name, _ in ready_names(network, torch.randn(2, 10))]
    # A shared weight is ready once, after its first use came back; an unused one never.
    assert sorted(names) == sorted(
        ["0.twice.weight", "0.twice.bias", "0.once.weight", "0.once.bias"]
    )
    entries = tensor_entries(network, [(name, 0.5) for name in names])
    assert {entry["bytes"] for entry in entries} == {400, 40}
