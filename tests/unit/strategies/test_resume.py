"""Every strategy goes on from its checkpoint, in new processes, bit for bit.

::

    plain    warm-up | 1 2 3 4 5 6                                no checkpoint
    first    warm-up | 1 2 3 | save | 4 5 6 | save
    second   other weights, rehearsal | load | 4 5 6 | save       new processes

``second`` ends as ``first`` does: weights, statistics, momentum, random numbers, losses. Where
updates are synchronous ``plain`` does too: a checkpoint changes nothing. PipeDream's checkpoints
drain its pipeline, so it is compared with a run that drained at the same step.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from resume_world import EVERY, STEPS, WARMUP, assert_same, cell_of, end_of, saved, train

from ddlbench.experiment.registry import STRATEGIES
from ddlbench.planning.plan import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.torchgpipe.executor import GPipeExecutor

TWO_STAGES, FOUR_STAGES = {"balance": "5+4"}, {"balance": "3+2+2+2"}
OPTIONS = {
    "gpipe": TWO_STAGES,
    "model-parallel": TWO_STAGES,
    "model-parallel-p2p": TWO_STAGES,
    "pipedream": TWO_STAGES,
    "pipe-gpipe": TWO_STAGES,
    "pipe-1f1b": TWO_STAGES,
    "pipe-interleaved": FOUR_STAGES,
    "pipe-zb": FOUR_STAGES,
    "pipe-zbv": FOUR_STAGES,
    # Random numbers are drawn for whole images.
    "spatial": {"until": "drop"},
    "data-spatial": {"until": "drop"},
}
# Not in one process after another cell: Horovod joins once.
ALONE = ("horovod",)

# A strategy that is new in the registry is tested on two devices with its default options.
ALL = [
    cell_of(name, 1 if name == "sequential" else 2, **OPTIONS.get(name, {})) for name in STRATEGIES
]
TOGETHER = [cell for cell in ALL if cell.strategy not in ALONE]
WORLDS = {
    "1 rank": [cell for cell in TOGETHER if make_plan(cell).world_size == 1],
    "2 ranks": [cell for cell in TOGETHER if make_plan(cell).world_size == 2],
    "3 ranks": [
        # Several buckets, and sums of three: their order decides the last bit.
        cell_of("ddp", 3, bucket_cap_bytes=256),
        # Three mini-batches on two replicas: the last update of a segment has one.
        cell_of("pipedream", 3, balance="5+4", replicas="2+1"),
        cell_of("pipedream", 3, balance="5+4", replicas="2+1", stage_all_reduce="async"),
        cell_of("pipedream", 3, balance="3+3+3", vertical_sync=True),
    ],
    "horovod": [cell for cell in ALL if cell.strategy == "horovod"],
}
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not built here"
)


def test_every_strategy_is_here():
    tested = {cell.strategy for cells in WORLDS.values() for cell in cells}
    assert tested == set(STRATEGIES)


@pytest.mark.parametrize(
    "world",
    [pytest.param(name, marks=needs_horovod if name == "horovod" else ()) for name in WORLDS],
)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(world, tmp_path):
    cells = WORLDS[world]
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
    plain, first, second = (train(cells, tmp_path, run) for run in ("plain", "first", "second"))
    for number, cell in enumerate(cells):
        ranks = make_plan(cell).world_size
        ends = {run: end_of(tmp_path, number, run, ranks) for run in ("plain", "first", "second")}
        for rank in range(ranks):
            place = f"{cell.id}, rank {rank}"
            assert_same(ends["second"][rank], ends["first"][rank], place)
            # What the loop saved behind the last step is what the executor has.
            at_end = saved(tmp_path, number, "second", rank)
            assert_same(at_end["executor"], ends["second"][rank]["executor"], place)
            mine, resumed = first[number][rank], second[number][rank]
            assert resumed == mine, place
            assert resumed["saves"] == STEPS // EVERY
            assert resumed["steps"] == STEPS, place
            if strategy_of(cell.strategy).is_synchronous(cell):
                assert_same(ends["first"][rank], ends["plain"][rank], f"plain {place}")
                assert mine["loss"] == plain[number][rank]["loss"], place
        losses = [rank["loss"] for rank in second[number] if rank["loss"]]
        assert losses and all(len(loss) == WARMUP + STEPS for loss in losses), cell.id


def test_torchgpipe_keeps_the_balance_that_was_measured_before(monkeypatch):
    """Layers timed anew could be dealt otherwise: the parts of a cell would be different ones."""
    from resume_world import tiny

    from ddlbench.strategies import gpipe
    from ddlbench.strategies.executor import Context

    cell = cell_of("gpipe", 2, balance="time")
    plan = make_plan(cell)
    devices = (torch.device("cpu"), torch.device("cpu"))
    monkeypatch.setattr(gpipe, "balance_by_time", lambda *_args, **_named: [1, 8])

    def balance(**fixed):
        executor = GPipeExecutor()
        executor.prepare(plan, plan.processes[0], tiny(), None, Context(devices, fixed=fixed))
        return executor.details()["blocks_per_device"]

    assert balance() == [1, 8]
    assert balance(blocks_per_device=[6, 3]) == [6, 3]
