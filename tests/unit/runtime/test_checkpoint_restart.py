"""Where an attempt begins, what the one before lost, and what the result says of it."""

from __future__ import annotations

import dataclasses

import pytest
from cases.rank_reports import rank_failure, rank_report
from test_checkpoint_sets import write_set

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.paths import checkpoint_dir
from ddlbench.experiment.result import Attempt
from ddlbench.experiment.site import load_site
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.checkpoint.store import (
    ProgressJournal,
    forget_checkpoints,
    journal_file,
    restart_of,
)
from ddlbench.runtime.rank_report import CheckpointCost
from ddlbench.runtime.result import checkpoint_notes, checkpointing, drain_notes, timing_of

CELL = Cell(
    "mnist", "vgg11", "ddp", batch_size=8, devices_per_node=2, epochs=2, checkpoint_every_steps=10
)


@pytest.fixture
def site():
    return load_site("local")


def begin(cell, site, folder, run="2", digest="data"):
    return restart_of(make_plan(cell, site.name), site, folder, digest, run)


def leave_trail(folder, kept, reached):
    trail = ProgressJournal(journal_file(folder), kept)
    trail.reach(reached)


def test_a_cell_without_checkpoints_has_no_folder(site, tmp_path):
    restart = begin(CELL.with_(checkpoint_every_steps=0), site, tmp_path)
    assert (restart.order, restart.earlier) == (None, [])
    assert not list(tmp_path.iterdir())


def test_the_first_attempt_begins_at_the_start(site, tmp_path):
    restart = begin(CELL, site, tmp_path)
    assert restart.order.resume is None
    assert restart.order.folder == str(tmp_path / ".checkpoint")
    assert restart.earlier == []


def test_the_next_goes_on_and_says_what_was_lost(site, tmp_path):
    first = begin(CELL, site, tmp_path, run="1").order
    folder = tmp_path / ".checkpoint"
    in_set = write_set(folder, 20, identity=first.identity)
    leave_trail(folder, 20, 27)
    second = begin(CELL, site, tmp_path)
    assert second.order.resume == in_set.name
    (lost,) = second.earlier
    assert (lost.reached_steps, lost.kept_steps, lost.lost_steps) == (27, 20, 7)
    assert lost.lost_s > 0
    assert lost.version == "ddlbench 1"
    # An attempt that ends before its first step leaves no trail, and lost nothing.
    third = begin(CELL, site, tmp_path, run="3")
    assert (third.order.resume, third.earlier) == (in_set.name, second.earlier)
    leave_trail(folder, 20, 20)
    fourth = begin(CELL, site, tmp_path, run="4")
    assert [(a.lost_steps, a.lost_s > 0) for a in fourth.earlier] == [(7, True), (0, False)]


def test_what_was_trained_before_the_first_checkpoint_is_lost(site, tmp_path):
    begin(CELL, site, tmp_path, run="1")
    leave_trail(tmp_path / ".checkpoint", 0, 9)
    again = begin(CELL, site, tmp_path)
    assert again.order.resume is None
    assert [(a.kept_steps, a.lost_steps) for a in again.earlier] == [(0, 9)]


@pytest.mark.parametrize(
    ("cell", "digest"),
    [
        (CELL.with_(seed=1), "data"),
        (CELL.with_(options=(("bucket_cap_bytes", 1),)), "data"),
        (CELL, "other data"),
    ],
)
def test_what_another_cell_left_is_deleted(cell, digest, site, tmp_path):
    first = begin(CELL, site, tmp_path, run="1").order
    folder = tmp_path / ".checkpoint"
    in_set = write_set(folder, 20, identity=first.identity)
    leave_trail(folder, 20, 27)
    other = begin(cell, site, tmp_path, digest=digest)
    assert (other.order.resume, other.earlier) == (None, [])
    assert not in_set.exists()


@pytest.mark.parametrize(("latency_s", "goes_on"), [(0.01, True), (0.02, False)])
def test_steps_over_links_of_another_condition_are_not_gone_on_from(
    latency_s, goes_on, site, tmp_path
):
    cell = CELL.with_(fabric="slow", nodes=2, devices_per_node=1)
    before, now = (
        dataclasses.replace(site, fabrics={"slow": LinkCondition(delay_s, None, loss=0.0)})
        for delay_s in (0.01, latency_s)
    )
    in_set = write_set(
        tmp_path / ".checkpoint", 20, identity=begin(cell, before, tmp_path, run="1").order.identity
    )
    assert (begin(cell, now, tmp_path).order.resume == in_set.name) == goes_on


