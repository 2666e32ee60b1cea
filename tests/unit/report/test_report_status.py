"""`ddlbench status`: what state every cell is in, and why."""

from __future__ import annotations

import json

import report_factory

from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.report.terminal import states, status_lines


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
        json.dumps({"job_id": "17", "host": "n1", "pid": 5, "started": 0, "submitted": 0})
    )
    found = states("demo", "local", rows)
    assert [(state.state, state.reason) for state in found] == [
        ("ok", ""),
        ("out_of_memory", "no room for 8 GB"),
        ("failed", "rank 1: a bug"),
        ("running", "SLURM job 17 on n1"),
        ("not run", "there is no result.json"),
    ]
    assert [state.code for state in found] == [
        "", "out_of_memory", "exception", "", "no_result",
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    lines = status_lines(found)
    assert lines[0] == "1 ok, 1 out_of_memory, 1 failed, 1 running, 1 not run"
    text = "\n".join(lines)
    assert (
        f"failed         mnist vgg11 {crashed.strategy} {crashed.geometry}: rank 1: a bug" in text
    )
    assert f"{waiting.strategy} {waiting.geometry}" not in text
    assert "no result.json" in "\n".join(status_lines(found, every_cell=True))
    assert status_lines(found[:1]) == ["1 ok"]
