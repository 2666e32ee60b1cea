"""A cell runs once, whoever asks for it: the lease lies in the cell's folder.

::

    no lease                           take it, measure, keep the result, give it back
    lease of a job that may live       wait for it, adopt the result that it keeps
    lease of a job that is gone        out of memory, out of time: that is the cell's result
                                       anything else: take the lease over and measure

A workflow that was killed leaves its jobs running; the next one submits the cell again, and that
job finds the lease. Snakemake deletes a job's output before it starts, so the result is kept under
a second name; it is adopted only if it was made after the asking job was submitted: a result that
a person deleted is measured anew. Where SLURM cannot be asked the owner counts as alive.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil

from ddlbench.experiment.result import InvalidResult, Result, read_result, write_result
from ddlbench.experiment.status import Reason, Status
from ddlbench.runtime import slurm_job

_LEASE, _KEPT = "lease.json", ".kept-result.json"
_UNREADABLE_S = 30.0
_SHORTLY_S = 0.1


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

    def runs_on_this_host(self) -> bool:
        """Whether its process is here."""
        with suppress(psutil.Error):
            return abs(psutil.Process(self.pid).create_time() - self.started) < 1.0
        return False


_NOBODY = Owner(None, "", 0, 0.0, 0.0)  # in place of what is no lease


@dataclass(frozen=True)
class Claim:
    """What came of asking for a cell.

    Args:
        kind: "mine" (measure it), "adopted" (``result`` is there already), or "concluded" (the
            job before ended for ``status``, which is the cell's result; the lease is the asker's).
        result: of an adopted cell.
        status, reason: of a concluded cell.
    """

    kind: Literal["mine", "adopted", "concluded"]
    result: Result | None = None
    status: Status | None = None
    reason: Reason | None = None


def claim(folder: Path, me: Owner, *, poll_s: float = 5.0, slowest_poll_s: float = 60.0) -> Claim:
    """Ask for the cell in ``folder``; waits while another job measures it.

    Args:
        folder: of the cell.
        me: who asks.
        poll_s: between two looks.
        slowest_poll_s: what that grows to where the owner is another job or on another host, as
            each look asks SLURM.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pause_s, told = poll_s, False
    while True:
        kept = _kept_since(folder, me.submitted)
        if kept is not None:
            return Claim("adopted", result=kept)
        if _take(folder, me):
            return Claim("mine")
        owner = _read(folder, me)
        if owner is None:
            continue
        over, state = _ending(owner, me)
        if over:
            taken = _take_over(folder, owner, state, me)
            if taken is not None:
                return taken
            continue
        if not told:
            _tell(owner)
            told = True
        time.sleep(pause_s)
        if (owner.host, owner.job_id) != (me.host, me.job_id):
            pause_s = min(2 * pause_s, slowest_poll_s)


def keep(folder: Path, result: Result) -> None:
    """Keep a result under the name that Snakemake does not delete."""
    write_result(folder / _KEPT, result)


def release(folder: Path, me: Owner) -> None:
    """Give the lease back, if it is still one's own."""
    if _owner_in(folder / _LEASE) == me:
        (folder / _LEASE).unlink(missing_ok=True)


def _ending(owner: Owner, me: Owner) -> tuple[bool, str | None]:
    """Whether ``owner`` can leave no result any more, and how SLURM says that its job ended."""
    if owner.job_id is None or owner.host == me.host:
        if owner.runs_on_this_host():
            return False, None
        return True, None if owner.job_id is None else slurm_job.state(owner.job_id)
    if owner.job_id == me.job_id:  # requeued: SLURM ended what ran of it before
        return True, None
    state = slurm_job.state(owner.job_id)
    return not slurm_job.may_live(state), state


def _take_over(folder: Path, owner: Owner, state: str | None, me: Owner) -> Claim | None:
    """The cell of an owner that is gone; None where another asker was faster."""
    kept = _kept_since(folder, me.submitted)
    if kept is not None:
        return Claim("adopted", result=kept)
    if not (_put_aside(folder, owner, me) and _take(folder, me)):
        return None
    if state == slurm_job.ENDED_FOR_MEMORY:
        reason = Reason("out_of_memory_job", f"SLURM ended job {owner.job_id}: out of memory")
        return Claim("concluded", status=Status.OUT_OF_MEMORY, reason=reason)
    if state == slurm_job.ENDED_FOR_TIME:
        reason = Reason("time_limit_job", f"SLURM ended job {owner.job_id} at its time limit")
        return Claim("concluded", status=Status.TIMEOUT, reason=reason)
    return Claim("mine")


def _tell(owner: Owner) -> None:
    job = f"process {owner.pid}" if owner.job_id is None else f"SLURM job {owner.job_id}"
    print(f"ddlbench: {job} on {owner.host} measures this cell; waiting for it", file=sys.stderr)


def _take(folder: Path, me: Owner) -> bool:
    """Make the lease, whole, unless there is one: a hard link is atomic on NFS too."""
    own = folder / f".{_LEASE}.{me.host}.{me.pid}"
    own.write_text(json.dumps(asdict(me)), encoding="utf-8")
    try:
        os.link(own, folder / _LEASE)
    except FileExistsError:
        # NFS may repeat the request for the link, and deny what it has done.
        return _owner_in(folder / _LEASE) == me
    finally:
        own.unlink()
    return True


def _read(folder: Path, me: Owner) -> Owner | None:
    """The owner of the lease; one that names nobody is put aside after a while."""
    path = folder / _LEASE
    owner = _owner_in(path)
    if owner == _NOBODY:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNREADABLE_S:
                _put_aside(folder, _NOBODY, me)
        time.sleep(_SHORTLY_S)
        return None
    if owner is None:
        time.sleep(_SHORTLY_S)
    return owner


def _owner_in(path: Path) -> Owner | None:
    """Whom a lease names; None where there is none, or it cannot be read just now."""
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except OSError:
        return None
    except (ValueError, TypeError):
        return _NOBODY


def _put_aside(folder: Path, seen: Owner, me: Owner) -> bool:
    """Take the lease of ``seen`` away; whether this process did it.

    Several may find an owner dead, and one of them may have a fresh lease before another gets
    here: what was moved is looked at, and put back if it is not what was meant.
    """
    lease, aside = folder / _LEASE, folder / f".{_LEASE}.{me.host}.{me.pid}.gone"
    if _owner_in(lease) != seen:
        return False
    try:
        lease.rename(aside)
    except FileNotFoundError:
        return False
    try:
        if _owner_in(aside) == seen:
            return True
        with suppress(FileExistsError):
            os.link(aside, lease)
        return False
    finally:
        aside.unlink(missing_ok=True)


def _kept_since(folder: Path, when: float) -> Result | None:
    path = folder / _KEPT
    try:
        if path.stat().st_mtime <= when:
            return None
        return read_result(path)
    except (OSError, InvalidResult):
        return None
