r"""Worlds of ranks that start in milliseconds, as forks of one process that has imported torch.

::

    caller -- fork server (modules imported, no thread) -+- rank 0 of a world
           \                                             +- rank 1
            store of the world (TCP)

The fork server lives as long as its caller, a test run or ``ddlbench check``. Each rank of each
world is a new process, so that nothing leaks from one world into the next: process groups, random
numbers, Horovod's one world.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import io
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, Store, TCPStore

from ddlbench.common.environment import environment
from ddlbench.experiment.registry import STRATEGIES
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.environment import use_short_socket_folder

# A rank's work on one item: (item, rank, store of this item or None) -> result.
Work = Callable[[Any, int, Store | None], Any]

START_LIMIT_S = 300.0  # ranks start slowly on a busy machine
STACKS_S = 2.0  # time for a hung rank to write its stacks
# What a rank's main module imports once more: that of the command, or of the test run.
_MAIN_MODULES = ("ddlbench.cli", "pytest")
_OPTIONAL = ("horovod.torch",)


class WorkError(Exception):
    """An error that the caller gets as it was raised; its arguments can be pickled."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank failed.

    Args:
        rank: its number.
        text: its traceback, or how it ended.
        error: the :class:`WorkError` that it raised; None of any other end.
        exit_code: of a process that ended without a word, negative after a signal; else None.
    """

    rank: int
    text: str
    error: WorkError | None = None
    exit_code: int | None = None


class RanksFailedError(AssertionError):
    """A rank failed, or the world hung and was killed; the message lists each rank's item.

    Args:
        message: of all ranks.
        hung: whether no rank gave a sign of life for too long.
        ends: of the ranks that failed.
    """

    def __init__(self, message: str, hung: bool, ends: Sequence[RankEnd]) -> None:
        super().__init__(message)
        self.hung, self.ends = hung, tuple(ends)


@cache
def _server() -> Any:
    """The context whose fork server has imported the modules that ranks need."""
    modules = ["torch", "torch._dynamo", "ddlbench.networks", "ddlbench.runtime.worker"]
    modules += ["ddlbench.equivalence.look", "ddlbench.equivalence.one_device"]
    modules += [strategy_of(name).executor.partition(":")[0] for name in STRATEGIES]
    modules += ["pydantic.dataclasses", "pydantic.type_adapter"]  # for the options of strategies
    further = (*_MAIN_MODULES, *_OPTIONAL)
    modules += [name for name in further if importlib.util.find_spec(name.partition(".")[0])]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(modules)
    use_short_socket_folder()
    with environment(OMP_NUM_THREADS="1"):  # a process with threads must not fork
        forkserver.ensure_running()
    return context


@dataclass(frozen=True)
class _World:
    """The work of all ranks of a world."""

    work: Work
    items: Sequence[Any]
    size: int
    port: int
    folder: str
    environment: Mapping[str, str]
    quiet: bool = False

    def serve(self, rank: int, messages: Connection) -> None:
        """Do all items as one rank; send the current item and each result."""
        os.environ.clear()
        os.environ.update(self.environment)
        torch.set_num_threads(1)
        if self.quiet:
            _silence()
        stacks = (Path(self.folder) / f"stacks{rank}.txt").open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        try:
            store = TCPStore("127.0.0.1", self.port, is_master=False) if self.size > 1 else None
            for number, item in enumerate(self.items):
                messages.send(("at", name_of(item)))
                item_store = PrefixStore(str(number), store) if store is not None else None
                buffer = io.BytesIO()
                torch.save(self.work(item, rank, item_store), buffer)
                messages.send(("result", buffer.getvalue()))
        except BaseException as error:
            known = error if isinstance(error, WorkError) else None
            messages.send(("raised", RankEnd(rank, traceback.format_exc(), known)))
            os._exit(1)
        # _exit skips the teardown of libraries whose threads still run.
        messages.send(("done", None))
        messages.close()
        os._exit(0)


def _silence() -> None:
    """Drop what this process, and code that is not Python, would print."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def name_of(item: Any) -> str:
    """A cell's id, or what stands for it."""
    return str(getattr(item, "id", item))


@dataclass
class _Rank:
    """A rank's process and messages, in the caller's process."""

    number: int
    process: Any
    messages: Connection
    at: str = "it has not begun"
    results: list[Any] = field(default_factory=list)
    end: RankEnd | None = None

    def hear(self) -> bool:
        """Read one message; False after the last one."""
        try:
            kind, value = self.messages.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            self.end = RankEnd(self.number, f"ended with exit code {code}", exit_code=code)
            return False
        if kind == "at":
            self.at = value
        elif kind == "result":
            self.results.append(torch.load(io.BytesIO(value), weights_only=False))
        elif kind == "raised":
            self.end = value
        return kind in ("at", "result")


def run_ranks(
    work: Work, items: Sequence[Any], world_size: int, limit_s: float = 120, *, quiet: bool = False
) -> list[list[Any]]:
    """Do every item in one world of ranks.

    Args:
        work: a function of a module, or a ``partial`` of one.
        items: cells, or other arguments of ``work``.
        world_size: number of ranks.
        limit_s: a world hangs if no rank begins or ends an item for so long, once all ranks have
            begun their first.
        quiet: whether what ranks print is dropped.

    Returns:
        For each item the results of all ranks.

    Raises:
        RanksFailedError: a rank failed or the world hung, and was killed.
    """
    context = _server()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        world = _World(work, items, world_size, store.port, folder, dict(os.environ), quiet)
        ranks = []
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=world.serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            ranks.append(_Rank(rank, process, ours))
        try:
            hung = _listen(ranks, limit_s)
            ends = [rank_run.end for rank_run in ranks if rank_run.end is not None]
            if hung or ends:
                raise RanksFailedError(_where(ranks, hung, Path(folder)), hung, ends)
        finally:
            for rank_run in ranks:
                rank_run.process.kill()
                rank_run.process.join()
                rank_run.messages.close()
    return [
        list(of_item) for of_item in zip(*(rank_run.results for rank_run in ranks), strict=True)
    ]


def _listen(ranks: list[_Rank], limit_s: float) -> bool:
    """Read messages of all ranks until they are done or one fails; True if they hang."""
    heard: set[int] = set()
    speaking: dict[Any, int] = {rank.messages: number for number, rank in enumerate(ranks)}
    while speaking and not any(rank.end for rank in ranks):
        patience_s = limit_s if len(heard) == len(ranks) else START_LIMIT_S
        ready = wait(list(speaking), timeout=patience_s)
        if not ready:
            return True
        for messages in ready:
            number = speaking[messages]
            heard.add(number)
            if not ranks[number].hear():
                del speaking[messages]
    return False


def _where(ranks: list[_Rank], hung: bool, folder: Path) -> str:
    """The error message: each rank's item, and its error or stacks."""
    if hung:
        for rank in ranks:
            if rank.process.is_alive():
                os.kill(rank.process.pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
    lines = ["the ranks hang" if hung else "a rank failed"]
    for number, rank in enumerate(ranks):
        lines.append(f"rank {number}: {rank.at}, {len(rank.results)} done")
        if rank.end is not None:
            lines.append(rank.end.text)
        elif hung:
            lines.append((folder / f"stacks{number}.txt").read_text())
    return "\n".join(lines)
