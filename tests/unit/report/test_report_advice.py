"""What `report` advises: only what an interval shows, and nothing with old weights."""

from __future__ import annotations

import pytest
from report_factory import SITE_NAME, matrix, result, write

from ddlbench.report import make_tables
from ddlbench.report.terminal import advice_lines


@pytest.fixture
def advised(tmp_path, monkeypatch):
    def run(epochs_s, **changes):
        rows = matrix(
            monkeypatch,
            datasets=["mnist"],
            networks=["vgg11"],
            strategies=["sequential", *epochs_s],
        )
        for row in rows:
            seconds = epochs_s.get(row.cell.strategy, 8.0)
            own = changes if row.cell.strategy != "sequential" else {}
            write(tmp_path, row.cell, result(row.cell, epoch_s=seconds, **own))
        make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
        return " ".join(" ".join(advice_lines(tmp_path / "tables")).split())

    return run


def test_the_fastest_of_those_that_are_shown_to_be_faster(advised):
    text = advised({"ddp": 4.0, "horovod": 5.0})
    assert text.startswith("Train with DDP for VGG-11 on MNIST (2.00, ")
    assert "one device" not in text


def test_one_device_where_nothing_is_faster(advised):
    text = advised({"ddp": 9.0})
    assert text.startswith("Train with one device for 1 of 1, where no strategy is shown")


def test_old_weights_are_not_advised(advised):
    assert advised({"ddp": 4.0}, update_semantics="stale") == ""


def test_a_base_of_long_ago_is_told(advised, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "ddlbench.report.terminal.result_file",
        lambda _site, cell_id: next(tmp_path.glob(f"*/cells/{cell_id}/result.json")),
    )
    now = {**result(matrix()[0].cell)["provenance"], "slurm_job_id": None}
    text = advised({"ddp": 4.0, "horovod": 5.0}, provenance=now)
    assert "apart from their base" not in text
    later = {**now, "created": "2031-04-05T09:07:08+00:00"}
    text = advised({"ddp": 4.0, "horovod": 5.0}, provenance=later)
    told = (
        "2 of 2 speed-ups compare cells measured over 60 min apart from their base (at most 3.0 h)"
    )
    assert told in text
    assert "apart" not in advised({"ddp": 4.0}, provenance={**later, "slurm_job_id": "7"})


def test_what_cannot_gain_is_not_advised(advised):
    text = advised({"ddp": 5.0, "model-parallel": 2.0})
    assert text.startswith("Train with DDP for VGG-11")
    assert "Model parallel" not in text
