"""The screen of a run: what each event comes to, at 80 columns."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_factory import SITE_NAME, failed, matrix, result, write

from ddlbench.experiment.paths import result_file
from ddlbench.report import run_screen
from ddlbench.report.run_screen import RunScreen
from ddlbench.workflow.run import _say, _tell_screen_of_sigterm
from snakemake_logger_plugin_ddlbench import LogHandler


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = matrix(
        monkeypatch, datasets=["cifar10"], networks=["vgg11"], strategies=["sequential", "ddp"]
    )
    run_screen.follow("demo", SITE_NAME, rows)
    return rows


def job(jobid, rows, number, rule="cell"):
    cell = rows[number].cell.id
    output = [str(result_file(SITE_NAME, cell))]
    return {"jobid": jobid, "rule_name": rule, "wildcards": {"cell": cell}, "output": output}


def screen(**stats):
    screen = RunScreen(80)
    return screen, screen.planned(stats, "")


def words(line):
    return " ".join(line.split())


def test_one_line_a_cell_with_speed_up_and_time_left(rows):
    run, first = screen(cell=2, stage=2, tables=1, figure=3)
    assert first[0] == "demo on local: 2 cells, 4 tables and figures"
    for jobid in (0, 1):
        cell = rows[jobid].cell
        write(Path("results"), cell, result(cell, epoch_s=6.0 - jobid * 2))
    assert run.started(job(7, rows, 0), 100.0) == []
    (base,) = run.finished(7, 110.0)
    assert run.started(job(8, rows, 1), 110.0) == []
    (line,) = run.finished(8, 130.0)
    assert words(base) == "[1/2] cifar10 vgg11 sequential 1x1 100 base 10 s 10 s"
    assert words(line) == "[2/2] cifar10 vgg11 ddp 1x2 150 1.50 20 s 0 s"
    assert {len(x) for x in (first[1], base, line)} == {80}


def test_a_cell_that_does_not_train_as_one_device_has_no_ratio(rows):
    run, _ = screen(cell=2)
    part = {
        "initial_digest": None,
        "first_loss": [2.3, 2.28],
        "replayed_loss": [],
        "samples_per_pass": 8,
        "batch_norm": False,
        "random": False,
        "settings": {},
    }
    for row, second in zip(rows, (2.28, 2.31), strict=True):
        training = {**part, "first_loss": [2.3, second]}
        write(Path("results"), row.cell, {**result(row.cell, epoch_s=6.0), "training": training})
    run.started(job(7, rows, 0), 100.0)
    (base,) = run.finished(7, 110.0)
    assert "base" in base
    run.started(job(8, rows, 1), 110.0)
    line, why = run.finished(8, 130.0)
    assert "no ratio" in line
    assert why.strip().startswith("does not train as one device does: loss 2.31 at step 2")


def test_a_diverged_cell_says_so_beside_its_speed_up(rows):
    run, _ = screen(cell=2)
    note = "training diverged: the loss is no number from step 3 of 8 on"
    write(Path("results"), rows[0].cell, result(rows[0].cell, notes=[note]))
    run.started(job(7, rows, 0), 100.0)
    line, why = run.finished(7, 110.0)
    assert " base " in line
    assert why.strip() == note


def test_datasets_alone_are_counted(rows):
    assert screen(dataset=2, datasets=1)[1] == ["demo on local: 2 datasets"]


def test_links_are_left_for_as_long_as_is_planned(rows):
    run_screen.follow("demo", SITE_NAME, rows, links_s=[150.0])
    run, _ = screen(cell=2, links_of_fabric=1)
    write(Path("results"), rows[0].cell, result(rows[0].cell, epoch_s=6.0))
    run.started(job(7, rows, 0), 100.0)
    (base,) = run.finished(7, 110.0)
    assert words(base).endswith("10 s 2.7 min")  # 10 s of a cell, and 150 s
    run.started({**job(8, rows, 0, "links_of_fabric"), "wildcards": {"fabric": "slow"}}, 110.0)
    (line,) = run.finished(8, 250.0)
    assert words(line) == "links slow 2.3 min 10 s"


def test_a_cell_that_ran_out_of_memory_says_so_and_why(rows):
    run, _ = screen(cell=2)
    cell = rows[1].cell
    write(Path("results"), cell, failed(cell, "out_of_memory", "rank 1 needs 90 GB"))
    run.started(job(7, rows, 1), 0.0)
    line, reason = run.finished(7, 5.0)
    assert "out_of_memory" in line and len(line) == 80
    assert reason == "    rank 1 needs 90 GB"


@pytest.fixture
def group(rows):
    """A screen with a group of two jobs, data and cell; and the group's errors."""
    run, _ = screen(cell=2, stage=2)
    run.started(job(3, rows, 1, "stage"), 0.0)
    run.started(job(4, rows, 1), 0.0)
    errors = [{"jobid": 4, "log": ["supervisor.log"]}, {"jobid": 3, "log": ["stage.log"]}]
    return run, errors


