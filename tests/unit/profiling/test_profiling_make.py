"""A whole profile: from needs to a file that its schema accepts."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import pytest
import torch

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.profile import read_profile
from ddlbench.experiment.registry import NETWORKS, mismatch
from ddlbench.experiment.site import load_site
from ddlbench.networks import build
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling import layers
from ddlbench.profiling.layers import measure_layers
from ddlbench.profiling.profile import fits_in_memory, make_profile
from ddlbench.profiling.steps import slowdowns
from ddlbench.runtime.rank_job import RankJobFailed

pytestmark = pytest.mark.slow

# Of families that have a smaller one.
LARGE = {"resnet50", "resnet101", "resnet152", "vgg16", "vit-small", "vit-base"}


def needs_for(network: str, **changes) -> ProfileNeeds:
    cell = Cell("mnist", network, "sequential", 8, data_scale=0.0014, warmup_steps=1)
    needs = ProfileNeeds(cell, (4, 8), (2, 4, 8), 4, 10.0)  # a busy machine needs its time
    return dataclasses.replace(needs, **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Profiles of networks beside this file, on a site of two devices."""
    folder = tmp_path_factory.mktemp("profiles")
    two_devices = dataclasses.replace(
        load_site("local"), devices_per_node=2, scratch=str(folder / "scratch"), cell_timeout_s=120
    )

    def make(network: str, memory_per_device_mb=None, devices=2, **changes):
        site = dataclasses.replace(
            two_devices, memory_per_device_mb=memory_per_device_mb, devices_per_node=devices
        )
        path = folder / network.replace(":", "@") / "profile.json"
        with pytest.MonkeyPatch.context() as patch:
            here = str(Path(__file__).parent)
            patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
            make_profile(needs_for(network, **changes), site, path)
        return read_profile(path).to_dict()

    return make


def split(strategy: str, batch_size: int = 8) -> Cell:
    return Cell("mnist", "odd_blocks:tiny", strategy, batch_size, devices_per_node=2)


@pytest.fixture(scope="module")
def tiny(made):
    # 84 images are fewer than 128: those steps are left out.
    alone = (split("filter"), split("spatial"), split("channel", 128))
    return made("odd_blocks:tiny", step_batches=(4, 8, 128), alone=alone)


def test_steps(tiny):
    assert [step["batch_size"] for step in tiny["steps"]] == [4, 8]
    for step in tiny["steps"]:
        parts = sum(step[f"{part}_s"] for part in ("load", "forward", "backward", "optimizer"))
        assert parts == pytest.approx(step["step_s"])
        assert step["count"] >= 3
        assert step["peak_bytes"] > 0
    assert tiny["steps"][1]["peak_bytes"] > tiny["steps"][0]["peak_bytes"]
    assert any("no steps at batch size 128" in note for note in tiny["notes"])


def test_devices_alone(tiny):
    by_filter, by_rows = tiny["alone"]
    assert by_filter["work"] == "filter group=2 replicas=1 samples=8"
    assert by_rows["work"] == "spatial group=2 replicas=1 samples=8 split=height until=head"
    for run in (by_filter, by_rows):
        assert run["count"] >= 3
        assert run["step_s"] > 0
        assert all(message["ranks"] == [0, 1] for message in run["messages"])
    assert {message["operation"] for message in by_filter["messages"]} == {
        "all_gather", "all_reduce",
    }  # fmt: skip
    assert "swap" in {message["operation"] for message in by_rows["messages"]}
    assert any("no device of channel alone: 84 training images" in n for n in tiny["notes"])


def test_blocks_and_layers(tiny):
    assert [block["name"] for block in tiny["blocks"]] == list("012345")
    assert [layer["name"] for layer in tiny["layers"]] == [
        "0", "1", "2.conv1", "2.relu", "2.conv2", "2.relu#2", "3", "4", "5",
    ]  # fmt: skip
    for row in [*tiny["blocks"], *tiny["layers"]]:
        for phase in ("forward", "backward"):
            assert [t["batch_size"] for t in row[phase]] == [2, 4, 8], row["name"]
    for block in tiny["blocks"]:
        for half in ("input_half", "weight_half"):
            assert [t["batch_size"] for t in block[half]] == [2, 4, 8], block["name"]
    trained = sum(block["parameter_bytes"] for block in tiny["blocks"])
    assert trained == sum(layer["parameter_bytes"] for layer in tiny["layers"])
    assert trained == sum(tensor["bytes"] for tensor in tiny["tensors"])
    assert trained == sum(4 * math.prod(tensor["shape"]) for tensor in tiny["tensors"])


