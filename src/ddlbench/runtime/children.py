"""Several child processes: what they print, in one stream, and their end."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

__all__ = ["Pipes", "end", "send_signal"]

_GRACE_S = 5.0


class Pipes:
    """Lines of several processes in the order of their arrival."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._open = 0

    def add(self, process: subprocess.Popen[str], prefix: str) -> None:
        """Read what ``process`` prints, too; its lines begin with ``prefix``."""
        self._open += 1
        threading.Thread(target=self._read, args=(process, prefix), daemon=True).start()

    def _read(self, process: subprocess.Popen[str], prefix: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(prefix + line.rstrip("\n"))
        self._lines.put(None)

    def lines(self, deadline: float) -> Iterator[str | None]:
        """Every line until all have closed their output; None now and then."""
        while self._open:
            left_s = deadline - time.monotonic()
            try:
                line = self._lines.get(timeout=max(0.0, min(0.5, left_s)))
            except queue.Empty:
                yield None
                continue
            if line is None:
                self._open -= 1
            else:
                yield line


def send_signal(children: Sequence[subprocess.Popen[str]], number: signal.Signals) -> None:
    """Send a signal to each child that runs."""
    for child in children:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)


def end(children: Sequence[subprocess.Popen[str]]) -> None:
    """End every child and the group that it leads, politely, then for certain."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        running = [child for child in children if child.poll() is None]
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal_number)
        limit = time.monotonic() + _GRACE_S
        while any(child.poll() is None for child in running) and time.monotonic() < limit:
            time.sleep(0.05)
