"""A cell runs once, whoever asks for it."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time

import pytest

from ddlbench.common.owner import Owner, owner_in
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.planning.planner import make_plan
from ddlbench.runtime import lease
from ddlbench.runtime.lease import claim, keep, release
from ddlbench.runtime.result import assemble
from ddlbench.slurm import jobs

CELL = Cell("mnist", "vgg11", "ddp", batch_size=8, devices_per_node=2)


def result(reason="made by a test"):
    plan = make_plan(CELL)
    return assemble(plan, load_site("local"), "timeout", reason, reports=[], staging=None)


def gone(job_id=None) -> Owner:
    """An owner whose process is no more."""
    child = multiprocessing.get_context("fork").Process(target=lambda: None)
    child.start()
    child.join()
    return dataclasses.replace(Owner.here(), pid=child.pid, started=0.0, job_id=job_id)


def test_a_free_cell_is_taken_and_given_back(tmp_path):
    me = Owner.here()
    assert claim(tmp_path, me).kind == "mine"
    assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()
    release(tmp_path, me)
    assert claim(tmp_path, me).kind == "mine"


def test_a_dead_owners_lease_is_taken_over(tmp_path):
    assert lease._take(tmp_path, gone())
    assert claim(tmp_path, Owner.here()).kind == "mine"


def _measure(folder, began, done):
    me = Owner.here()
    claim(folder, me)
    began.set()
    time.sleep(1.0)
    keep(folder, result("from the first job"))
    release(folder, me)
    done.set()


def test_the_second_waits_for_the_first_and_adopts_its_result(tmp_path):
    spawn = multiprocessing.get_context("fork")
    began, done = spawn.Event(), spawn.Event()
    first = spawn.Process(target=_measure, args=(tmp_path, began, done))
    first.start()
    began.wait()
    claimed = claim(tmp_path, Owner.here(), poll_s=0.05)
    assert done.is_set()
    assert claimed.kind == "adopted"
    assert claimed.result.reason == "from the first job"
    first.join()


def test_a_result_that_comes_just_before_the_lease_is_free_is_adopted(tmp_path, monkeypatch):
    take = lease._take

    def take_late(folder, me):
        keep(folder, result("just now"))
        return take(folder, me)

    monkeypatch.setattr(lease, "_take", take_late)
    claimed = claim(tmp_path, Owner.here())
    assert claimed.kind == "adopted"
    assert claimed.result.reason == "just now"
    assert not (tmp_path / "lease.json").exists()


def test_a_result_that_was_deleted_is_measured_anew_not_adopted(tmp_path):
    keep(tmp_path, result())
    later = dataclasses.replace(Owner.here(), run_began=time.time() + 1)
    assert claim(tmp_path, later).kind == "mine"


def test_a_deleted_result_whose_time_lies_ahead_is_not_adopted(tmp_path):
    keep(tmp_path, result())
    ahead = time.time() + 1e6
    os.utime(tmp_path / ".kept-result.json", (ahead, ahead))
    assert claim(tmp_path, Owner.here()).kind == "mine"


def test_a_kept_result_of_a_newer_version_is_the_cells_result_as_it_is(tmp_path):
    newer = '{"schema_version": 999, "what": "nobody here knows"}'
    (tmp_path / ".kept-result.json").write_text(newer)
    claimed = claim(tmp_path, dataclasses.replace(Owner.here(), run_began=0.0))
    assert (claimed.kind, claimed.result) == ("adopted", None)
    lease.copy_kept(tmp_path)
    assert (tmp_path / "result.json").read_text() == newer


def test_a_truncated_kept_result_is_not_adopted(tmp_path):
    (tmp_path / ".kept-result.json").write_text('{"schema_version": 1, "sta')
    assert claim(tmp_path, dataclasses.replace(Owner.here(), run_began=0.0)).kind == "mine"


@pytest.mark.parametrize(
    ("state", "kind", "status"),
    [
        ("TIMEOUT", "concluded", "timeout"),
        ("OUT_OF_MEMORY", "concluded", "out_of_memory"),
        ("NODE_FAIL", "mine", None),
        ("CANCELLED", "mine", None),
        ("FAILED", "mine", None),
        (None, "mine", None),
    ],
)
def test_how_the_job_before_ended_decides(state, kind, status, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "state", lambda _job_id: state)
    other = dataclasses.replace(gone("17"), host="another-node")
    assert lease._take(tmp_path, other)
    claimed = claim(tmp_path, Owner.here())
    assert (claimed.kind, claimed.status) == (kind, status)
    assert owner_in(tmp_path / "lease.json") == Owner.here()


@pytest.mark.parametrize("age_s", [1e6, -1e6])
def test_an_unreadable_lease_does_not_block_for_ever(age_s, tmp_path):
    (tmp_path / "lease.json").write_text("{")
    changed = time.time() - age_s
    os.utime(tmp_path / "lease.json", (changed, changed))
    assert claim(tmp_path, Owner.here()).kind == "mine"


def _race(folder, turns):
    me = Owner.here()
    for _ in range(20):
        if claim(folder, me, poll_s=0.001).kind == "mine":
            with turns.get_lock():
                turns.value += 1
                assert turns.value == 1
            time.sleep(0.001)
            with turns.get_lock():
                turns.value -= 1
            release(folder, me)


def test_only_one_holds_the_lease(tmp_path):
    spawn = multiprocessing.get_context("fork")
    turns = spawn.Value("i", 0)
    racers = [spawn.Process(target=_race, args=(tmp_path, turns)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(timeout=60)
        assert racer.exitcode == 0


@pytest.fixture
def elsewhere(tmp_path):
    """The lease of a job on another node lies there."""
    other = dataclasses.replace(gone("17"), host="another-node")
    assert lease._take(tmp_path, other)
    return other


@pytest.fixture
def pauses(monkeypatch):
    """How long the asker slept, without sleeping."""
    sleeps_s: list[float] = []
    monkeypatch.setattr(lease.time, "sleep", sleeps_s.append)
    return sleeps_s


def test_an_owner_of_whom_nobody_can_tell_is_waited_for(tmp_path, elsewhere, pauses, monkeypatch):
    states = iter([jobs.NO_ANSWER, jobs.NO_ANSWER, "RUNNING", "NODE_FAIL"])
    monkeypatch.setattr(jobs, "state", lambda _job_id: next(states))
    assert claim(tmp_path, Owner.here()).kind == "mine"
    assert len(pauses) == 3


def test_slurm_is_asked_less_and_less_often(tmp_path, elsewhere, pauses, monkeypatch):
    states = iter(["RUNNING"] * 7 + ["NODE_FAIL"])
    monkeypatch.setattr(jobs, "state", lambda _job_id: next(states))
    claim(tmp_path, Owner.here())
    assert pauses == [5, 10, 20, 40, 60, 60, 60]


def test_an_owner_of_the_same_site_and_host_is_looked_at_all_the_time(tmp_path, monkeypatch):
    me = Owner.here()
    other = dataclasses.replace(me, run_began=me.run_began - 1)  # alive, as it is this process
    assert lease._take(tmp_path, other)
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 5:
            release(tmp_path, other)

    monkeypatch.setattr(lease.time, "sleep", sleep)
    assert claim(tmp_path, me).kind == "mine"
    assert pauses == [5.0] * 5


def test_a_job_that_was_requeued_does_not_wait_for_itself(tmp_path, elsewhere, monkeypatch):
    monkeypatch.setattr(jobs, "state", lambda _job_id: "RUNNING")
    me = dataclasses.replace(Owner.here(), job_id="17")
    assert claim(tmp_path, me).kind == "mine"


def test_a_fresh_lease_that_came_in_between_is_put_back(tmp_path, elsewhere, monkeypatch):
    fresh = dataclasses.replace(Owner.here(), host="third-node")
    read = lease.owner_in

    def read_then_lose_the_race(path):
        owner = read(path)
        if owner == elsewhere:
            path.unlink()
            assert lease._take(tmp_path, fresh)
        return owner

    monkeypatch.setattr(lease, "owner_in", read_then_lose_the_race)
    assert not lease._put_aside(tmp_path, elsewhere, Owner.here())
    assert read(tmp_path / "lease.json") == fresh
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]


def test_what_changed_since_it_was_read_is_left(tmp_path, elsewhere):
    assert not lease._put_aside(tmp_path, gone("18"), Owner.here())
    assert lease.owner_in(tmp_path / "lease.json") == elsewhere
    assert lease._put_aside(tmp_path, elsewhere, Owner.here())
    assert list(tmp_path.iterdir()) == []


def test_nobody_releases_the_lease_of_another(tmp_path, elsewhere):
    release(tmp_path, Owner.here())
    assert lease.owner_in(tmp_path / "lease.json") == elsewhere
    release(tmp_path, elsewhere)
    assert not (tmp_path / "lease.json").exists()


def test_a_link_that_was_made_though_nfs_denies_it_is_a_lease(tmp_path, pauses, monkeypatch):
    real = os.link

    def link_twice(source, target):
        real(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(lease.os, "link", link_twice)
    assert claim(tmp_path, Owner.here()).kind == "mine"
    assert pauses == []
