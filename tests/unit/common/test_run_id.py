"""Which run and which job wrote a file; failure.json with its writer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ddlbench.common.document import UnreadableJson
from ddlbench.common.owner import RUN, Writer, begin_run, run_began_s
from ddlbench.experiment.status import Failure, Reason

FIRST = Writer("run-a", "12", 1)


@pytest.fixture(autouse=True)
def outside_of_a_workflow(monkeypatch):
    for name in (RUN, "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "")  # so that what a test sets is undone after it
        monkeypatch.delenv(name)


def test_a_run_is_named_by_the_clock_of_its_file_system(tmp_path):
    assert run_began_s() is None
    (tmp_path / "before").touch()
    begin_run(tmp_path / "results")
    (tmp_path / "after").touch()
    before_s, after_s = ((tmp_path / name).stat().st_mtime for name in ("before", "after"))
    rounding_s = 1e-6
    assert before_s - rounding_s <= run_began_s() <= after_s + rounding_s
    assert list((tmp_path / "results").iterdir()) == []


def test_each_start_is_another_run(tmp_path):
    begin_run(tmp_path)
    first = Writer.here()
    begin_run(tmp_path)
    assert Writer.here().run != first.run


@pytest.mark.parametrize("value", ["", "nonsense", "-5"])
def test_a_name_that_makes_no_sense_is_no_run(value, monkeypatch):
    monkeypatch.setenv(RUN, value)
    assert run_began_s() is None


def test_this_process_writes_for_its_job(monkeypatch):
    assert Writer.here() == Writer(None, None, 1)
    monkeypatch.setenv(RUN, "run-a")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert Writer.here(2) == Writer("run-a", "12", 2)
    assert str(Writer.here(2)) == "SLURM job 12, attempt 2"
    assert str(Writer(None, None)) == "local job, attempt 1"


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"writer": None}, {"writer": {"run": "a"}}, {"writer": {"who": 1}}],
)
def test_a_document_without_a_whole_writer_names_none(document):
    assert Writer.of(document) is None


def test_a_writer_is_read_as_it_was_written():
    assert Writer.of({"writer": FIRST.to_dict(), "more": 1}) == FIRST


@pytest.mark.parametrize(
    ("earlier", "after"),
    [
        (FIRST, True),
        (Writer("run-b", "12", 1), False),  # a bug may be mended since
        (Writer("run-a", "13", 2), False),
        (None, False),
    ],
)
def test_only_a_later_attempt_of_the_same_run_is_a_repeat(earlier, after):
    assert Writer("run-a", "13", 2).comes_after(earlier) == after


FAILURE = Failure(
    "mnist/vgg11", "program", Reason("exception", "rank 1: a bug"), FIRST, ["1", "2"], {"rtt_ms": 5}
)


def test_a_failure_is_read_as_it_was_written(tmp_path):
    FAILURE.write(tmp_path)
    assert Failure.read(tmp_path) == FAILURE
    assert Failure.read(tmp_path).reason.code == "exception"


def test_without_a_failure_there_is_none(tmp_path):
    assert Failure.read(tmp_path) is None


def test_a_later_failure_takes_the_place_of_an_earlier_one(tmp_path):
    FAILURE.write(tmp_path)
    later = dataclasses.replace(FAILURE, cause="infrastructure", writer=Writer("run-a", "13", 2))
    later.write(tmp_path)
    assert Failure.read(tmp_path) == later
    assert [path.name for path in tmp_path.iterdir()] == ["failure.json"]


@pytest.mark.parametrize("text", ["", "[1, 2", "[1, 2]", "3"])
def test_a_damaged_failure_says_nothing(text, tmp_path: Path):
    (tmp_path / "failure.json").write_text(text)
    with pytest.raises(UnreadableJson):
        Failure.read(tmp_path)


def test_what_a_failure_leaves_out_has_a_plain_value(tmp_path):
    (tmp_path / "failure.json").write_text(json.dumps({"reason": "x", "log_tail": 3, "link": 7}))
    failure = Failure.read(tmp_path)
    assert (failure.cause, failure.writer) == ("infrastructure", None)
    assert (failure.reason, failure.reason.code) == ("x", "failed")
    assert (failure.log_tail, failure.link) == ((), None)
