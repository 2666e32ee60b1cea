"""Whole cells that are killed: they go on from their checkpoint and end as if nothing had been."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from local_cells import local_site, running_ranks

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import read_result
from ddlbench.runtime import supervise
from ddlbench.runtime.checkpoint.rank import read_state
from ddlbench.runtime.checkpoint.store import journal_file, rank_file, read_journal
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell
from ddlbench.testing.training import assert_same_bits

EVERY, STEPS = 5, 6  # 48 images, 8 a step


@pytest.fixture
def site(tmp_path):
    return local_site(tmp_path)


def cell_of(strategy: str, **changes) -> Cell:
    return Cell(
        dataset="mnist",
        network="odd_networks:slow",
        strategy=strategy,
        batch_size=8,
        devices_per_node=2,
        epochs=10,  # whose last step has a checkpoint
        warmup_steps=2,
        data_scale=0.0008,
        checkpoint_every_steps=EVERY,
    ).with_(**changes)


class Killer(threading.Thread):
    """Kills one rank of this process's cell once so many measured steps are done."""

    def __init__(self, folder: Path, rank: int, at: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.rank, self.at = folder / ".checkpoint", rank, at
        self.stop = threading.Event()
        self.done = False

    def run(self) -> None:
        victim = None
        while not self.stop.is_set():
            if victim is None:  # long before its first checkpoint, as a busy machine is slow here
                victim = running_ranks().get(self.rank)
                time.sleep(0.02)
                continue
            reached = read_journal(journal_file(self.folder))
            if reached is not None and reached.steps >= self.at:
                os.kill(victim.pid, signal.SIGKILL)
                self.done = True
                return
            time.sleep(0.0005)


def kill_at(cell, site, folder, staging, *, rank, at) -> None:
    """Run the cell and kill a rank of it."""
    killer = Killer(folder, rank, at)
    killer.start()
    with pytest.raises(CellFailed, match="killed by signal 9"):
        run_cell(cell, site, folder, staging, attempt=2)
    killer.stop.set()
    killer.join()
    assert killer.done
    assert not (folder / "result.json").exists()
    assert json.loads((folder / "failure.json").read_text())["cause"] == "infrastructure"


def states(folder: Path, ranks: int, steps: int) -> list[dict]:
    """What every rank had behind the last step."""
    (last,) = (folder / ".checkpoint").glob(f"step-{steps:08d}-*")
    return [read_state(rank_file(last, rank)) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("cell", "kills"),
    [
        pytest.param(
            cell_of("ddp", epochs=30), 10, marks=pytest.mark.exhaustive, id="ddp, ten times"
        ),
        pytest.param(cell_of("ddp", validate=True), 2, id="ddp"),
        # Every strategy goes on bit for bit in test_resume.py.
        pytest.param(cell_of("fsdp"), 1, marks=pytest.mark.exhaustive, id="fsdp"),
        pytest.param(cell_of("local-sgd"), 1, marks=pytest.mark.exhaustive, id="local-sgd"),
        pytest.param(
            *(cell_of("tensor-parallel", network="odd_networks:slow_pair"), 1),
            marks=pytest.mark.exhaustive,
            id="tensor-parallel",
        ),
        pytest.param(
            *(cell_of("pipedream", options=(("balance", "3+3"),)), 2),
            marks=pytest.mark.exhaustive,
            id="pipedream",
        ),
    ],
)
def test_kill_9_at_random_steps_loses_no_more_than_the_interval(
    cell, kills, site, tmp_path, monkeypatch
):
    """Kills of a random rank at a random step; with PipeDream mini-batches are in flight."""
    monkeypatch.setattr(supervise, "forget_checkpoints", lambda *_: None)
    steps = cell.epochs * STEPS
    staging = stage_cell(cell, site, tmp_path)
    straight = run_cell(cell, site, tmp_path / "straight", staging).to_dict()

    folder = tmp_path / "killed"
    kept = 0
    for seed in range(kills):
        chance = random.Random(seed)
        at = kept + chance.randint(1, 12)
        kill_at(cell, site, folder, staging, rank=chance.randrange(2), at=at)
        # No complete set but the last two is ever left, and the newest is not older than an
        # interval.
        sets = sorted((folder / ".checkpoint").glob("step-*/manifest.json"))
        kept = int(sets[-1].parent.name.split("-")[1]) if sets else 0
        assert kept >= at - EVERY
        assert len(sets) <= 2
    result = run_cell(cell, site, folder, staging).to_dict()

    part = result["checkpointing"]
    assert len(part["attempts"]) == kills
    for attempt in part["attempts"]:
        assert 0 <= attempt["lost_steps"] <= EVERY
        assert attempt["reached_steps"] - attempt["kept_steps"] == attempt["lost_steps"]
        assert (attempt["lost_s"] > 0) == (attempt["lost_steps"] > 0)
    assert part["lost_steps"] == sum(attempt["lost_steps"] for attempt in part["attempts"])
    assert part["resumed"] == sum(attempt["kept_steps"] > 0 for attempt in part["attempts"])
    assert part["bytes"] > 0
    assert len(part["save_s"]) == steps // EVERY
    assert part["samples_per_s"] < result["timing"]["samples_per_s"]
    assert any("trained twice" in note for note in result["notes"])

    assert result["loss"] == straight["loss"]
    scores = [[{**e, "training_s": 0} for e in r["validation"]] for r in (result, straight)]
    assert scores[0] == scores[1]
    assert len(scores[0]) == (cell.epochs if cell.validate else 0)
    ends = (states(path, 2, steps) for path in (folder, tmp_path / "straight"))
    for actual, expected in zip(*ends, strict=True):
        assert_same_bits(actual["executor"], expected["executor"])
        assert_same_bits(actual["random"], expected["random"])
        losses = [state["so_far"]["measured"]["loss"] for state in (actual, expected)]
        assert losses[0] == losses[1]
    rows = [(f / "steps.csv").read_text().splitlines() for f in (folder, tmp_path / "straight")]
    assert len(rows[0]) == len(rows[1]) == 1 + 2 + steps
    assert [row.split(",")[:3] for row in rows[0]] == [row.split(",")[:3] for row in rows[1]]
    assert result["timing"]["step_s"]["count"] == steps


def test_a_checkpoint_that_cannot_be_used_is_given_up_for_a_fresh_start(site, tmp_path):
    cell = cell_of("sequential", devices_per_node=1, epochs=12)
    staging = stage_cell(cell, site, tmp_path)
    folder = tmp_path / "cell"
    kill_at(cell, site, folder, staging, rank=0, at=12)
    for path in (folder / ".checkpoint").glob("step-*/rank0.safetensors"):
        path.write_bytes(b"\x80" * path.stat().st_size)
    result = run_cell(cell, site, folder, staging, attempt=2).to_dict()
    assert read_result(folder / "result.json").to_dict() == result
    assert result["status"] == "ok"
    (attempt,) = result["checkpointing"]["attempts"]
    assert "is no checkpoint that can be read" in attempt["refused"]
    assert (result["checkpointing"]["resumed"], attempt["kept_steps"]) == (0, 0)
    assert attempt["lost_steps"] == attempt["reached_steps"] >= 12
    assert result["timing"]["step_s"]["count"] == 12 * STEPS
    assert not (folder / ".checkpoint").exists()  # the cell is done


def test_a_cell_that_was_not_interrupted_says_what_its_checkpoints_cost(site, tmp_path):
    cell = cell_of("sequential", devices_per_node=1, epochs=2, checkpoint_every_steps=4)
    shared = dataclasses.replace(site, checkpoints=str(tmp_path / "shared"))
    staging = stage_cell(cell, site, tmp_path)
    result = run_cell(cell, shared, tmp_path / "cell", staging).to_dict()
    part = result["checkpointing"]
    assert (part["resumed"], part["attempts"], part["restore_s"]) == (0, [], 0.0)
    assert len(part["save_s"]) == 3
    assert part["total_s"] == pytest.approx(sum(part["save_s"]))
    elapsed = sum(epoch["elapsed_s"] for epoch in result["timing"]["epochs"])
    assert part["samples_per_s"] == pytest.approx(2 * 48 / (elapsed + part["total_s"]))
    assert not list((tmp_path / "shared").rglob("*.safetensors"))
    assert not (tmp_path / "cell" / ".checkpoint").exists()
