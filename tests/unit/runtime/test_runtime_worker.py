"""The entry of a rank: however it ends, it leaves a report."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from cases.rank_reports import rank_report

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.planning.planner import make_plan
from ddlbench.runtime import worker
from ddlbench.runtime.job import Job, report_file
from ddlbench.runtime.rank_report import cause_of, read_rank_report


def test_a_report_that_json_cannot_hold_is_a_failure_of_the_program(tmp_path, monkeypatch):
    plan = make_plan(Cell("mnist", "vgg11", "sequential", batch_size=8))
    job = Job(plan, "cpu", str(tmp_path), DataRequest("mnist"), None, "localhost", 0, tmp_path)
    path = job.save()
    monkeypatch.setenv("DDLBENCH_NODE", "0")
    monkeypatch.setenv("DDLBENCH_LOCAL_RANK", "0")
    silent = SimpleNamespace(enable=lambda: None, register=lambda *_args, **_options: None)
    monkeypatch.setattr(worker, "faulthandler", silent)
    rank = SimpleNamespace(run=lambda: rank_report(loss=(float("nan"),)))
    monkeypatch.setattr(worker, "_Rank", lambda _job, _process: rank)

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        worker.main(str(path))
    report = read_rank_report(report_file(tmp_path, 0))
    assert report.status == "failed"
    assert report.reason.startswith("ValueError: ")
    assert cause_of([report]) == "program"
