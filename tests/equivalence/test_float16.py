"""In float16 every rank leaves out the same updates as one device does, and trains alike."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from cases.small_cells import needs_horovod
from torch import nn
from torch.distributed import Store

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of, why_not_supported
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import executor_of
from ddlbench.strategies.training import with_precision

STEPS = 12


class Amplified(nn.Module):
    """Gradients grow by 2000: those of the first scaled losses overflow."""

    def forward(self, inputs):
        return inputs + 2000 * (inputs - inputs.detach())


def network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = {
        "flatten": nn.Flatten(),
        "first": nn.Linear(784, 16),
        "tanh": nn.Tanh(),
        "middle": nn.Linear(16, 16),
        "amplified": Amplified(),
        "last": nn.Linear(16, 10),
    }
    return nn.Sequential(OrderedDict(blocks))


def cell_of(strategy: str, devices: int = 2, **options: Any) -> Cell:
    return Cell(
        "mnist",
        "mlp",
        strategy,
        batch_size=8,
        devices_per_node=devices,
        precision="fp16",
        learning_rate=1e-4,
        momentum=0.0,
        options=tuple(options.items()),
    )


def train_here(cell: Cell, rank: int, store: Store | None) -> dict[str, Any]:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store, torch.float32)
    reader = Reader(cell, process, torch.float32)
    executor.prepare(plan, process, with_precision(network(), "fp16", "cpu"), reader, context)
    losses, scales = [], []
    for number in range(STEPS):
        losses += executor.run(number, 1).loss
        scales.append(executor.scaler.get_scale())
    saved = executor.checkpoint_state()["scale"]
    state = {
        k: getattr(v, "full_tensor", v.clone)() for k, v in executor.module.state_dict().items()
    }
    barrier(store, "done", plan.world_size)
    executor.close()
    return {"loss": losses, "scales": scales, "state": list(state.values()), "saved": saved}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    (ranks,) = run_ranks(train_here, [cell_of("sequential", 1)], 1)
    return ranks[0]


def test_updates_whose_gradients_overflow_are_left_out(alone):
    assert alone["scales"][0] == 2**15  # halved at the first step
    kept = alone["scales"][-1]
    assert alone["scales"][-2] == kept  # and trained at the last ones
    assert alone["saved"]["scale"] == kept


@pytest.mark.parametrize(
    "cell",
    [
        cell_of("ddp"),
        cell_of("ddp", accumulate=2),
        cell_of("ddp", shard="optimizer"),
        cell_of("fsdp"),
        cell_of("fsdp", accumulate=2),
        cell_of("hsdp", group=1),
        # Weight gradients of a micro-batch are smaller, and overflow later.
        cell_of("gpipe", balance="3+3", chunks=1),
        pytest.param(cell_of("horovod"), marks=needs_horovod),
        pytest.param(cell_of("horovod", accumulate=2), marks=needs_horovod),
    ],
    ids=lambda cell: cell.id,
)
def test_ranks_train_as_one_device(alone, cell):
    world = len(make_plan(cell).processes)
    (ranks,) = run_ranks(train_here, [cell], world)
    for rank in ranks:
        assert rank["scales"] == alone["scales"]
        for value, expected in zip(rank["state"], alone["state"], strict=True):
            torch.testing.assert_close(value, expected, rtol=2e-3, atol=1e-4)
    mean = torch.tensor([rank["loss"] for rank in ranks]).mean(dim=0)
    torch.testing.assert_close(mean, torch.tensor(alone["loss"]), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("strategy", ["local-sgd", "pipe-1f1b", "pipedream", "tensor-parallel"])
def test_others_are_refused(strategy):
    cell = cell_of("ddp").with_(strategy=strategy)
    assert "scales no loss" in why_not_supported(cell, strategy_of(strategy))
