"""After several steps every parallel strategy has the weights of sequential training.

The reference consumes the same global batch shard by shard, so that batch norm sees what a rank
or a micro-batch sees; gradients are averaged; dropout is off.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from local_world import context_of, executor_of, train_all
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build, without_dropout
from ddlbench.planning.plan import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.rendezvous import barrier

STEPS = 4

needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not built here"
)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, inputs):
        return inputs + torch.relu(self.norm(self.conv(inputs)))


def tiny() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(1, 6, 3, stride=2, padding=1),
            block0=Residual(6),
            block1=Residual(6),
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
            head=nn.Linear(24, 10),
        )
    )


def network_of(cell: Cell) -> nn.Sequential:
    if cell.network == "tiny":
        torch.manual_seed(cell.seed)
        return tiny()
    # Deep networks with batch norm amplify the last bit of float32: compare them in float64.
    return without_dropout(build(cell.network, DATASETS[cell.dataset], cell.seed)).double()


def global_batch(cell: Cell, step: int):
    generator = torch.Generator().manual_seed(1000 + step)
    shape = DATASETS[cell.dataset].shape
    inputs = torch.randn(cell.batch_size, *shape, generator=generator)
    inputs = inputs if cell.network == "tiny" else inputs.double()
    labels = torch.randint(0, 10, (cell.batch_size,), generator=generator)
    return inputs, labels


class Shard:
    """The part of every global batch that one process consumes."""

    def __init__(self, cell, process):
        self.cell, self.process = cell, process

    def batches(self, first, count):
        for step in range(first, first + count):
            inputs, labels = global_batch(self.cell, step)
            part, parts = self.process.shard, self.process.num_shards
            yield SimpleNamespace(
                inputs=inputs.chunk(parts)[part], labels=labels.chunk(parts)[part]
            )


def train_here(cell: Cell, rank: int, store_file: Path) -> dict:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store_file)
    executor.prepare(plan, process, network_of(cell), Shard(cell, process), context)
    record = executor.run(0, STEPS)
    state = {name: value.clone() for name, value in executor.state_dict()["network"].items()}
    barrier(context.store, "done", plan.world_size)
    executor.close()
    return {"state": state, "loss": record.loss}


def train(cell: Cell, out: Path) -> list[dict]:
    """Every rank's weights and losses after STEPS steps, from real processes."""
    (ranks,) = train_all(train_here, [cell], make_plan(cell).world_size, out)
    return ranks


def reference(cell: Cell, parts: int) -> tuple[dict, list[float]]:
    """Sequential training that sees each global batch in ``parts`` equal parts."""
    network = network_of(cell)
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), cell.learning_rate, cell.momentum)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = global_batch(cell, step)
        total = 0.0
        for part_inputs, part_labels in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            loss = nn.functional.cross_entropy(network(part_inputs), part_labels) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return network.state_dict(), losses


def assert_same_weights(found: dict, expected: dict) -> None:
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    for name, value in expected.items():
        if not name.endswith(statistics):
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def cell_of(strategy: str, devices: int, network: str = "tiny", **options) -> Cell:
    return Cell(
        dataset="mnist",
        network=network,
        strategy=strategy,
        batch_size=16,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        (cell_of("sequential", 1), 1),
        (cell_of("ddp", 2), 2),
        (cell_of("ddp", 2, bucket_cap_bytes=1), 2),
        (cell_of("ddp", 4), 4),
        pytest.param(cell_of("horovod", 1), 1, marks=needs_horovod),
        pytest.param(cell_of("horovod", 2), 2, marks=needs_horovod),
        pytest.param(cell_of("horovod", 2, fusion_threshold_bytes=0), 2, marks=needs_horovod),
        pytest.param(cell_of("horovod", 4), 4, marks=needs_horovod),
        (cell_of("gpipe", 1), 4),
        (cell_of("gpipe", 2), 4),
        (cell_of("gpipe", 2, checkpoint="always", balance="2+4"), 4),
        (cell_of("gpipe", 3, checkpoint="never", chunks=8, balance="blocks"), 8),
        (cell_of("model-parallel", 2), 1),
        (cell_of("model-parallel", 4, balance="1+2+1+2"), 1),
    ],
    ids=lambda value: value.id if isinstance(value, Cell) else None,
)
def test_weights_equal_sequential_training(cell, parts, tmp_path):
    assert strategy_of(cell.strategy).supports(cell) is None
    expected, losses = reference(cell, parts)
    ranks = train(cell, tmp_path)
    for rank in ranks:
        assert_same_weights(rank["state"], expected)
    mean_losses = torch.tensor([rank["loss"] for rank in ranks]).mean(dim=0)
    torch.testing.assert_close(mean_losses, torch.tensor(losses), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("network", "strategy", "devices", "parts"),
    [
        ("vgg11", "ddp", 2, 2),
        pytest.param("vgg11", "horovod", 2, 2, marks=needs_horovod),
        pytest.param("mobilenetv2", "gpipe", 2, 4, marks=pytest.mark.exhaustive),
        ("vgg11", "model-parallel", 2, 1),
    ],
)
def test_the_papers_networks_too(network, strategy, devices, parts, tmp_path):
    by_hand = {"balance": "blocks"} if strategy in ("gpipe", "model-parallel") else {}
    cell = cell_of(strategy, devices, network=network, **by_hand)
    expected, _losses = reference(cell, parts)
    for rank in train(cell, tmp_path):
        assert_same_weights(rank["state"], expected)
