"""A cell runs once, whoever asks for it."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time

import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.planning.plan import make_plan
from ddlbench.runtime import lease, slurm_job
from ddlbench.runtime.assemble import assemble
from ddlbench.runtime.lease import Owner, claim, keep, release

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
    release(tmp_path)
    assert claim(tmp_path, me).kind == "mine"


def test_a_dead_owners_lease_is_taken_over(tmp_path):
    assert lease._take(tmp_path, gone())
    assert claim(tmp_path, Owner.here()).kind == "mine"


def _measure(folder, began, done):
    claim(folder, Owner.here())
    began.set()
    time.sleep(1.0)
    keep(folder, result("from the first job"))
    release(folder)
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
    assert claimed.result["reason"] == "from the first job"
    first.join()


def test_a_result_that_was_deleted_is_measured_anew_not_adopted(tmp_path):
    keep(tmp_path, result())
    later = dataclasses.replace(Owner.here(), submitted=time.time() + 1)
    assert claim(tmp_path, later).kind == "mine"


def test_a_truncated_kept_result_is_not_adopted(tmp_path):
    (tmp_path / ".kept-result.json").write_text('{"schema_version": 1, "sta')
    assert claim(tmp_path, dataclasses.replace(Owner.here(), submitted=0.0)).kind == "mine"


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
    monkeypatch.setattr(slurm_job, "state", lambda _job_id: state)
    other = dataclasses.replace(gone("17"), host="another-node")
    assert lease._take(tmp_path, other)
    claimed = claim(tmp_path, Owner.here())
    assert (claimed.kind, claimed.status) == (kind, status)


def test_an_unreadable_lease_does_not_block_for_ever(tmp_path, monkeypatch):
    (tmp_path / "lease.json").write_text("{")
    monkeypatch.setattr(lease, "_UNREADABLE_S", -1.0)
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
            release(folder)


def test_only_one_holds_the_lease(tmp_path):
    spawn = multiprocessing.get_context("fork")
    turns = spawn.Value("i", 0)
    racers = [spawn.Process(target=_race, args=(tmp_path, turns)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(timeout=60)
        assert racer.exitcode == 0


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("RUNNING\n", "RUNNING"),
        ("CANCELLED by 1000\n", "CANCELLED"),
        ("OUT_OF_ME+\n", "OUT_OF_ME"),
        ("", None),
    ],
)
def test_states_are_read_without_their_trimmings(answer, state, monkeypatch):
    monkeypatch.setattr(slurm_job, "_ask", lambda _command: answer)
    assert slurm_job.state("1") == state
