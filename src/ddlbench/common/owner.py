"""The process or job that owns what lies on a shared disk: a lease, or a file.

Whether the owner of a lease lives can be judged from any host::

    same host      its boot and the moment at which its process began: no clock is asked
    another host   SLURM, if it is of a job; else its heartbeat: a file that it touches

A wall clock may be stepped, and a pid is used again, so neither decides. The age of a heartbeat is
taken from a file touched beside it: both times are those of the file system, whatever the hosts'
clocks say.

A file that one job writes and another one reads names its writer: the run, its job, the attempt::

    snakemake (run) --+-- SLURM job 12, attempt 1 --> failure.json, queued.json, *.log
                      +-- SLURM job 15, attempt 2 --> ...

Files of one cell stay in its folder when a job dies. The next job must not take them for its own:
data lies on other nodes, and a bug may be mended since.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from ddlbench.common.document import read_json
from ddlbench.common.form import Form

HEARTBEAT = ".lease-heartbeat"
STALE_S = 60.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner(Form):
    """The supervisor that measures a cell.

    Args:
        job_id: of SLURM; None on a local site.
        host: its name.
        pid: of its process.
        started: when its process began, seconds since the epoch.
        run_began: when its run of the workflow began, seconds since the epoch.
        boot_id: of its host since it was last started; empty where the system has none.
        start_ticks: when its process began, in ticks since the boot; 0 as above.
    """

    job_id: str | None
    host: str
    pid: int
    started: float
    run_began: float
    boot_id: str = ""
    start_ticks: int = 0

    @classmethod
    def here(cls, job_id: str | None = None, run_began: float | None = None) -> Self:
        """This process; without a workflow its run began when it began."""
        started = psutil.Process().create_time()
        return cls(
            job_id,
            socket.gethostname(),
            os.getpid(),
            started,
            run_began or started,
            boot_id(),
            start_ticks(os.getpid()),
        )

    def runs_on_this_host(self) -> bool:
        """Whether its process lives here; its boot and start decide, not its pid alone."""
        if self.boot_id:
            return 0 < self.start_ticks == start_ticks(self.pid)
        with suppress(psutil.Error, ValueError, OverflowError):  # no pid at all is a ValueError
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        return False

    def is_of_this_host(self) -> bool:
        """Whether it runs on this host, if at all; before the last boot, nothing ran here."""
        return self.host == socket.gethostname() and self.boot_id in ("", boot_id())

    @property
    def label(self) -> str:
        """``SLURM job 7 on n1``."""
        job = f"process {self.pid}" if self.job_id is None else f"SLURM job {self.job_id}"
        return f"{job} on {self.host}"


NOBODY = Owner(None, "", 0, 0.0, 0.0)
"""Stands for a lease that cannot be read."""


def owner_in(path: Path) -> Owner | None:
    """The owner of a lease; None if none can be opened, NOBODY if it is damaged."""
    try:
        return Owner.from_dict(read_json(path))
    except OSError:
        return None
    except ValueError:
        return NOBODY


def slurm_job_id() -> str | None:
    """Id of the SLURM job of this process; of an array's task ``<array>_<task>``, as in squeue.

    ``SLURM_JOB_ID`` of a task is another number, which nobody knows before it starts.
    """
    array, task = (os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def boot_id() -> str:
    """What names the last start of this machine; empty where there is no such thing."""
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return ""


def start_ticks(pid: int) -> int:
    """When a process began, in ticks since the boot; 0 if there is none, or no /proc.

    A zombie is none: it stays while its parent does not ask for it, as in some containers.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return 0
    # The name, in brackets, may hold blanks; the 3rd field, its state, is the first after it.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return 0
    return int(fields[19])


def heart_beats(folder: Path) -> bool | None:
    """Whether the heartbeat of a folder, or its lease, is young; None if nothing can be said."""
    changes_s = [_changed_s(folder / name) for name in (HEARTBEAT, "lease.json")]
    known_s = [changed_s for changed_s in changes_s if changed_s is not None]
    now_s = clock_s(folder) if known_s else None
    if now_s is None:
        return None
    # A time that lies ahead is from before the file system's clock was set back.
    return abs(now_s - max(known_s)) < STALE_S


def clock_s(folder: Path) -> float | None:
    """What the clock of a folder's file system says; None where nothing can be written."""
    probe = folder / f".now-{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns()}"
    try:
        probe.touch()
        now_s = probe.stat().st_mtime
        probe.unlink()
    except OSError:
        return None
    return now_s


def _changed_s(path: Path) -> float | None:
    """When a file was changed, in seconds since the epoch; None without it.

    It is opened, because NFS shows old times of a file that is only asked for.
    """
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def seems_to_live(owner: Owner, folder: Path) -> bool:
    """Whether the owner of a folder's lease lives, as far as this host can tell.

    Of another host's owner the heartbeat decides, also of a SLURM job's: that is enough to tell
    people of a cell, and too little to take it over, as a job may be suspended. Where nothing can
    be said it counts as alive.
    """
    if owner.is_of_this_host():
        return owner.runs_on_this_host()
    return heart_beats(folder) is not False


RUN = "DDLBENCH_RUN"
_NS = 1e9


@dataclass(frozen=True)
class Writer:
    """The job that wrote a file.

    Args:
        run: the start of the workflow; None outside of a workflow.
        job_id: of SLURM; None on a local site.
        attempt: 1, or more if the workflow repeats a failed job.
    """

    run: str | None
    job_id: str | None
    attempt: int = 1

    @classmethod
    def here(cls, attempt: int = 1) -> Self:
        return cls(os.environ.get(RUN), slurm_job_id(), attempt)

    @classmethod
    def of(cls, document: Any) -> Self | None:
        """The writer that a document names; None if it names none."""
        values = document.get("writer") if isinstance(document, Mapping) else None
        try:
            return cls(**(values or {}))
        except TypeError:
            return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def comes_after(self, other: Writer | None) -> bool:
        return other is not None and self.run == other.run and self.attempt > other.attempt

    def __str__(self) -> str:
        job = "local job" if self.job_id is None else f"SLURM job {self.job_id}"
        return f"{job}, attempt {self.attempt}"


def begin_run(folder: Path) -> None:
    """Name this start of the workflow for all jobs that it starts.

    Args:
        folder: on the file system of the results, whose clock decides what is older than the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".begin-{secrets.token_hex(8)}"
    probe.touch()
    began_ns = probe.stat().st_mtime_ns
    probe.unlink()
    os.environ[RUN] = f"{began_ns}-{secrets.token_hex(4)}"


def run_began_s() -> float | None:
    """When the run began, by the clock of the results' file system; None outside of a workflow."""
    began, _, _ = os.environ.get(RUN, "").partition("-")
    return int(began) / _NS if began.isdigit() else None
