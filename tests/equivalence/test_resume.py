"""Every strategy goes on from its checkpoint, in new processes, bit for bit."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.executor import Context
from ddlbench.strategies.torchgpipe import executor as torchgpipe_executor
from ddlbench.strategies.torchgpipe.executor import GPipeExecutor
from ddlbench.testing import assert_cells_resume
from ddlbench.testing.training import network_with_dropout

TWO_STAGES, FOUR_STAGES = {"balance": "5+5"}, {"balance": "3+2+2+3"}
OPTIONS = {
    "gpipe": TWO_STAGES,
    "model-parallel": TWO_STAGES,
    "model-parallel-p2p": TWO_STAGES,
    "pipedream": TWO_STAGES,
    "pipe-gpipe": TWO_STAGES,
    "pipe-1f1b": TWO_STAGES,
    "data-tensor-pipe": {"balance": "3+4", "group": 1},
    "pipe-interleaved": FOUR_STAGES,
    "pipe-zb": FOUR_STAGES,
    "pipe-zbv": FOUR_STAGES,
    # Random numbers are drawn for whole images.
    "spatial": {"until": "drop0"},
    "data-spatial": {"until": "drop0"},
}
NETWORKS = dict.fromkeys(
    ("tensor-parallel", "data-tensor", "data-tensor-pipe"),
    "small_networks:transformer_with_dropout",
)
# Not in one process after another cell: they join once.
ALONE = ("horovod", "deepspeed")


def cell_of(strategy: str, devices: int, **options: Any) -> Cell:
    return Cell(
        dataset="mnist",
        network=NETWORKS.get(strategy, "dropout"),
        strategy=strategy,
        batch_size=12,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


# A strategy that is new in the registry is tested on two devices with its default options.
ALL = [
    cell_of(name, 1 if name == "sequential" else 2, **OPTIONS.get(name, {}))
    for name in SHIPPED_STRATEGIES
]
TOGETHER = [cell for cell in ALL if cell.strategy not in ALONE]
WORLDS = {
    "1 rank": [cell for cell in TOGETHER if make_plan(cell).world_size == 1],
    "2 ranks": [cell for cell in TOGETHER if make_plan(cell).world_size == 2],
    "3 ranks": [
        # Several buckets, and sums of three: their order decides the last bit.
        cell_of("ddp", 3, bucket_cap_bytes=256),
        cell_of("ddp", 3, bucket_cap_bytes=256, shard="optimizer"),
        cell_of("ddp", 3, accumulate=2, bucket_view=True),
        cell_of("fsdp", 3, accumulate=2),
        cell_of("ddp", 3, hook="fp16"),
        cell_of("ddp", 3, shard="optimizer").with_(precision="fp16"),
        cell_of("fsdp", 3).with_(precision="fp16"),
        cell_of("ddp", 3, bucket_cap_bytes=256, hook="powersgd", shard="optimizer"),
        # The checkpoint lies within the second round.
        cell_of("local-sgd", 3, outer_optimizer="nesterov"),
        # Three mini-batches on two replicas: the last update of a segment has one.
        cell_of("pipedream", 3, balance="5+5", replicas="2+1"),
        cell_of("pipedream", 3, balance="5+5", replicas="2+1", stage_all_reduce="async"),
        cell_of("pipedream", 3, balance="3+3+4", vertical_sync=True),
    ],
    "AdamW": [
        cell.with_(optimizer="adamw", weight_decay=0.1)
        for cell in [
            *(cell for cell in TOGETHER if make_plan(cell).world_size == 2),
            cell_of("ddp", 2, shard="optimizer"),
            cell_of("local-sgd", 2, outer_optimizer="nesterov"),
        ]
    ],
    "4 ranks": [cell_of("data-tensor", 4, group=2)],
    # In processes of its own: torch keeps the groups of an equal device mesh of an earlier cell.
    "4 ranks in stages": [cell_of("data-tensor-pipe", 4, balance="3+4", group=2)],
    "horovod": [cell for cell in ALL if cell.strategy == "horovod"],
    "deepspeed": [cell for cell in ALL if cell.strategy == "deepspeed"],
}
NEEDS = {
    "horovod": pytest.mark.skipif(
        importlib.util.find_spec("horovod") is None, reason="Horovod is not built here"
    ),
    "deepspeed": pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
    ),
}


def test_every_strategy_is_here():
    tested = {cell.strategy for cells in WORLDS.values() for cell in cells}
    assert tested == set(SHIPPED_STRATEGIES)


@pytest.mark.parametrize(
    "world",
    [pytest.param(name, marks=NEEDS.get(name, ())) for name in WORLDS],
)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(world, tmp_path):
    cells = WORLDS[world]
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
    assert_cells_resume(cells, tmp_path)


def test_torchgpipe_keeps_the_balance_that_was_measured_before(monkeypatch):
    """Layers timed anew could be dealt otherwise: the parts of a cell would be different ones."""
    cell = cell_of("gpipe", 2, balance="time")
    plan = make_plan(cell)
    devices = (torch.device("cpu"), torch.device("cpu"))
    monkeypatch.setattr(torchgpipe_executor, "balance_by_time", lambda *_, **__: [1, 9])

    def balance(**fixed):
        executor = GPipeExecutor()
        executor.prepare(
            plan, plan.processes[0], network_with_dropout(), None, Context(devices, fixed=fixed)
        )
        return executor.details()["blocks_per_device"]

    assert balance() == [1, 9]
    assert balance(blocks_per_device=[6, 4]) == [6, 4]
