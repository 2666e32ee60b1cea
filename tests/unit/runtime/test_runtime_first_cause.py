"""The first cause of a failure is named, not our own clean-up; a full disk is one sentence."""

from __future__ import annotations

import dataclasses
import errno
import json
import signal

import pytest
from cases.rank_reports import rank_failure

from ddlbench.common.document import write_text
from ddlbench.common.owner import HEARTBEAT, Owner, Writer, owner_in
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import QUEUED_FILE
from ddlbench.experiment.site import load_site
from ddlbench.planning.planner import make_plan
from ddlbench.runtime import lease, supervise
from ddlbench.runtime.supervise import CellFailed, _judge, run_cell
from ddlbench.runtime.watchdog import Outcome
from ddlbench.workflow.run import logged

CELL = Cell("mnist", "vgg11", "ddp", batch_size=8, devices_per_node=2)


def test_a_lost_guard_goes_before_the_sigterm_that_we_sent() -> None:
    """hardening B5: guard of rank 0 killed; rank 1 was ended by us."""
    ended = rank_failure("killed by signal 15 (SIGTERM)", rank=1, signal=int(signal.SIGTERM))
    assert _judge(make_plan(CELL), [ended], Outcome(), None) == (
        "failed", "rank 0 ended without a report"
    )  # fmt: skip


def test_a_killed_rank_goes_before_what_it_broke() -> None:
    broken = rank_failure("RuntimeError: Connection closed by peer", rank=0)
    killed = rank_failure("killed by signal 9 (SIGKILL)", rank=1, signal=9)
    assert "signal 9" in str(_judge(make_plan(CELL), [broken, killed], Outcome(), None)[1])


def test_only_our_own_signals_are_still_told() -> None:
    ended = [rank_failure("killed by signal 15", rank=r, signal=15) for r in (0, 1)]
    assert "signal 15" in str(_judge(make_plan(CELL), ended, Outcome(), None)[1])


def test_a_lost_rank_goes_before_the_connections_that_it_broke() -> None:
    broken = rank_failure("Connection closed by peer", rank=1, reason_code="connection_lost")
    outcome = Outcome(guards_ended={0: -9, 1: 1})
    status, reason = _judge(make_plan(CELL), [broken], outcome, None)
    assert (status, reason.code) == ("failed", "rank_lost")
    assert reason == "rank 0 ended without a report: signal 9 (SIGKILL) ended its guard"


def test_what_a_rank_wrote_last_is_not_taken_for_the_cause_of_its_end() -> None:
    outcome = Outcome(guards_ended={0: 3})
    outcome.tail.append("[0] UserWarning: deprecated")
    reason = _judge(make_plan(CELL), [], outcome, None)[1]
    assert "exit code 3" in reason
    assert reason.endswith("wrote last: UserWarning: deprecated")


def test_an_error_of_its_own_goes_before_connections_and_lost_ranks() -> None:
    broken = rank_failure("Connection closed by peer", rank=0, reason_code="connection_lost")
    failure = rank_failure("ZeroDivisionError: a bug", rank=1)
    assert "a bug" in str(_judge(make_plan(CELL), [broken, failure], Outcome(), None)[1])
    assert "a bug" in str(_judge(make_plan(CELL), [failure], Outcome(), None)[1])


