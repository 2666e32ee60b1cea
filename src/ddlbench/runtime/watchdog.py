"""Watch a cell's ranks until they end, one fails, time is up, or nothing moves any more.

::

    lines of the ranks -> log.txt           progress -> bar, and the watchdog's last sign of life
    a rank fails       -> the others get a few seconds to report, then all end
    time is up         -> all end: the result is 'timeout'
    nothing moves      -> every rank dumps its stacks into the log, then all end: a failure
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ddlbench.runtime.launch import Launch
from ddlbench.runtime.progress import MARK, Display

__all__ = ["Outcome", "watch"]

_TAIL_LINES = 40
_FOLLOWERS_S = 5.0
_DUMP_S = 3.0
_LOOK_S = 2.0


@dataclass
class Outcome:
    """How the watching ended.

    Args:
        timed_out: the time limit was reached.
        hung_s: seconds without a finished step, where that ended it.
        tail: last lines of the log.
    """

    timed_out: bool = False
    hung_s: float | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))


def watch(
    launch: Launch, log_path: Path, title: str, *, timeout_s: float, hang_timeout_s: float
) -> Outcome:
    """Follow ``launch`` to its end, or to the point where it must be stopped.

    Args:
        launch: running processes; the caller stops them.
        log_path: gets every line.
        title: for the progress bar.
        timeout_s: the cell's time limit.
        hang_timeout_s: longest time without progress.
    """
    outcome = Outcome()
    display = Display(title)
    deadline = time.monotonic() + timeout_s
    moved, stop_at = time.monotonic(), math.inf
    reports = _Reports(log_path.parent)
    try:
        with log_path.open("w", encoding="utf-8") as log:
            for line in launch.lines(deadline):
                now = time.monotonic()
                if line is not None and _take(line, log, display, outcome):
                    moved = now
                if now > stop_at:
                    break
                if stop_at < math.inf:
                    continue
                if now > deadline:
                    outcome.timed_out = True
                    break
                if launch.has_failed() or reports.tell_of_failure(now):
                    stop_at = now + _FOLLOWERS_S
                elif now - moved > hang_timeout_s:
                    outcome.hung_s = now - moved
                    launch.dump_stacks()
                    stop_at = now + _DUMP_S
    finally:
        display.close()
    return outcome


class _Reports:
    """Reports of ranks that ended badly: srun goes on waiting for a node that does not answer."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next_look = folder, 0.0

    def tell_of_failure(self, now: float) -> bool:
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        for path in self._folder.glob("rank*.json"):
            if json.loads(path.read_text(encoding="utf-8")).get("status") != "ok":
                return True
        return False


def _take(line: str, log: TextIO, display: Display, outcome: Outcome) -> bool:
    """Handle one line; whether it tells of progress."""
    before, mark, payload = line.partition(MARK)
    if mark:
        display.update(payload)
        return True
    log.write(before + "\n")
    log.flush()
    outcome.tail.append(before)
    return False
