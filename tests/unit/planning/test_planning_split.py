"""Split strategies: groups, shares, and what the options mean."""

from __future__ import annotations

from typing import Any

import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import NETWORKS, mismatch, pairs
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.splits.descriptor import grid_of


def _cell(strategy: str, nodes: int, devices: int, batch: int = 24, **options: Any) -> Cell:
    return Cell(
        options.pop("dataset", "mnist"),
        options.pop("network", "resnet18"),
        strategy,
        batch_size=batch,
        nodes=nodes,
        devices_per_node=devices,
        options=tuple(options.items()),
    )


@pytest.mark.parametrize("strategy", ["spatial", "filter", "channel"])
def test_all_devices_share_every_sample(strategy: str) -> None:
    plan = make_plan(_cell(strategy, 2, 3, batch=7))
    assert {(p.shard, p.num_shards, p.replica) for p in plan.processes} == {(0, 1, 0)}
    assert (plan.details["group"], plan.details["replicas"]) == (6, 1)


@pytest.mark.parametrize("strategy", ["data-filter", "data-spatial"])
def test_a_node_is_a_group_unless_said_otherwise(strategy: str) -> None:
    plan = make_plan(_cell(strategy, 3, 4))
    assert [p.shard for p in plan.processes] == [0] * 4 + [1] * 4 + [2] * 4
    assert [p.node for p in plan.processes] == [p.shard for p in plan.processes]
    assert (plan.details["group"], plan.details["replicas"]) == (4, 3)
    within = make_plan(_cell(strategy, 1, 4, group=2))
    assert [p.shard for p in within.processes] == [0, 0, 1, 1]
    over_nodes = make_plan(_cell(strategy, 4, 1, group=2))
    assert [p.shard for p in over_nodes.processes] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (_cell("spatial", 1, 4, batch=1), None),
        (_cell("data-filter", 1, 6, group=4), "6 devices do not make equal groups of 4"),
        (_cell("data-spatial", 3, 2, batch=8), "a mini-batch of 8 does not divide over 3 groups"),
        (_cell("spatial", 1, 2, split="depth"), "images have no depth to split"),
        (_cell("spatial", 1, 2, split="depth", dataset="cosmoflow"), None),
        (_cell("spatial", 1, 5), "layer layer4_0.conv1 (Conv2d) has 4 rows, too few for 5 devices"),
        (_cell("spatial", 1, 5, split="width"), "has 4 columns, too few for 5 devices; use 4"),
        (_cell("spatial", 1, 5, until="layer3_0"), None),
        (_cell("spatial", 2, 8, split="both"), None),
        (_cell("spatial", 1, 2, network="vit-tiny"), "the first block, patches, needs all rows"),
        (_cell("data-spatial", 2, 2, network="mlp", until="auto"), "flatten, needs all rows"),
        (_cell("spatial", 1, 1, network="mlp"), None),
        (
            _cell("filter", 1, 11),
            "layer fc (Linear) has 10 filters, too few for 11 devices; use 10",
        ),
        (_cell("data-filter", 2, 11), "layer fc (Linear) has 10 filters"),
        (_cell("channel", 1, 11), None),
        (_cell("channel", 5, 13), "layer layer1_0.conv1 (Conv2d) has 64 input channels, too few"),
    ],
)
def test_reasons(cell: Cell, reason: str | None) -> None:
    actual = strategy_of(cell.strategy).supports(cell)
    assert actual is None if reason is None else reason in str(actual)


def test_grids() -> None:
    assert grid_of("height", 4) == {-2: 4}
    assert grid_of("width", 3) == {-1: 3}
    assert grid_of("depth", 2) == {-3: 2}
    assert grid_of("both", 12) == {-2: 4, -1: 3}
    assert grid_of("both", 5) == {-2: 5}
    assert grid_of("both", 1) == {}


def test_networks_meet_the_data_that_they_read() -> None:
    assert mismatch("cosmoflow", "cosmoflow") is None
    assert mismatch("resnet18", "mnist") is None
    assert mismatch("some.module:network", "cosmoflow") is None
    assert mismatch("cosmoflow", "mnist") == (
        "network cosmoflow reads volumes, but dataset mnist has images"
    )
    assert mismatch("vgg16", "cosmoflow") == (
        "network vgg16 reads images, but dataset cosmoflow has volumes"
    )
    for kind in ("images", "volumes", "tokens"):
        networks = [name for name, network in NETWORKS.items() if network.reads == kind]
        datasets = [spec.name for spec in DATASETS.values() if spec.kind == kind]
        read = [pair for pair in pairs() if pair[1].kind == kind]
        assert len(read) == len(networks) * len(datasets) > 0