def test_a_failed_group_is_one_line_with_its_reason_and_its_log(group, rows):
    run, errors = group
    reason = "job 12 ended as NODE_FAIL"
    lines = [f"failed: cifar10 vgg11 ddp 1x2: {reason}", "    log: slurm/12.log"]
    assert run.failed(errors, reason, "slurm/12.log") == lines
    assert run.failed(errors[:1]) == []  # the same failure, of each of its jobs
    run.started(job(4, rows, 1), 9.0)
    again = ["failed: cifar10 vgg11 ddp 1x2: for the same reason"]
    assert run.failed(errors, reason, "slurm/15.log") == again


def test_one_reason_of_many_cells_is_shown_once(group, rows):
    run, errors = group
    run.started(job(5, rows, 0), 0.0)
    assert len(run.failed(errors, "SLURM did not take the job")) == 1  # no log
    other = [{"jobid": 5, "log": []}]
    assert run.failed(other, "SLURM did not take the job") == [
        "failed: cifar10 vgg11 sequential 1x1: for the same reason"
    ]


def test_a_cell_that_runs_beside_this_screen_names_its_reason_itself(rows):
    run, _ = screen(cell=2)
    run.started(job(4, rows, 1), 0.0)
    assert run.failed([{"jobid": 4, "log": ["supervisor.log"]}]) == []
    run.started(job(9, rows, 1, "profile"), 0.0)
    (line, log) = run.failed([{"jobid": 9, "log": ["profile.log"]}])
    assert line.startswith("failed: profile ")
    assert log == "    log: profile.log"


def test_jobs_that_a_signal_cuts_off_have_not_failed(rows, monkeypatch):
    calls = []
    monkeypatch.setattr("signal.getsignal", lambda _: lambda *_: calls.append("scheduler"))
    handlers = {}
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    _tell_screen_of_sigterm()
    run, _ = screen(cell=2, figure=1)
    figure = {"jobid": 9, "rule_name": "figure", "wildcards": {"figure": "steps"}, "output": []}
    run.started(figure, 0.0)
    assert run_screen.ending().startswith("Not everything ran")
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert calls == ["scheduler"]
    assert run.failed([{"jobid": 9, "log": ["steps.log"]}]) == []
    assert run.waits() == ["stopped by SIGTERM: jobs that run end first, no other is started"]
    assert run.waits() == []
    assert run_screen.ending() == "Stopped by SIGTERM; the same command goes on from here."
    run.started(job(4, rows, 1), 0.0)
    assert run.failed([{"jobid": 4, "log": []}], "job 12 ended as NODE_FAIL")  # of itself


def test_a_line_and_its_end_are_one_write(rows, monkeypatch):
    """Two threads write, and one must not come between a line of the other and its end."""
    writes = []
    stream = SimpleNamespace(write=lambda text: text and writes.append(text), flush=lambda: None)
    monkeypatch.setattr("sys.stderr", stream)
    _say("drawing")
    handler = LogHandler.__new__(LogHandler)
    monkeypatch.setattr(LogHandler, "_lines", lambda *_: ["a row"])
    handler.common_settings = SimpleNamespace(stdout=False)
    handler.emit(logging.makeLogRecord({}))
    assert writes == ["drawing\n", "a row\n"]


def test_a_long_reason_is_cut(group):
    run, errors = group
    (line,) = run.failed(errors, "x" * 1000)
    assert len(line) < 400


def test_a_dry_run_lists_what_would_be_measured(rows):
    run = RunScreen(80, dry_run=True)
    assert run.planned({"cell": 2}, "Job stats:") == ["Job stats:"]
    assert run.started(job(7, rows, 1), 0.0) == ["would measure  cifar10 vgg11 ddp 1x2"]
    assert run.started(job(8, rows, 1, "stage"), 0.0) == []


def test_names_are_whole_at_80_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    strategies = ["sequential", "model-parallel-p2p"]
    many = {"strategies": strategies, "repeats": 2}
    matrix_rows = matrix(monkeypatch, datasets=["cifar10"], networks=["mobilenetv2"], **many)
    run_screen.follow("demo", SITE_NAME, matrix_rows)
    run, first = screen(cell=100)
    assert words(first[1]).startswith("cell of cifar10 mobilenetv2 samples/s")
    run.started(job(7, matrix_rows, 3), 0.0)
    line = run.finished(7, 5.0)[0]
    assert len(line) == 80 and words(line).startswith("[ 1/100] model-parallel-p2p 1x2 rep1 ")
    wide = RunScreen(160)
    heading = wide.planned({"cell": 100}, "")[1]
    assert words(heading).startswith("cell samples/s")
    assert len(heading) < 100  # numbers stand beside the names
