"""Starts the ranks of a node as forks of one process, so that torch is imported once for all.

A rank takes 1.5 s of a core to import torch, and one more for its compiler, which DDP, FSDP and
torchvision import. On a machine of few cores the ranks of a cell would wait for each other::

    supervisor -- starter   imports torch, its compiler, a built-in executor and network
                    |-- fork -> guard 0 -- fork -> rank 0     output: a pipe to the supervisor
                    '-- fork -> guard 1 -- fork -> rank 1     output: another
                  prints the process of each guard, and later its exit status

A guard leads a session, as one that the supervisor starts itself. The starter ends with the
supervisor, and its guards end with it (``rank_guard.py``).
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import NoReturn

import numpy

from ddlbench.common.program import without_collections
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import NETWORKS, STRATEGIES, load
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.job import Job
from ddlbench.runtime.launch import LISTEN_FD, fork_line, identity_variables
from ddlbench.runtime.rank_guard import end_with_parent, guard, name_process

# The largest that Linux knows (proc(5)). Shared pages count for each process that touched them: a
# starter is larger than a rank of a small network, and all ranks would end with it.
_FIRST_TO_KILL = "1000"


class Fork:
    """A fork of this process, which calls ``work``, and ends with this process."""

    def __init__(self, work: Callable[[], NoReturn]) -> None:
        self._ended, parent = False, os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            end_with_parent()
            if os.getppid() != parent:  # it ended before that call
                os._exit(1)
            work()

    def wait(self) -> int:
        """Its exit status, or the negative number of the signal that ended it."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._ended = True  # its number is not given to another process before the next line
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if not self._ended:
            os.kill(self.pid, number)


def main(job_path: str, listener: str, *outputs: str) -> NoReturn:
    """Start ranks, and exit with 0 when all have ended.

    Args:
        job_path: of the cell.
        listener: number of the file of the rendezvous, which rank 0 gets; "-" without one.
        outputs: rank and number of the file of its output, as ``3:7``.
    """
    end_with_parent()
    job = Job.load(Path(job_path))
    with without_collections():  # and so without copies of pages in the forks
        _import_parts(job.plan.cell)
    # It ends after its guards, which the supervisor ends, or has dump the stacks of their ranks.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    files = {int(rank): int(file) for rank, file in (entry.split(":") for entry in outputs)}
    listens = None if listener == "-" else int(listener)
    guards = {}
    for process in job.plan.processes:
        if process.rank in files:
            fork = Fork(partial(_be_guard, job_path, process, files, listens))
            guards[fork.pid] = process.rank
            print(fork_line(process.rank, fork.pid), flush=True)
    _close(files.values(), listens)
    while guards:
        pid, status = os.wait()
        if pid in guards:  # else it is of something that was imported
            print(fork_line(guards.pop(pid), pid, os.waitstatus_to_exitcode(status)), flush=True)
    os._exit(0)  # Python's teardown takes half a second


def _import_parts(cell: Cell) -> None:
    """Import what ranks would; a user's network or executor is left to them, as it may do more."""
    importlib.import_module("ddlbench.runtime.worker")
    with suppress(Exception):  # a rank meets the error again, and reports it
        importlib.import_module("torch._dynamo")  # for DDP, FSDP, torchvision, shapes of stages
        if cell.strategy in STRATEGIES:
            resolve_name(strategy_of(cell.strategy).executor)
        if cell.network in NETWORKS.built_in and Accelerator.of_this_process() is None:
            load(NETWORKS.group, cell.network)


def _close(files: Iterable[int], listens: int | None) -> None:
    for file in (*files, *([] if listens is None else [listens])):
        os.close(file)


def _be_guard(
    job_path: str, process: Process, files: Mapping[int, int], listens: int | None
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        for output in (sys.stdout, sys.stderr):
            os.dup2(files[process.rank], output.fileno())
        if process.rank == 0 and listens is not None:
            os.environ[LISTEN_FD], listens = str(listens), None
        _close(files.values(), listens)
        os.environ.update(identity_variables(process))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        name_process(f"guard-{process.rank}")
        code = guard(job_path, lambda: Fork(partial(_be_rank, job_path)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _be_rank(job_path: str) -> NoReturn:
    from ddlbench.runtime import worker  # noqa: PLC0415 - it was imported before

    with suppress(OSError):  # where memory lacks, the kernel kills a rank before who reports it
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_KILL, encoding="ascii")
    numpy.random.seed()  # else forks draw the same numbers; Python's own reseed themselves
    worker.main(job_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
