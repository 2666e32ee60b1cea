"""A light parent process of each rank, on the rank's node, which reports how the rank ended.

A rank that the kernel kills for memory cannot report this, and srun on another node sees only a
signal. The guard compares the cgroup's count of such kills before and after the rank, and writes
the report for it. It also adds the rank's pauses to its report, which the rank itself cannot see.
It passes SIGTERM, SIGINT and SIGUSR1 (dump the stacks) on to the rank. It ends with the supervisor,
and the rank with it, also when it is stopped or stuck::

    supervisor  --killed-->  guard of each rank  --killed-->  rank

Linux sends the signal (``PR_SET_PDEATHSIG``, prctl(2)); elsewhere nothing happens. A parent that
ended before this call has closed its end of the pipe that it reads our output from. Its
process id would say less: in a container the parent may be number 1, and outside another process
than number 1 may adopt us.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Protocol

from ddlbench.runtime.pauses import PauseMeter, state_of

_DUMP_S = 1.0


class Child(Protocol):
    """A rank that was started: a ``Popen``, or a fork of this process."""

    @property
    def pid(self) -> int:
        """Its process."""

    def wait(self) -> int:
        """Its exit status once it has ended; the negative number of the signal that ended it."""

    def send_signal(self, number: int) -> None:
        """Send it a signal."""


def main(job_path: str, *files: str) -> int:
    """Run the rank and return its exit status; it inherits the files of these numbers."""
    return guard(job_path, partial(_start, job_path, [int(number) for number in files]))


_RANK = ("-m", "ddlbench.common.program", "ddlbench.runtime.worker")


def _start(job_path: str, files: list[int]) -> Child:
    return subprocess.Popen(
        [sys.executable, *_RANK, job_path],
        stdin=subprocess.DEVNULL,
        pass_fds=files,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - no other thread runs here
    )


def guard(job_path: str, start: Callable[[], Child]) -> int:
    """Start a rank, guard it until it ends, and return its exit status."""
    end_with_parent()
    # Until the rank dumps its stacks on it, the signal would end guard or rank.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    before = _oom_kills()
    child = start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    signal.signal(signal.SIGUSR1, lambda _received, _frame: _dump(job_path, child))
    with PauseMeter(partial(state_of, child.pid)) as meter:
        code = child.wait()
    if meter.pauses:
        _rank_ending().add_pauses(job_path, meter.pauses)
    if code < 0:
        _rank_ending().report_signal(job_path, -code, _oom_kills() > before)
        return 128 - code
    return code


def _rank_ending() -> ModuleType:
    """What few guards need; its imports would keep every rank waiting for half a second."""
    from ddlbench.runtime import rank_ending as module  # noqa: PLC0415

    return module


def _dump(job_path: str, child: Child) -> None:
    """Have the rank dump its stacks into a file, and print that file."""
    # In one piece: srun would label every small write of the rank as a line of its own.
    child.send_signal(signal.SIGUSR1)
    time.sleep(_DUMP_S)
    path = _rank_ending().stacks_of(job_path)
    stacks = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    print(stacks or "no stacks: the process is still starting", flush=True)


def _oom_kills() -> int:
    """Kills for lack of memory so far in this process's cgroups, else on the whole machine."""
    counts = [count for path in _cgroup_files() if (count := _kills_in(path)) is not None]
    return sum(counts) if counts else _kills_in(Path("/proc/vmstat")) or 0


def _cgroup_files() -> list[Path]:
    """Files that count kills, for cgroup v2 (memory.events) and v1 (memory.oom_control)."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            paths.append(Path(f"/sys/fs/cgroup{path}/memory.events"))
        elif "memory" in controllers.split(","):
            paths.append(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
    return paths


def _kills_in(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None


_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_STDOUT = 1


def name_process(name: str) -> None:
    """Have `ps` and `top` show this process by a name of at most 15 characters, on Linux.

    A space in it would hide the process from SLURM, which cuts ``/proc/<pid>/stat`` at spaces.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), *map(ctypes.c_ulong, (0, 0, 0)))


def end_with_parent() -> None:
    """From now on the kernel kills this process when its parent, or the parent's thread, ends."""
    if not sys.platform.startswith("linux"):
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
    if _nobody_reads():
        os.kill(os.getpid(), signal.SIGKILL)


def _nobody_reads() -> bool:
    """Whether the other end of our output, a pipe or a socket, is closed."""
    output = select.poll()
    output.register(_STDOUT, 0)  # of errors the kernel always tells
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in output.poll(0))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
