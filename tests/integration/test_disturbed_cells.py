"""A real cell that is stopped for a while in its measured steps: it is told from a slow one."""

from __future__ import annotations

import os
import signal
import time

import pytest
from faulty_cell import CELL, FaultyCell
from local_cells import local_site, run_one
from report_factory import collect

from ddlbench.experiment.registry import BASE
from ddlbench.planning.matrix import MatrixRow

STOPPED_S = 2.5
ALONE = CELL.with_(strategy=BASE, devices_per_node=1)


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    cell = FaultyCell(tmp_path, tmp_path / "results" / "local")
    monkeypatch.setenv("ODD_HANGING", str(cell.notes))
    monkeypatch.setenv("ODD_HURRY", str(cell.notes / "hurry"))
    yield cell
    cell.end()


def finished(faulty, run):
    """The timing of the cell, which may train on now."""
    (faulty.notes / "hurry").touch()
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    result = faulty.result()
    assert result["status"] == "ok"
    return result["timing"]


def tables_with_base(faulty, tmp_path):
    base, _ = run_one(ALONE, local_site(tmp_path, 1), faulty.results)
    assert base["timing"]["disturbed"] is None, base["timing"]
    rows = [MatrixRow(cell, ALONE.id, None) for cell in (ALONE, CELL)]
    return collect("demo", "local", rows, tmp_path / "results").set_index("strategy")


def test_a_rank_that_is_stopped_alone_marks_its_cell(faulty, tmp_path):
    run, ranks = faulty.start()
    ranks[1].suspend()
    time.sleep(STOPPED_S)
    ranks[1].resume()
    timing = finished(faulty, run)
    assert timing["pauses"]["count"] == 1
    assert timing["pauses"]["ranks"] == [1]
    assert timing["pauses"]["total_s"] >= 1.5
    assert timing["disturbed"].startswith("rank 1 stood still for ")
    assert timing["samples_per_s"] < timing["median_samples_per_s"]
    table = tables_with_base(faulty, tmp_path)
    assert table["speedup"].notna().to_dict() == {BASE: True, "ddp": False}
    assert table.loc["ddp", "disturbed"] == timing["disturbed"]
    assert table.loc["ddp", "no_speedup"] == "disturbed"
    assert "disturbed: rank 1 stood" in table.loc["ddp", "comparability"]


def test_a_job_that_is_stopped_with_its_guards_marks_its_cell(faulty):
    """As SLURM suspends a job: every process of every rank."""
    run, ranks = faulty.start()
    groups = [os.getpgid(rank.pid) for rank in ranks]
    assert len(set(groups)) == 2
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for group in groups:
            os.killpg(group, number)
        if number == signal.SIGSTOP:
            time.sleep(STOPPED_S)
    timing = finished(faulty, run)
    assert timing["pauses"]["ranks"] == [0, 1]
    assert timing["disturbed"].startswith("all 2 ranks stood still for ")


def test_a_rank_that_is_stopped_before_its_measured_steps_marks_nothing(faulty):
    """The pause is in the preparation, as a rank imports torch."""
    (faulty.notes / "hurry").touch()
    run = faulty.supervise()
    deadline = time.monotonic() + 60
    ranks = []
    while not ranks and time.monotonic() < deadline:
        ranks = faulty.ranks_of(run)
    ranks[0].suspend()
    time.sleep(STOPPED_S)
    ranks[0].resume()
    timing = finished(faulty, run)
    assert timing["pauses"] == {"count": 0, "total_s": 0.0, "ranks": []}
    assert timing["disturbed"] is None
