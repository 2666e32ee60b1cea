"""Starting daemons, and ending exactly those: a process is known by its pid and its start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import TestBedError
from .shell import system_environment

_CHILDREN: list[subprocess.Popen[bytes]] = []  # kept, so that none is collected while it runs


@dataclass(frozen=True)
class Identity:
    """One process, even after its pid is given to another; ``boot`` tells machine starts apart."""

    pid: int
    started: int
    boot: str


def identify(pid: int) -> Identity | None:
    """Identity of a running process; None for a dead one or a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of this process that ended
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Identity(pid, int(fields[19]), boot)


def alive(process: Identity) -> bool:
    """Whether this very process runs."""
    return identify(process.pid) == process


def spawn(command: Sequence[str], log: Path, **environment: str) -> Identity:
    """Start a daemon that outlives this process; what it prints goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd="/",
            env={**system_environment(), **environment},
            start_new_session=True,
        )
    _CHILDREN.append(child)
    identity = identify(child.pid)
    if identity is None:
        raise TestBedError(f"`{command[0]}` ended at once: {tail(log)}")
    return identity


def end(processes: Iterable[Identity], grace_s: float = 5.0) -> None:
    """End the processes: politely, then for certain."""
    left = list(processes)
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        left = [process for process in left if alive(process)]
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        limit = time.monotonic() + patience_s
        while any(alive(process) for process in left) and time.monotonic() < limit:
            time.sleep(0.05)


def wait_until(ready: Callable[[], bool], seconds: float, failure: Callable[[], str]) -> None:
    """Wait for ``ready``.

    Raises:
        TestBedError: with the text of ``failure``, when time is up.
    """
    limit = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > limit:
            raise TestBedError(failure())
        time.sleep(0.1)


def tail(log: Path, lines: int = 3) -> str:
    """The last lines of a log in one."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        text = ""
    return " | ".join(text.splitlines()[-lines:]) or f"{log} is empty"
