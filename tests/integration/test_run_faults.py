"""What becomes of a cell on this machine when something breaks; each test is a row of the table.

Faults that need a cluster are in tests/cluster/test_cluster_faults.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from faulty_cell import CELL, FaultyCell

from ddlbench.common.owner import HEARTBEAT
from ddlbench.datasets.staging import own_folder

root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make this fault")


@pytest.fixture
def faulty(tmp_path):
    cell = FaultyCell(tmp_path)
    yield cell
    cell.end()


def supervisor_is_killed(faulty, run, ranks):
    """hardening B1."""
    run.kill()
    faulty.wait_until_gone(ranks, 10)
    assert faulty.lease()["pid"] == run.pid


def supervisor_gets_sigterm(faulty, run, ranks):
    """hardening B1: nothing was written, and the lease stayed."""
    run.terminate()
    output, _ = run.communicate(timeout=60)
    faulty.wait_until_gone(ranks, 1)
    assert output.splitlines()[-1].startswith("ddlbench: ")
    assert "its supervisor was ended by SIGTERM" in faulty.failure()
    assert not (faulty.cell / "lease.json").exists()


def supervisor_of_a_stopped_rank_is_killed(faulty, run, ranks):
    """hardening B4: guards and workers were there after a minute."""
    ranks[0].suspend()
    faulty.broken()
    run.kill()
    faulty.wait_until_gone(ranks, 10)


def guard_is_killed(faulty, run, ranks):
    """hardening B5: the reason was the SIGTERM with which we ended the other rank."""
    ranks[0].parent().kill()
    faulty.wait_until_gone(ranks)
    assert run.wait(60) == 1
    assert faulty.failure() == ("rank 0 ended without a report: signal 9 (SIGKILL) ended its guard")


def starter_is_killed(faulty, run, ranks):
    """The process that forked both ranks and their guards."""
    ranks[0].parent().parent().kill()
    faulty.wait_until_gone(ranks)
    assert run.wait(60) == 1
    assert faulty.failure() == ("rank 0 ended without a report: signal 9 (SIGKILL) ended its guard")


def node_reboots(faulty, run, ranks):
    """Its processes are gone, its boot is another one, its last heartbeat is old."""
    for process in (run, *ranks):
        process.kill()
    faulty.wait_until_gone(ranks)
    faulty.change_lease(boot_id="of-the-boot-before")
    for name in ("lease.json", HEARTBEAT):
        os.utime(faulty.cell / name, (time.time() - 120,) * 2)


FAULTS = (
    (supervisor_is_killed, "supervisor killed (-9)", "not run; status says interrupted"),
    (supervisor_gets_sigterm, "SIGTERM to the supervisor", "failed: the signal is named"),
    (
        supervisor_of_a_stopped_rank_is_killed,
        "a rank stopped, then its supervisor killed (-9)",
        "not run",
    ),
    (guard_is_killed, "the guard of a rank killed (-9)", "failed: the rank is named"),
    (starter_is_killed, "the starter of the ranks killed (-9)", "failed: a rank is named"),
    (node_reboots, "the node reboots in the middle of a cell", "not run"),
)


def test_after_each_fault_no_rank_is_left_and_the_next_run_trains(faulty):
    """One cell: each fault breaks the run that began with what the fault before it had left."""
    gone_s = []
    for fault, _, _ in FAULTS:
        run, ranks = faulty.start()
        faulty.broken()
        fault(faulty, run, ranks)
        gone_s.append(faulty.gone_s)
    assert faulty.run_again()["status"] == "ok"
    for (_, what, state), faulty.gone_s in zip(FAULTS, gone_s, strict=True):
        faulty.report(what, state, "ok")


@root
def test_two_hosts_on_one_results_folder_measure_a_cell_once(faulty):
    """hardening B2: a living run of another host was taken over."""
    run, _ = faulty.start()
    second = faulty.supervise("unshare", "--uts", "sh", "-c", 'hostname other && exec "$@"', "sh")
    assert "waiting for it" in second.stdout.readline()
    (faulty.notes / "hurry").touch()
    run.communicate(timeout=60)
    output, _ = second.communicate(timeout=60)
    assert (run.returncode, second.returncode) == (0, 0), output
    assert len(list(faulty.notes.glob("begun-*"))) == 2
    assert faulty.result()["status"] == "ok"
    faulty.report("two hosts on one results folder", "measured once", "ok for both")


def test_a_stepped_clock_changes_nothing(faulty):
    """hardening B2: half a minute, and the cell was measured by two at once.

    A step moves the start that psutil gives for a process; here the lease moves instead.
    """
    run, _ = faulty.start()
    faulty.change_lease(started=faulty.lease()["started"] - 30)
    second = faulty.supervise()
    assert "waiting for it" in second.stdout.readline()
    faulty.change_lease(started=faulty.lease()["started"] + 30)
    (faulty.notes / "hurry").touch()
    run.communicate(timeout=60)
    second.communicate(timeout=60)
    assert (run.returncode, second.returncode) == (0, 0)
    faulty.report("the clock is stepped by 30 s", "measured once", "ok for both")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte for the results."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(path: Path, left_pages: int) -> None:
    """Fill a disk but for some pages, of which each small file takes one."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(PAGE)):
            pass
    os.truncate(path, (path.stat().st_size // PAGE - left_pages) * PAGE)


PAGE = 4096


@root
@pytest.mark.parametrize(
    "left_pages",  # of about 10 that a cell writes
    [(0, 4), pytest.param((8,), marks=pytest.mark.exhaustive)],
)
def test_a_full_results_disk_is_one_sentence_that_names_the_cell(left_pages, small_disk, tmp_path):
    """hardening B6: it was ``[Errno 28] No space left on device`` and a traceback."""
    faulty = FaultyCell(tmp_path, small_disk)
    faulty.cell.mkdir(parents=True)
    (faulty.notes / "hurry").touch()
    for pages in left_pages:
        fill(small_disk / "fill", pages)
        run = faulty.supervise()
        output, _ = run.communicate(timeout=120)
        assert run.returncode == 1
        messages = [line for line in output.splitlines() if line.startswith("ddlbench: ")]
        assert len(messages) == 1, output
        assert CELL.id in messages[0]
        assert "o room is left to write" in messages[0]
        (small_disk / "fill").unlink()
        for note in faulty.notes.glob("*-*"):
            note.unlink()
    assert faulty.run_again()["status"] == "ok"
    if left_pages == (8,):
        faulty.report("results disk full", "failed: path and cell are named", "ok")
    faulty.end()


def test_a_damaged_file_of_the_right_size_is_made_anew(faulty):
    """hardening A2: zeroed pixels were trained on."""
    (faulty.notes / "hurry").touch()
    first = faulty.run_again()
    for path in [*faulty.notes.glob("*-*"), faulty.cell / "result.json"]:
        path.unlink()
    images = max(faulty.scratch.rglob("*images*"), key=lambda path: path.stat().st_size)
    content = images.read_bytes()
    images.write_bytes(content[:16] + bytes(len(content) - 16))
    again = faulty.run_again()
    assert not again["staging"]["reused"]
    assert again["loss"]["first"] == pytest.approx(first["loss"]["first"], rel=1e-4)
    assert images.read_bytes() == content
    faulty.report("staged data damaged, of the right size", "made anew", "ok")


@root
def test_scratch_that_another_user_made_is_refused(faulty):
    """hardening E1: what another user put there was used."""
    planted = own_folder(faulty.scratch)
    planted.mkdir(parents=True)
    os.chown(planted, 12345, 12345)
    run = faulty.supervise()
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    (sentence,) = [line for line in output.splitlines() if line.startswith("ddlbench: ")]
    assert f"{planted} belongs to user 12345, not to you" in sentence
    os.chown(planted, os.getuid(), -1)
    assert faulty.run_again()["status"] == "ok"
    faulty.report("another user owns the scratch folder", "failed before training", "ok")


EARLY = """
import sys, time
from ddlbench.planning.plan import Process
from ddlbench.runtime.launch import LocalLaunch, Step
code = "import time; time.sleep(1); print('lived')"
rank = Process(0, "worker", 0, 0, (0,), shard=0, num_shards=1)
launch = LocalLaunch(Step((sys.executable, "-c", code), [rank], 1, 1, 1, None))
launch.dump_stacks()
print(*[line.partition("] ")[2] for line in launch.lines(time.monotonic() + 60) if line])
"""


def test_stacks_that_are_asked_for_too_early_end_nobody(faulty):
    """SIGUSR1 ended a guard or rank whose Python had not started yet."""
    early = subprocess.run(
        [sys.executable, "-c", EARLY], check=True, capture_output=True, text=True
    )
    assert early.stdout == "lived\n"
    _, ranks = faulty.start()
    for rank in ranks:  # by now it dumps them
        lines = Path(f"/proc/{rank.pid}/status").read_text().splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        assert int(caught, 16) & 1 << signal.SIGUSR1 - 1
