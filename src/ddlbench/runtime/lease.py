"""The lease and the heartbeat of a cell: only one job at a time measures it.

::

    no lease                           take it, measure, keep the result, release it
    lease of a job that may live       wait for it, adopt the result that it keeps
    lease of a job that has ended      out of memory, out of time: that is the cell's result
                                       anything else: take the lease over and measure

A killed workflow leaves its jobs running. The next workflow submits the cell again, and that job
finds the lease. Snakemake deletes a job's output before it starts, so the result is kept under a
second name as well. A job adopts it only if it is newer than its run, so a result that a person
deleted is measured anew. If SLURM does not answer, the owner counts as alive. A lease whose content
makes no sense is put aside after 30 seconds.

Other hosts see by the heartbeat that the supervisor of the cell lives.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ddlbench.common.document import UnreadableJson, read_object, whole_file
from ddlbench.common.owner import (
    HEARTBEAT,
    NOBODY,
    Owner,
    Writer,
    clock_s,
    owner_in,
    run_began_s,
    seems_to_live,
    slurm_job_id,
)
from ddlbench.experiment.paths import QUEUED_FILE
from ddlbench.experiment.result import InvalidResult, NewerResult, Result, read_result, write_result
from ddlbench.experiment.status import Reason, Status
from ddlbench.slurm import jobs

_LEASE, _KEPT = "lease.json", ".kept-result.json"
_UNREADABLE_S = 30.0
_SHORTLY_S = 0.1
_BEAT_S = 5.0


@dataclass(frozen=True)
class Claim:
    """Outcome of :func:`claim`.

    "mine": measure the cell. "adopted": another job has measured it. "concluded": the previous job
    ran out of memory or time, which is the cell's result. With "mine" and "concluded" the claimant
    holds the lease.
    """

    kind: Literal["mine", "adopted", "concluded"]
    result: Result | None = None  # of an adopted cell; None if a newer ddlbench measured it
    status: Status | None = None  # of a concluded cell
    reason: Reason | None = None


def this_supervisor() -> Owner:
    """This process as the owner of a lease."""
    return Owner.here(slurm_job_id(), run_began_s())


def claim(folder: Path, me: Owner, *, poll_s: float = 5.0, slowest_poll_s: float = 60.0) -> Claim:
    """Claim the cell in ``folder`` for ``me``; waits while another job measures it.

    The lease is checked every ``poll_s``; if a check asks SLURM, the pause grows up to
    ``slowest_poll_s``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pause_s, announced = poll_s, False
    seen_ns = _changed_ns(folder)
    while True:
        kept = _kept_since(folder, me.run_began, seen_ns)
        if kept is not None:
            return _adopted(kept)
        if _take(folder, me):
            # The last owner may have kept a result and left since the check above.
            kept = _kept_since(folder, me.run_began, seen_ns)
            if kept is None:
                return Claim("mine")
            release(folder, me)
            return _adopted(kept)
        owner = _read(folder, me)
        if owner is None:
            continue
        ended, state = _ending(owner, me, folder)
        if ended:
            taken = _take_over(folder, owner, state, me, seen_ns)
            if taken is not None:
                return taken
            continue
        if not announced:
            print(f"ddlbench: {owner.label} measures this cell; waiting for it", file=sys.stderr)
            announced = True
        time.sleep(pause_s)
        if (owner.host, owner.job_id) != (me.host, me.job_id):
            pause_s = min(2 * pause_s, slowest_poll_s)


def keep(folder: Path, result: Result) -> None:
    """Keep a result under a name that Snakemake does not delete."""
    write_result(folder / _KEPT, result)


def copy_kept(folder: Path) -> None:
    """Make the kept result the cell's result.json, byte by byte."""
    with whole_file(folder / "result.json") as beside:
        beside.write_bytes((folder / _KEPT).read_bytes())


def release(folder: Path, me: Owner) -> None:
    """Delete the lease if it is still ``me``'s."""
    if owner_in(folder / _LEASE) == me:
        (folder / _LEASE).unlink(missing_ok=True)


def forget_queued(folder: Path, me: Owner) -> None:
    """Delete the note that the job of ``me`` waits or runs; a killed run leaves it there."""
    with suppress(OSError, UnreadableJson):
        writer = Writer.of(read_object(folder / QUEUED_FILE))
        if writer is not None and writer.job_id is not None and writer.job_id == me.job_id:
            (folder / QUEUED_FILE).unlink()


def holds(folder: Path, me: Owner) -> bool:
    """Whether ``me`` has the lease; also if there is none to read, as nobody else has it then."""
    return owner_in(folder / _LEASE) in (me, None)


