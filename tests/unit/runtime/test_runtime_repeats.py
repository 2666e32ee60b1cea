"""What an earlier job left in a cell's folder, and whether this job believes it."""

from __future__ import annotations

import pytest

from ddlbench.common.owner import RUN, Writer
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.experiment.status import Failure, Reason
from ddlbench.runtime import supervise
from ddlbench.runtime.supervise import CellFailed, run_cell

CELL = Cell("mnist", "vgg11", "ddp", batch_size=8, devices_per_node=2)


class Measured(Exception):  # noqa: N818 - no error
    """The cell was not refused."""


@pytest.fixture
def job(monkeypatch):
    """Become a job of a run; no cell is really measured in it."""

    def measure(*_arguments, **_options):
        raise Measured

    def become(run: str | None, job_id: str | None) -> None:
        for name, value in ((RUN, run), ("SLURM_JOB_ID", job_id)):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    monkeypatch.setattr(supervise._Run, "measure", measure)
    become(None, None)
    return become


def failed(folder, writer, cause="program"):
    Failure(CELL.id, cause, Reason("exception", "rank 1: a bug"), writer, ["x"]).write(folder)


def test_a_program_that_crashed_is_not_tried_again(job, tmp_path):
    failed(tmp_path, Writer("run-a", "12", 1))
    for attempt, job_id in ((2, "13"), (3, "14")):
        job("run-a", job_id)
        with pytest.raises(CellFailed, match="rank 1: a bug"):
            run_cell(CELL, load_site("local"), tmp_path, None, attempt)
        # The failure is this job's now, with all that the first job knew.
        failure = Failure.read(tmp_path)
        assert failure.writer == Writer("run-a", job_id, attempt)
        assert failure.reason == "rank 1: a bug (not tried again: it would crash again)"
        assert (failure.cause, failure.reason.code) == ("program", "exception")
        assert failure.log_tail == ["x"]


@pytest.mark.parametrize(
    ("writer", "cause"),
    [
        (Writer("run-b", "12", 1), "program"),  # of an earlier run: a bug may be mended since
        (Writer("run-b", "12", 3), "program"),
        (None, "program"),
        (Writer("run-a", "12", 1), "infrastructure"),
        (Writer("run-a", "12", 2), "program"),  # no earlier attempt
    ],
)
def test_what_another_run_or_the_infrastructure_broke_is_tried(writer, cause, job, tmp_path):
    failed(tmp_path, writer, cause)
    job("run-a", "13")
    with pytest.raises(Measured):
        run_cell(CELL, load_site("local"), tmp_path, None, 2)


def test_the_first_attempt_is_never_refused(job, tmp_path):
    failed(tmp_path, Writer("run-a", "12", 1))
    job("run-a", "13")
    with pytest.raises(Measured):
        run_cell(CELL, load_site("local"), tmp_path, None, 1)
