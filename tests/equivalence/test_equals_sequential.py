"""After several steps every parallel strategy has the weights of sequential training.

The reference consumes the same global batch shard by shard, so that batch norm sees what a rank
or a micro-batch sees; gradients are averaged; dropout is off.
"""

from __future__ import annotations

import pytest
from cases.small_cells import RUNS, STEPS, cell_of, needs_horovod

from ddlbench.experiment.cell import Cell
from ddlbench.testing import assert_cell_equals_sequential
from ddlbench.testing.training import assert_same_weights, reference, train


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        (cell_of("sequential", 1), 1),
        (cell_of("ddp", 2), 2),
        (cell_of("ddp", 2, bucket_cap_bytes=1), 2),
        (cell_of("ddp", 4), 4),
        (cell_of("ddp", 2, "small_networks:transformer"), 2),
        (cell_of("fsdp", 1), 1),
        (cell_of("fsdp", 2), 2),
        (cell_of("fsdp", 4, "small_networks:transformer"), 4),
        (cell_of("fsdp", 2, reshard_after_forward=False), 2),
        (cell_of("hsdp", 2, nodes=2), 4),
        (cell_of("hsdp", 4, "small_networks:transformer", group=2), 4),
        (cell_of("local-sgd", 1), 1),
        (cell_of("local-sgd", 2, average_every_steps=1), 2),
        (cell_of("local-sgd", 2, average_every_steps=1).with_(momentum=0.0), 2),
        (cell_of("local-sgd", 4, "small_networks:transformer", average_every_steps=1), 4),
        (cell_of("gpipe", 2, "small_networks:transformer", balance="2+4"), 4),
        pytest.param(cell_of("horovod", 1), 1, marks=needs_horovod),
        pytest.param(cell_of("horovod", 2), 2, marks=needs_horovod),
        pytest.param(cell_of("horovod", 2, fusion_threshold_bytes=0), 2, marks=needs_horovod),
        pytest.param(cell_of("horovod", 2, nodes=2), 4, marks=needs_horovod),
        (cell_of("gpipe", 1), 4),
        (cell_of("gpipe", 2), 4),
        (cell_of("gpipe", 2, checkpoint="always", balance="2+4"), 4),
        (cell_of("gpipe", 3, checkpoint="never", chunks=8, balance="blocks"), 8),
        (cell_of("model-parallel", 2), 1),
        (cell_of("model-parallel", 4, balance="1+2+1+2"), 1),
    ],
    ids=lambda value: value.id if isinstance(value, Cell) else None,
)
def test_weights_equal_sequential_training(cell, parts):
    assert_cell_equals_sequential(cell, parts)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("network", "strategy", "devices", "parts"),
    [
        ("vgg11", "ddp", 2, 2),
        pytest.param("vgg11", "horovod", 2, 2, marks=needs_horovod),
        ("mobilenetv2", "gpipe", 2, 4),
        ("vgg11", "model-parallel", 2, 1),
    ],
)
def test_the_papers_networks_too(network, strategy, devices, parts):
    by_hand = {"balance": "blocks"} if strategy in ("gpipe", "model-parallel") else {}
    cell = cell_of(strategy, devices, network=network, **by_hand)
    expected, _losses = reference(cell, parts, STEPS)
    (ranks,) = train([cell], RUNS)
    for rank in ranks:
        # Deep networks with batch norm amplify the last bit.
        assert_same_weights(rank["state"], expected, rtol=1e-4, atol=1e-5)
