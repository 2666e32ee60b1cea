"""A cell runs once, whoever asks for it: the lease lies in the cell's folder.

::

    no lease                           take it, measure, keep the result, give it back
    lease of a job that lives          wait for it, adopt the result that it keeps
    lease of a job that is gone        out of memory, out of time: that is the cell's result
                                       anything else: take the lease over and measure

A workflow that was killed leaves its jobs running; the next one submits the cell again, and that
job finds the lease. Snakemake deletes a job's output before it starts, so the result is kept under
a second name; it is adopted only if it was made after the asking job was submitted: a result that
a person deleted is measured anew.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from ddlbench.experiment.result import InvalidResult, read_result, write_result
from ddlbench.runtime import slurm_job

__all__ = ["Claim", "Owner", "claim", "keep", "release"]

_LEASE, _KEPT = "lease.json", ".kept-result.json"
_UNREADABLE_S = 30.0


@dataclass(frozen=True)
class Owner:
    """Who measures a cell.

    Args:
        job_id: of SLURM; None on a local site.
        host: of the supervisor.
        pid: its process.
        started: when that process began, seconds since the epoch.
        submitted: when it was asked for, seconds since the epoch.
    """

    job_id: str | None
    host: str
    pid: int
    started: float
    submitted: float

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        started = psutil.Process().create_time()
        job_id = slurm_job.own_job_id()
        submitted = slurm_job.submitted_at(job_id) if job_id else None
        return cls(job_id, socket.gethostname(), os.getpid(), started, submitted or started)

    def is_alive(self) -> bool:
        """Whether it can still leave a result; a job of another host is SLURM's to judge."""
        if self.host == socket.gethostname() or self.job_id is None:
            with suppress(psutil.Error):
                return abs(psutil.Process(self.pid).create_time() - self.started) < 1.0
            return False
        return slurm_job.is_alive(self.job_id)


@dataclass(frozen=True)
class Claim:
    """What came of asking for a cell.

    Args:
        kind: "mine" (measure it), "adopted" (``result`` is there already), or "concluded" (the
            job before ended for ``status``, which is the cell's result).
        result: of an adopted cell.
        status, reason: of a concluded cell.
    """

    kind: Literal["mine", "adopted", "concluded"]
    result: dict[str, Any] | None = None
    status: str | None = None
    reason: str | None = None


def claim(folder: Path, me: Owner, poll_s: float = 5.0) -> Claim:
    """Ask for the cell in ``folder``; waits while another job measures it."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        kept = _kept_since(folder, me.submitted)
        if kept is not None:
            return Claim("adopted", result=kept)
        if _take(folder, me):
            return Claim("mine")
        owner = _read(folder / _LEASE)
        if owner is None or owner == me:
            continue
        if owner.is_alive():
            time.sleep(poll_s)
            continue
        kept = _kept_since(folder, me.submitted)
        if kept is not None:
            return Claim("adopted", result=kept)
        ended = slurm_job.state(owner.job_id) if owner.job_id else None
        _put_aside(folder)
        if ended == slurm_job.ENDED_FOR_MEMORY:
            reason = f"SLURM ended job {owner.job_id}: out of memory"
            return Claim("concluded", status="out_of_memory", reason=reason)
        if ended == slurm_job.ENDED_FOR_TIME:
            reason = f"SLURM ended job {owner.job_id} at its time limit"
            return Claim("concluded", status="timeout", reason=reason)


def keep(folder: Path, result: dict[str, Any]) -> None:
    """Keep a result under the name that Snakemake does not delete."""
    write_result(folder / _KEPT, result)


def release(folder: Path) -> None:
    """Give the lease back."""
    (folder / _LEASE).unlink(missing_ok=True)


def _take(folder: Path, me: Owner) -> bool:
    """Make the lease, whole, unless there is one: a hard link is atomic on NFS too."""
    own = folder / f".{_LEASE}.{me.host}.{me.pid}"
    own.write_text(json.dumps(asdict(me)), encoding="utf-8")
    try:
        os.link(own, folder / _LEASE)
    except FileExistsError:
        return False
    finally:
        own.unlink()
    return True


def _read(path: Path) -> Owner | None:
    """The owner of a lease; one that no one can read is put aside after a while."""
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNREADABLE_S:
                _put_aside(path.parent)
        time.sleep(0.2)
        return None


def _put_aside(folder: Path) -> None:
    """Of several that find a lease without an owner, one moves it; the others find none."""
    with suppress(FileNotFoundError):
        (folder / _LEASE).rename(folder / f".{_LEASE}.gone")


def _kept_since(folder: Path, when: float) -> dict[str, Any] | None:
    path = folder / _KEPT
    try:
        if path.stat().st_mtime <= when:
            return None
        return read_result(path)
    except (OSError, InvalidResult):
        return None