def _ending(owner: Owner, me: Owner, folder: Path) -> tuple[bool, str | None]:
    """Whether ``owner`` has ended, and the last state of its SLURM job."""
    if owner.is_of_this_host() or owner.job_id is None:
        if seems_to_live(owner, folder):
            return False, None
        return True, None if owner.job_id is None else jobs.state(owner.job_id)
    if owner.job_id == me.job_id:  # requeued: SLURM has ended its earlier run
        return True, None
    state = jobs.state(owner.job_id)
    return not jobs.may_live(state), state


def _take_over(
    folder: Path, owner: Owner, state: str | None, me: Owner, seen_ns: int | None
) -> Claim | None:
    """Claim the cell of an owner that has ended; None if another claimant was faster."""
    kept = _kept_since(folder, me.run_began, seen_ns)
    if kept is not None:
        return _adopted(kept)
    if not (_put_aside(folder, owner, me) and _take(folder, me)):
        return None
    if state == jobs.ENDED_FOR_MEMORY:
        reason = Reason("out_of_memory_job", f"SLURM ended job {owner.job_id}: out of memory")
        return Claim("concluded", status=Status.OUT_OF_MEMORY, reason=reason)
    if state == jobs.ENDED_FOR_TIME:
        reason = Reason("time_limit_job", f"SLURM ended job {owner.job_id} at its time limit")
        return Claim("concluded", status=Status.TIMEOUT, reason=reason)
    return Claim("mine")


def _take(folder: Path, me: Owner) -> bool:
    """Create the lease unless there is one; returns whether it is ``me``'s now."""
    claim_file = folder / f".{_LEASE}.{me.host}.{me.pid}"
    claim_file.write_text(json.dumps(asdict(me)), encoding="utf-8")
    try:
        os.link(claim_file, folder / _LEASE)  # atomic on NFS too
    except FileExistsError:
        # NFS may send the request twice and report an error although the first one succeeded.
        return owner_in(folder / _LEASE) == me
    finally:
        claim_file.unlink()
    return True


def _read(folder: Path, me: Owner) -> Owner | None:
    """The owner of the lease; removes a lease that stays unreadable for 30 seconds."""
    path = folder / _LEASE
    owner = owner_in(path)
    if owner == NOBODY:
        with suppress(OSError):
            # A time that lies ahead is from before the clock was set back.
            if abs(time.time() - path.stat().st_mtime) > _UNREADABLE_S:
                _put_aside(folder, NOBODY, me)
        time.sleep(_SHORTLY_S)
        return None
    if owner is None:
        time.sleep(_SHORTLY_S)
    return owner


def _put_aside(folder: Path, seen: Owner, me: Owner) -> bool:
    """Remove the lease of ``seen``; returns whether this process did so."""
    lease, aside = folder / _LEASE, folder / f".{_LEASE}.{me.host}.{me.pid}.gone"
    if owner_in(lease) != seen:
        return False
    try:
        lease.rename(aside)
    except FileNotFoundError:
        return False
    # Another claimant may have replaced the lease since the check: then put the new one back.
    try:
        if owner_in(aside) == seen:
            return True
        with suppress(FileExistsError):
            os.link(aside, lease)
        return False
    finally:
        aside.unlink(missing_ok=True)


def _adopted(kept: Result | NewerResult) -> Claim:
    return Claim("adopted", result=None if isinstance(kept, NewerResult) else kept)


def _kept_since(folder: Path, when_s: float, seen_ns: int | None) -> Result | NewerResult | None:
    """The kept result if it is newer than ``when_s``, or was written while the claimant waited.

    A result of a newer ddlbench is returned as the error that says so. The times of the file alone
    tell that it was written during the wait, so clocks that are set meanwhile do no harm.
    """
    changed = _changed_ns(folder)
    if changed is None:
        return None
    if changed == seen_ns and (changed <= when_s * 1e9 or _lies_ahead(changed, folder)):
        return None
    try:
        return read_result(folder / _KEPT)
    except NewerResult as newer:
        return newer
    except InvalidResult:
        return None


def _lies_ahead(changed_ns: int, folder: Path) -> bool:
    """Whether a time is later than now, as in files that a host with a fast clock wrote."""
    now_s = clock_s(folder)
    return now_s is not None and changed_ns > (now_s + _SHORTLY_S) * 1e9


def _changed_ns(folder: Path) -> int | None:
    """When the kept result was written; None without one."""
    with suppress(OSError):
        return (folder / _KEPT).stat().st_mtime_ns
    return None


@contextmanager
def heartbeat(folder: Path, beat_s: float = _BEAT_S) -> Iterator[None]:
    """Touch the heartbeat of a cell's folder until the block ends.

    The lease must be released within the block: without a heartbeat it soon counts as left over.
    """
    file, stop = folder / HEARTBEAT, threading.Event()

    def touch() -> None:
        with suppress(OSError):  # a full disk must not end a cell that would fit otherwise
            file.touch()

    def beat() -> None:
        while not stop.wait(beat_s):
            touch()

    touch()
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with suppress(OSError):
            file.unlink(missing_ok=True)