def test_tensors_are_ready_from_the_last_block_on(tiny):
    blocks = [tensor["block"] for tensor in tiny["tensors"]]
    assert blocks == sorted(blocks, reverse=True)
    assert set(blocks) == {0, 2, 5}


def test_replicas(tiny):
    assert [entry["replicas"] for entry in tiny["node_slowdown"]] == [1, 2]
    assert tiny["node_slowdown"][0]["slowdown"] == 1
    low, high = tiny["node_slowdown"][1]["interval"]
    assert low <= tiny["node_slowdown"][1]["slowdown"] <= high


def test_slowdown_is_a_ratio_within_a_round():
    # Replica 0 alone takes 2 s and 4 s; together the two take 3 and 5 s, then 6 and 6 s.
    actual = slowdowns([{"1": [2.0, 4.0], "2": [3.0, 6.0]}, {"2": [5.0, 6.0]}])
    assert actual == [
        {"replicas": 1, "slowdown": 1.0, "interval": None},
        {"replicas": 2, "slowdown": 1.75, "interval": [1.5, 2.0]},
    ]


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ("odd_blocks:not_there", "cannot load 'odd_blocks:not_there'"),
        # What else is refused while a network is built: test_networks_build.py.
        pytest.param("odd_blocks:not_callable", "is not callable", marks=pytest.mark.exhaustive),
    ],
)
def test_a_wrong_network_is_one_sentence(made, network, sentence):
    with pytest.raises(RankJobFailed, match=sentence):
        made(network, devices=1)


@pytest.mark.parametrize("room", [math.inf, 2, 0])
def test_a_network_that_does_not_fit_is_profiled_all_the_same(room):
    notes: list[str] = []
    needs = needs_for("vgg11", layer_batches=(2, 3), budget_s=0.1)
    actual = measure_layers(needs, torch.device("cpu"), [], room, notes)
    for block in actual["blocks"]:
        assert [t["batch_size"] for t in block["forward"]] == [2, 3]
        assert [t["batch_size"] for t in block["backward"]] == [2, 3]
        halves = [size for size in (2, 3) if size <= room]
        assert [t["batch_size"] for t in block["weight_half"]] == halves
    assert len(actual["tensors"]) == 18
    assert any("moved in and out" in note for note in notes) is (room == 0)
    assert any("at batch size 3 each block was timed alone" in n for n in notes) is (room == 2)


def test_bfloat16_times_the_same_rows():
    needs = needs_for("odd_blocks:tiny", layer_batches=(2,), budget_s=0.1)
    needs = dataclasses.replace(needs, cell=needs.cell.with_(precision="bf16"))
    actual = measure_layers(needs, torch.device("cpu"), [], math.inf, [])
    plain = build("odd_blocks:tiny", DATASETS["mnist"], seed=0)
    assert {tensor["name"] for tensor in actual["tensors"]} == set(dict(plain.named_parameters()))
    assert all(row["forward"] for row in [*actual["blocks"], *actual["layers"]])


def test_room_in_memory():
    step = {"batch_size": 4, "peak_bytes": 300 + 400}
    assert fits_in_memory(8, None, 10**15, 10**15, [])
    assert fits_in_memory(4, 1300, 1000, 300, [])
    assert not fits_in_memory(4, 1299, 1000, 300, [])
    assert fits_in_memory(8, 1400, 1000, 300, [step])
    assert not fits_in_memory(8, 1399, 1000, 300, [step])


def test_steps_without_room_are_missing_with_a_note(made):
    tight = made("odd_blocks:tiny", memory_per_device_mb=1)
    assert tight["steps"] == []
    assert tight["device_memory_bytes"] == 1_000_000
    assert any("no whole steps at batch size 4 or more: out of memory" in n for n in tight["notes"])
    assert len(tight["blocks"]) == 6
    assert [entry["replicas"] for entry in tight["node_slowdown"]] == [1]


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in LARGE else [])
        for name in NETWORKS
        if mismatch(name, "mnist") is None
    ],
)
def test_every_network_has_every_block(network, monkeypatch):
    monkeypatch.setattr(layers, "_MOST_PASSES", 1)
    needs = needs_for(network, layer_batches=(2,), budget_s=0.01)
    actual = measure_layers(needs, torch.device("cpu"), [], math.inf, [])
    plain = build(network, DATASETS["mnist"], seed=0)
    assert [b["name"] for b in actual["blocks"]] == [name for name, _ in plain.named_children()]
    assert sum(b["parameter_bytes"] for b in actual["blocks"]) == sum(
        p.numel() * 4 for p in plain.parameters()
    )
    assert len(actual["tensors"]) == len(list(plain.parameters()))
    for row in [*actual["blocks"], *actual["layers"]]:
        assert [t["batch_size"] for t in row["forward"]] == [2], row["name"]