def test_a_checkpoint_that_no_rank_can_use_is_deleted_and_noted(site, tmp_path, capsys):
    first = begin(CELL, site, tmp_path, run="1").order
    folder = tmp_path / ".checkpoint"
    in_set = write_set(folder, 20, identity=first.identity)
    leave_trail(folder, 20, 27)
    second = begin(CELL, site, tmp_path)
    assert not second.was_refused([rank_failure("a bug")])
    assert in_set.exists()
    report = rank_failure("it is noise", refused_checkpoint=True)
    assert second.was_refused([report])
    assert "it is noise; the cell is trained from the start" in capsys.readouterr().err
    third = begin(CELL, site, tmp_path, run="3")
    assert third.order.resume is None
    (lost,) = third.earlier
    assert (lost.kept_steps, lost.lost_steps) == (0, 27)
    assert lost.refused == "it is noise"
    assert not third.was_refused([report])  # there was nothing to refuse: no endless repetition


@pytest.mark.parametrize(
    ("status", "kept"), [("ok", False), ("out_of_memory", False), ("timeout", True)]
)
def test_checkpoints_go_with_the_result_but_not_when_time_was_short(status, kept, site, tmp_path):
    begin(CELL, site, tmp_path)
    forget_checkpoints(CELL, site, tmp_path, status)
    assert (tmp_path / ".checkpoint").exists() == kept


def test_the_site_says_where_they_lie(site, tmp_path, monkeypatch):
    monkeypatch.setenv("PROJECT", str(tmp_path / "shared"))
    elsewhere = dataclasses.replace(site, checkpoints="$PROJECT/checkpoints")
    order = begin(CELL, elsewhere, tmp_path / "cell").order
    assert order.folder == str(tmp_path / "shared" / "checkpoints" / "local" / CELL.id)
    assert order.folder == str(
        checkpoint_dir("$PROJECT/checkpoints", "local", CELL.id, tmp_path / "cell")
    )


def test_a_folder_that_cannot_be_written_is_named(site, tmp_path):
    (tmp_path / "file").write_text("no folder")
    broken = dataclasses.replace(site, checkpoints=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="site local: checkpoints cannot be written to .*file"):
        begin(CELL, broken, tmp_path / "cell")


def report(*cost):
    return rank_report(checkpoints=CheckpointCost(*cost))


EPOCHS = [rank_report(step_s=[1.5, 1.5, 2.5, 2.5], load_s=[0.0] * 4, dataset_samples=160)]
TIMING = timing_of(CELL.with_(batch_size=40, epochs=2), EPOCHS, "cpu")
ATTEMPT = Attempt(17, 10, lost_steps=7, lost_s=1.5, version="ddlbench 1")


def test_costs_are_the_slowest_ranks_and_stand_beside_the_throughput():
    reports = [report((0.5, 1.0), 100, 0.2, 3.0), report((0.75, 0.5), 50, 0.1, 4.0)]
    first = dataclasses.replace(ATTEMPT, reached_steps=4, kept_steps=0, lost_steps=4, lost_s=1.0)
    actual = checkpointing(CELL, reports, TIMING, [first, ATTEMPT])
    assert actual.save_s == (0.75, 1.0)
    assert actual.total_s == 1.75
    assert actual.bytes == 150
    assert actual.samples_per_s == pytest.approx(160 / 9.75)
    assert (actual.restore_s, actual.rehearsal_s) == (0.2, 4.0)
    assert (actual.resumed, actual.lost_steps, actual.lost_s) == (1, 11, 2.5)
    assert drain_notes(CELL, synchronous=True) == []
    assert checkpoint_notes(actual) == [
        "resumed 1 time from a checkpoint; 11 steps, trained twice, counted once"
    ]


def test_nothing_is_said_of_a_cell_without_checkpoints():
    off = CELL.with_(checkpoint_every_steps=0)
    assert checkpointing(off, [rank_report()], TIMING, []) is None
    assert checkpoint_notes(None) == drain_notes(off, synchronous=False) == []
    assert "under way is finished" in drain_notes(CELL, synchronous=False)[0]
