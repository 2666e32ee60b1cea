"""`ddlbench status`: what state every cell is in, and why."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time

import psutil
import pytest
import report_factory

from ddlbench.common.document import write_json
from ddlbench.common.owner import Owner, Writer
from ddlbench.experiment.paths import QUEUED_FILE, RESULTS, cell_dir
from ddlbench.report import cell_states
from ddlbench.report.cell_states import states, status_lines
from ddlbench.slurm.jobs import NO_ANSWER, JobState


def test_every_state_is_told_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = report_factory.matrix(networks=["vgg11"], datasets=["mnist"])
    done, starved, crashed, held, waiting = [row.cell for row in rows]
    report_factory.write(RESULTS, done)
    report_factory.write(
        RESULTS, starved, report_factory.failed(starved, "out_of_memory", "no room for 8 GB")
    )
    for cell in (crashed, held):
        cell_dir("local", cell.id).mkdir(parents=True)
    (cell_dir("local", crashed.id) / "failure.json").write_text(
        json.dumps({"reason": "rank 1: a bug", "reason_code": "exception"})
    )
    (cell_dir("local", held.id) / "lease.json").write_text(
        json.dumps({"job_id": "17", "host": "n1", "pid": 5, "started": 0, "run_began": 0})
    )
    actual = states("demo", "local", rows)
    assert [(state.state, state.reason) for state in actual] == [
        ("ok", None),
        ("out_of_memory", "no room for 8 GB"),
        ("failed", "rank 1: a bug"),
        ("running", "SLURM job 17 on n1"),
        ("not run", "there is no result.json"),
    ]
    assert [state.reason_code for state in actual] == [
        None, "out_of_memory", "exception", None, "no_result",
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    lines = status_lines(actual)
    assert lines[0] == "1 ok, 1 out_of_memory, 1 failed, 1 running, 1 not run"
    text = "\n".join(lines)
    assert (
        f"failed         mnist vgg11 {crashed.strategy} {crashed.geometry}: rank 1: a bug" in text
    )
    assert f"{waiting.strategy} {waiting.geometry}" not in text
    assert "no result.json" in "\n".join(status_lines(actual, every_cell=True))
    assert status_lines(actual[:1]) == ["1 ok"]


def held_by(cell, pid, started_s, host=None):
    folder = cell_dir("local", cell.id)
    folder.mkdir(parents=True)
    owner = {"job_id": None, "host": host or socket.gethostname(), "pid": pid}
    (folder / "lease.json").write_text(json.dumps({**owner, "started": started_s, "run_began": 0}))
    return folder


def test_a_result_without_a_reason_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (row, *_) = report_factory.matrix(networks=["vgg11"], datasets=["mnist"])
    values = report_factory.failed(row.cell, "unsupported", "")
    report_factory.write(RESULTS, row.cell, {**values, "reason": None})
    assert status_lines(states("demo", "local", [row]))[-1].endswith(": no reason is given")


def test_a_running_cell_says_since_when_and_at_which_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    rows = report_factory.matrix(networks=["vgg11"], datasets=["mnist"])
    base, ended, held = [row.cell for row in rows][:3]
    for cell, at_s in ((base, 100), (ended, 200)):
        report_factory.write(RESULTS, cell)
        os.utime(cell_dir("local", cell.id) / "result.json", (at_s, at_s))
    run = held_by(held, os.getpid(), psutil.Process().create_time()) / ".run-7"
    run.mkdir()
    (run / "progress.json").write_text(json.dumps({"step": 7, "total": 22}))
    actual = states("demo", "local", rows)
    assert [entry.state for entry in actual[:4]] == ["ok", "ok", "running", "not run"]
    lines = status_lines(actual)
    started = f"process {os.getpid()} on {socket.gethostname()}, since "
    assert lines[1].startswith(f"  running  mnist vgg11 {held.strategy} {held.geometry}  {started}")
    assert lines[1].endswith(", step 7/22")
    assert lines[2].startswith(f"  last ok  mnist vgg11 {ended.strategy} {ended.geometry}  ")
    assert lines[2].endswith(" ms a step, 1.38x")
    monkeypatch.setenv("COLUMNS", "80")
    for cell in report_factory.matrix(networks=["mobilenetv2"], datasets=["cifar10"])[2:3]:
        long = held_by(cell.cell, 7, time.time() - 3600, "a-node-of-a-long-name-of-a-cluster")
        long.joinpath(".run-1").mkdir()
        (line,) = status_lines(states("demo", "local", [cell]))[1:]
        assert len(line) <= 80
        assert line.endswith("  since 60 min")


def lease_of(cell, owner):
    folder = cell_dir("local", cell.id)
    folder.mkdir(parents=True)
    (folder / "lease.json").write_text(json.dumps(dataclasses.asdict(owner)))
    return folder


def test_a_dead_run_is_interrupted(tmp_path, monkeypatch):
    """hardening B1: after kill -9 of its supervisor a cell was called running for ever."""
    monkeypatch.chdir(tmp_path)
    rows = report_factory.matrix(networks=["vgg11"], datasets=["mnist"])
    me = Owner.here()
    dead, reused, other, silent, foreign = [row.cell for row in rows]
    lease_of(dead, dataclasses.replace(me, pid=2**22 + 1))
    lease_of(reused, dataclasses.replace(me, start_ticks=me.start_ticks + 1))
    lease_of(other, dataclasses.replace(me, host="n7", boot_id="its-own"))
    for cell, job_id in ((silent, None), (foreign, "17")):
        elsewhere = dataclasses.replace(me, host="n7", boot_id="its-own", job_id=job_id)
        os.utime(lease_of(cell, elsewhere) / "lease.json", (1, 1))
    actual = states("demo", "local", rows)
    gone, running = "interrupted", "running"
    assert [entry.state for entry in actual] == [gone, gone, running, gone, gone]
    assert {entry.reason_code for entry in actual} == {None, "supervisor_lost"}
    assert "SLURM job 17 on n7 is gone" in actual[-1].reason
    lines = status_lines(actual)
    assert lines[0] == "4 interrupted, 1 running"
    assert "the next run measures it again" in "\n".join(lines)


def test_a_failure_tells_more_than_a_lease_that_was_left_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (row, *_) = report_factory.matrix(networks=["vgg11"], datasets=["mnist"])
    folder = lease_of(row.cell, dataclasses.replace(Owner.here(), pid=2**22 + 1))
    (folder / "failure.json").write_text(json.dumps({"reason": "a bug", "reason_code": "x"}))
    (actual,) = states("demo", "local", [row])
    assert (actual.state, actual.reason) == ("failed", "a bug")
    (folder / "lease.json").write_text(json.dumps({"job_id": 1, "pid": "x"}))
    (actual,) = states("demo", "local", [row])
    assert actual.state == "failed"


def test_a_cell_whose_job_waits_is_queued(tmp_path, monkeypatch):
    """SLURM decides; the note in the cell's folder only names the job."""
    monkeypatch.chdir(tmp_path)
    rows = report_factory.matrix(networks=["vgg11"], datasets=["mnist"])
    jobs = {
        "1": JobState("PENDING", "Priority"),
        "2": JobState("PENDING", "PartitionTimeLimit"),
        "3": JobState("RUNNING", "", "n[1-2]"),
        "4": JobState("CANCELLED"),
        "5": JobState(NO_ANSWER),
    }
    for job_id, row in zip(jobs, rows, strict=True):
        note = {"writer": Writer("run", job_id).to_dict()}
        write_json(cell_dir("local", row.cell.id) / QUEUED_FILE, note)
    monkeypatch.setattr(cell_states, "states_of_jobs", lambda ids: {job: jobs[job] for job in ids})
    cells = states("demo", "local", rows)
    assert [cell.state for cell in cells] == ["queued", "queued", "running", "not run", "not run"]
    assert [cell.reason_code for cell in cells[:3]] == [None, "never_starts", None]
    assert cells[0].reason == "SLURM job 1: Priority: jobs before it start first"
    assert "PartitionTimeLimit" in cells[1].reason
    assert cells[2].reason == "SLURM job 3 on n[1-2]"


@pytest.mark.parametrize("note", ["{", "{}", '{"writer": {"run": "a", "job_id": null}}'])
def test_a_note_that_names_no_job_is_none(note, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (row, *_) = report_factory.matrix(networks=["vgg11"], datasets=["mnist"])
    folder = cell_dir("local", row.cell.id)
    folder.mkdir(parents=True)
    (folder / QUEUED_FILE).write_text(note)
    (cell,) = states("demo", "local", [row])
    assert cell.state == "not run"
