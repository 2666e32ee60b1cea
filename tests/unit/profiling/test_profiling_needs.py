"""Which profiles a matrix needs, and at which batch sizes."""

from __future__ import annotations

import dataclasses

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand
from ddlbench.planning.profiles import (
    ProfileNeeds,
    device_batches,
    needs_of,
    profiles_of,
)
from ddlbench.planning.strategy import strategy_of

SITE = dataclasses.replace(load_site("local"), devices_per_node=4)


def planned(**changes):
    experiment = parse_experiment(
        {
            "experiment": "e",
            "matrix": {
                "dataset": ["mnist", "cifar10"],
                "network": ["vgg11", "resnet18"],
                "strategy": ["sequential", "ddp", "gpipe"],
                "geometry": ["1x2", "1x4"],
            },
            "settings": {"batch_size": 32, "data_scale": 0.01},
            "strategies": {"gpipe": {"chunks": 8}},
            **changes,
        }
    )
    return expand(experiment, SITE), experiment.profile


def test_every_dataset_and_network_once():
    rows, _ = planned()
    assert [key.id for key in profiles_of(rows)] == [
        "mnist/vgg11/fp32-1t", "mnist/resnet18/fp32-1t",
        "cifar10/vgg11/fp32-1t", "cifar10/resnet18/fp32-1t",
    ]  # fmt: skip


def test_batches_of_one_device():
    cell = Cell("mnist", "vgg11", "sequential", 32)
    assert device_batches(cell) == {32}
    assert device_batches(cell.with_(strategy="ddp", devices_per_node=4)) == {8}
    gpipe = cell.with_(strategy="gpipe", devices_per_node=4, options=(("chunks", 8),))
    assert device_batches(gpipe) == {4, 32}
    fsdp = cell.with_(strategy="fsdp", devices_per_node=4, options=(("accumulate", 2),))
    assert device_batches(fsdp) == {8, 4}


def test_needs_of_a_cell_of_the_matrix():
    adamw = needs_of("mnist/vgg11/fp32-1t-adamw", *planned(), SITE)
    assert (adamw.cell.optimizer, adamw.key.id) == ("adamw", "mnist/vgg11/fp32-1t-adamw")
    needs = needs_of("mnist/vgg11/fp32-1t", *planned(), SITE)
    assert needs.step_batches == (4, 8, 16, 32)
    assert needs.layer_batches == (4, 11, 32)
    assert needs.replica_batch == 8
    assert (needs.cell.strategy, needs.cell.data_scale) == ("sequential", 0.01)
    assert ProfileNeeds.from_dict(needs.to_dict()) == needs


def test_a_network_beside_the_matrix_takes_its_settings():
    needs = needs_of("cifar10/my_package@tiny/bf16-2t", *planned(), SITE)
    assert needs.key.id == "cifar10/my_package@tiny/bf16-2t"
    assert needs.step_batches == (4, 8, 16, 32)


def test_a_network_beside_a_matrix_that_the_site_cannot_run_takes_its_batch():
    rows, settings = planned(matrix={"dataset": ["mnist"], "network": ["vgg11"],
                                     "strategy": ["ddp"], "geometry": ["2x4"]})  # fmt: skip
    assert all(row.unsupported for row in rows if row.cell.strategy == "ddp")
    rows = [dataclasses.replace(row, unsupported="no table") for row in rows]
    needs = needs_of("cifar10/resnet18/fp32-1t", rows, settings, SITE)
    assert (needs.cell.network, needs.step_batches) == ("resnet18", (32,))


def test_batch_sizes_by_hand():
    rows, settings = planned(profile={"batch_sizes": [16, 2, 4], "budget_s": 5})
    needs = needs_of("mnist/vgg11/fp32-1t", rows, settings, SITE)
    assert (needs.layer_batches, needs.budget_s) == ((2, 4, 16), 5.0)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 100])
def test_layers_have_three_batch_sizes(batch):
    rows, settings = planned(
        matrix={"dataset": ["mnist"], "network": ["vgg11"], "strategy": ["sequential"],
                "geometry": ["1x1"]},
        settings={"batch_size": batch},
    )  # fmt: skip
    actual = needs_of("mnist/vgg11/fp32-1t", rows, settings, SITE).layer_batches
    assert len(actual) == 3 and actual[0] >= 1 and actual[-1] >= batch


@pytest.mark.parametrize(
    ("profile_id", "sentence"),
    [
        ("mnst/vgg11/fp32-1t", "unknown dataset 'mnst'; did you mean 'mnist'"),
        ("mnist/vgg1/fp32-1t", "unknown network 'vgg1'"),
        ("mnist/vgg11/fp8-1t", "precision: 'fp8' is not allowed; write fp32, tf32, bf16 or fp16"),
        ("mnist/vgg11/fp32-1t-adam", "optimizer: 'adam' is not allowed; write sgd or adamw"),
        ("mnist/vgg11/tf32-1t", "tf32 exists on GPUs only"),
        ("mnist/vgg11", "is not a profile"),
    ],
)
def test_a_wrong_profile_is_one_sentence(profile_id, sentence):
    with pytest.raises(ConfigError, match=sentence):
        needs_of(profile_id, *planned(), SITE)


def test_devices_that_run_alone_once_for_each_work():
    rows, settings = planned(
        matrix={
            "dataset": ["cifar10"],
            "network": ["vgg11", "resnet18"],
            "strategy": ["sequential", "ddp", "filter", "data-spatial"],
            "geometry": ["1x2", "1x4"],
        },
        repeats=2,
    )
    needs = needs_of("cifar10/resnet18/fp32-1t", rows, settings, SITE)
    works = [strategy_of(cell.strategy).device_work(cell) for cell in needs.alone]
    assert [work for work in works if work and work.startswith("filter")] == [
        "filter group=2 replicas=1 samples=32",
        "filter group=4 replicas=1 samples=32",
    ]
    assert [work for work in works if work and work.startswith("data-spatial")] == [
        "data-spatial group=2 replicas=1 samples=32 split=height until=head",
        "data-spatial group=4 replicas=1 samples=32 split=height until=head",
    ]
    assert ProfileNeeds.from_dict(needs.to_dict()) == needs