def test_a_sigterm_from_outside_is_the_cause() -> None:
    """It came before we ended what was left over."""
    ended = rank_failure("killed by signal 15 (SIGTERM)", rank=0, signal=15)
    broken = rank_failure("Connection closed by peer", rank=1, reason_code="connection_lost")
    outcome = Outcome(reported=frozenset({0, 1}))
    assert "signal 15" in str(_judge(make_plan(CELL), [ended, broken], outcome, None)[1])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_results_disk_is_one_sentence(number, tmp_path, monkeypatch) -> None:
    """hardening B6: it was ``[Errno 28] No space left on device``."""

    def full(*_arguments, **_options):
        raise OSError(number, "No space left on device")

    monkeypatch.setattr(supervise._Run, "measure", full)
    with pytest.raises(CellFailed) as caught:
        run_cell(CELL, load_site("local"), tmp_path, None, 1)
    sentence = str(caught.value)
    assert CELL.id in sentence
    assert str(tmp_path) in sentence
    assert "no room is left to write" in sentence
    assert not (tmp_path / "lease.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_ends_the_cell_and_says_so(number, tmp_path, monkeypatch) -> None:
    """hardening B1: nothing was written, and the lease stayed."""

    def ended(*_arguments, **_options):
        signal.raise_signal(number)

    monkeypatch.setattr(supervise._Run, "measure", ended)
    signal.signal(number, signal.SIG_DFL)  # what nohup ignores would stay ignored
    with pytest.raises(CellFailed, match=f"its supervisor was ended by {number.name}"):
        run_cell(CELL, load_site("local"), tmp_path, None, 1)
    assert number.name in (tmp_path / "failure.json").read_text()
    assert not (tmp_path / "lease.json").exists()
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize(("job", "left"), [("12", False), ("13", True)])
def test_a_job_whose_run_was_killed_leaves_no_note_of_its_own(
    job, left, tmp_path, monkeypatch
) -> None:
    """SIGHUP ended snakemake, which would have deleted queued.json; job 13 took the cell over."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(supervise._Run, "measure", lambda *_, **__: 1 / 0)
    note = {"writer": Writer("run", job).to_dict()}
    (tmp_path / QUEUED_FILE).write_text(json.dumps(note))
    with pytest.raises(ZeroDivisionError):
        run_cell(CELL, load_site("local"), tmp_path, None, 1)
    assert (tmp_path / QUEUED_FILE).exists() == left


def test_a_damaged_failure_file_does_not_forbid_a_repeat(tmp_path, monkeypatch) -> None:
    (tmp_path / "failure.json").write_text("[1, 2")
    monkeypatch.setattr(supervise._Run, "measure", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_cell(CELL, load_site("local"), tmp_path, None, 2)


def test_a_run_that_lost_its_lease_writes_nothing(tmp_path, monkeypatch) -> None:
    """Its machine slept; another one has taken the cell over meanwhile."""
    other = dataclasses.replace(Owner.here(), host="another-host")

    def slept(*_arguments):
        (tmp_path / "lease.json").write_text(json.dumps(dataclasses.asdict(other)))
        return Outcome()

    monkeypatch.setattr(supervise, "_launch_and_watch", slept)
    with pytest.raises(CellFailed, match="another one measures the cell now"):
        run_cell(CELL, load_site("local"), tmp_path, {"digest": ""}, 1)
    assert owner_in(tmp_path / "lease.json") == other
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lease.json", "plan.json"]


def test_the_lease_is_released_while_the_heart_beats(tmp_path, monkeypatch) -> None:
    """Without a heartbeat, another host would take it for left over."""
    seen = []
    real = supervise.release

    def release(folder, me):
        seen.append((folder / HEARTBEAT).exists())
        real(folder, me)

    monkeypatch.setattr(supervise._Run, "measure", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(supervise, "release", release)
    with pytest.raises(ZeroDivisionError):
        run_cell(CELL, load_site("local"), tmp_path, None, 1)
    assert seen == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_when_the_lease_cannot_be_written(tmp_path, monkeypatch) -> None:
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "lease"))

    monkeypatch.setattr(lease.os, "link", full)
    with pytest.raises(CellFailed, match=f"no room is left to write {tmp_path / 'lease'}"):
        run_cell(CELL, load_site("local"), tmp_path, None, 1)


def test_a_full_disk_names_the_file_that_it_has_no_room_for(tmp_path, monkeypatch) -> None:
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="table.csv"):
        write_text(tmp_path / "table.csv", "1\n")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_does_not_hide_the_reason(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit), logged("/dev/full/log", CellFailed):
        raise CellFailed("no room is left")
    assert capsys.readouterr().err == "ddlbench: no room is left\n"
