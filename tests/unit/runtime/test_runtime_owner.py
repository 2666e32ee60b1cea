"""Who holds a lease, judged from anywhere: a stepped clock, another host, a reboot, nonsense."""

from __future__ import annotations

import dataclasses
import json
import os
import time

import pytest

from ddlbench.common import owner
from ddlbench.common.owner import (
    HEARTBEAT,
    NOBODY,
    Owner,
    heart_beats,
    owner_in,
    seems_to_live,
)
from ddlbench.runtime import lease
from ddlbench.runtime.lease import claim, heartbeat


def elsewhere(**changes) -> Owner:
    """An owner on another host, without SLURM."""
    return dataclasses.replace(Owner.here(), host="another-host", job_id=None, **changes)


def test_a_stepped_clock_changes_nothing() -> None:
    """The wall clock was set 30 seconds ahead after the lease was taken."""
    stepped = dataclasses.replace(Owner.here(), started=Owner.here().started - 30)
    assert stepped.runs_on_this_host()


def test_a_pid_that_is_used_again_is_another_process() -> None:
    reused = dataclasses.replace(Owner.here(), start_ticks=Owner.here().start_ticks + 1)
    assert not reused.runs_on_this_host()


def test_start_ticks_are_of_the_process() -> None:
    assert 0 < owner.start_ticks(1) <= owner.start_ticks(os.getpid())
    assert owner.start_ticks(2**22 + 1) == 0


def test_a_living_run_of_another_host_is_not_taken_over(tmp_path) -> None:
    assert lease._take(tmp_path, elsewhere(pid=2**22 + 1))
    with heartbeat(tmp_path, beat_s=0.05):
        assert seems_to_live(elsewhere(), tmp_path)
        assert lease._ending(elsewhere(), Owner.here(), tmp_path) == (False, None)


def test_a_heartbeat_that_stopped_is_a_dead_run(tmp_path) -> None:
    other = elsewhere(pid=2**22 + 1)
    assert lease._take(tmp_path, other)
    long_ago = time.time() - 3600
    os.utime(tmp_path / "lease.json", (long_ago, long_ago))
    assert not seems_to_live(other, tmp_path)
    assert claim(tmp_path, Owner.here()).kind == "mine"


def test_a_reboot_in_the_middle_is_judged_by_the_heartbeat(tmp_path) -> None:
    before = dataclasses.replace(Owner.here(), boot_id="of-the-last-boot")
    assert not before.is_of_this_host()
    (tmp_path / HEARTBEAT).touch()
    assert seems_to_live(before, tmp_path)
    long_ago = time.time() - 3600
    os.utime(tmp_path / HEARTBEAT, (long_ago, long_ago))
    assert not seems_to_live(before, tmp_path)


def test_the_heart_beats_and_leaves_nothing_behind(tmp_path) -> None:
    with heartbeat(tmp_path, beat_s=0.01):
        first = (tmp_path / HEARTBEAT).stat().st_mtime_ns
        limit = time.monotonic() + 10
        while (tmp_path / HEARTBEAT).stat().st_mtime_ns == first and time.monotonic() < limit:
            time.sleep(0.01)
        assert (tmp_path / HEARTBEAT).stat().st_mtime_ns > first
        assert heart_beats(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert heart_beats(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        {"job_id": 1, "host": None, "pid": "x", "started": "y", "run_began": 0},
        {"job_id": None, "host": "h", "pid": True, "started": 0, "run_began": 0},
        {"job_id": None, "host": "h", "pid": 1, "started": 0, "run_began": 0, "more": 1},
        {"host": "h"},
        [1, 2],
        None,
    ],
)
def test_a_lease_with_wrong_types_is_put_aside(content, tmp_path, monkeypatch) -> None:
    """hardening B7: it blocked its cell for ever."""
    (tmp_path / "lease.json").write_text(json.dumps(content))
    assert owner_in(tmp_path / "lease.json") == NOBODY
    monkeypatch.setattr(lease, "_UNREADABLE_S", -1.0)
    assert claim(tmp_path, Owner.here()).kind == "mine"


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "9" * 5_000, '{"pid": NaN}'])
def test_a_damaged_lease_is_nobodys(content, tmp_path) -> None:
    (tmp_path / "lease.json").write_text(content)
    assert owner_in(tmp_path / "lease.json") == NOBODY


def test_where_no_boot_is_known_the_start_of_the_process_decides(tmp_path) -> None:
    fields = dataclasses.asdict(Owner.here())
    bootless = {name: fields[name] for name in ("job_id", "host", "pid", "started", "run_began")}
    (tmp_path / "lease.json").write_text(json.dumps(bootless))
    actual = owner_in(tmp_path / "lease.json")
    assert actual.runs_on_this_host()
    assert not dataclasses.replace(actual, started=actual.started - 30).runs_on_this_host()


def test_a_result_that_came_while_we_waited_needs_no_clock(tmp_path, monkeypatch) -> None:
    """The clock was set back by an hour after our run began."""
    other = elsewhere(pid=2**22 + 1)
    assert lease._take(tmp_path, other)
    me = dataclasses.replace(Owner.here(), run_began=time.time() + 3600)

    def sleep(_s: float) -> None:
        (tmp_path / ".kept-result.json").write_text("kept")

    monkeypatch.setattr(lease.time, "sleep", sleep)
    monkeypatch.setattr(lease, "read_result", lambda path: path.read_text())
    claimed = claim(tmp_path, me)
    assert (claimed.kind, claimed.result) == ("adopted", "kept")


def test_a_kept_result_that_was_there_before_is_measured_anew(tmp_path, monkeypatch) -> None:
    (tmp_path / ".kept-result.json").write_text("kept")
    monkeypatch.setattr(lease, "read_result", lambda path: path.read_text())
    me = dataclasses.replace(Owner.here(), run_began=time.time() + 3600)
    assert claim(tmp_path, me).kind == "mine"


def test_a_heartbeat_of_the_future_is_no_sign_of_life(tmp_path) -> None:
    """The clock of the file system was set back."""
    ahead = time.time() + 3600
    (tmp_path / HEARTBEAT).touch()
    os.utime(tmp_path / HEARTBEAT, (ahead, ahead))
    assert heart_beats(tmp_path) is False


@pytest.mark.parametrize("pid", [-5, 0, 2**80])
def test_an_impossible_pid_is_dead(pid, tmp_path) -> None:
    for boot in ("", owner.boot_id()):
        assert not dataclasses.replace(Owner.here(), pid=pid, boot_id=boot).runs_on_this_host()


def test_the_lease_that_another_run_took_is_not_ours(tmp_path) -> None:
    me = Owner.here()
    assert lease._take(tmp_path, me)
    assert lease.holds(tmp_path, me)
    assert not lease.holds(tmp_path, elsewhere())
