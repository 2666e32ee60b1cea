"""Follow the ranks of a cell to their end, and stop them when they fail or hang.

::

    lines of the ranks -> log.txt           marked lines -> progress, a sign of life
    a rank fails       -> the others get a few seconds to report, then all end
    time is up         -> all end: the result is 'timeout'
    no progress        -> every rank dumps its stacks into the log, then all end: a failure
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ddlbench.common.text import read_json
from ddlbench.runtime.launch import Launch
from ddlbench.runtime.progress import MARK, Display, Shows

_TAIL_LINES = 40
_OTHERS_REPORT_S = 5.0
_DUMP_S = 3.0
_CHECK_REPORTS_S = 2.0


@dataclass
class Outcome:
    """How the ranks ended."""

    timed_out: bool = False  # the time limit was reached
    hung_s: float | None = None  # seconds without a finished step, if they were stopped for that
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))  # of the log
    # Before the ranks were stopped: those with a report, and signals that ended guards.
    reported: frozenset[int] = frozenset()
    guards_killed: dict[int, int] = field(default_factory=dict)


def watch(
    launch: Launch,
    log_path: Path,
    title: str,
    *,
    timeout_s: float,
    hang_timeout_s: float,
    display: Shows | None = None,
) -> Outcome:
    """Follow ``launch`` until it ends or must be stopped; no process is left when this returns.

    The log gets every line; the ranks' reports appear beside it. Without a display, a bar shows
    progress. ``hang_timeout_s`` is the longest time without any.
    """
    outcome = Outcome()
    display = display or Display(title, folder=log_path.parent)
    deadline = time.monotonic() + timeout_s
    moved, stop_at = time.monotonic(), math.inf
    reports = _Reports(log_path.parent)
    try:
        with log_path.open("w", encoding="utf-8") as log:
            for line in launch.lines(deadline):
                now = time.monotonic()
                display.tick()
                if line is not None and _log_or_show(line, log, display, outcome):
                    moved = now
                if now > stop_at:
                    break
                if stop_at < math.inf:
                    continue
                if now > deadline:
                    outcome.timed_out = True
                    break
                if launch.has_failed() or reports.show_failure(now):
                    stop_at = now + _OTHERS_REPORT_S
                elif now - moved > hang_timeout_s:
                    outcome.hung_s = now - moved
                    launch.dump_stacks()
                    stop_at = now + _DUMP_S
    finally:
        display.close()
        outcome.reported, outcome.guards_killed = reports.ranks(), launch.killed()
        launch.stop()
    return outcome


class _Reports:
    """Reports of failed ranks. srun itself may wait forever for a node that does not answer."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next_check = folder, 0.0

    def show_failure(self, now: float) -> bool:
        if now < self._next_check:
            return False
        self._next_check = now + _CHECK_REPORTS_S
        return any(read_json(path).get("status") != "ok" for path in self._files())

    def ranks(self) -> frozenset[int]:
        """Ranks that have reported, whatever it was."""
        return frozenset(int(path.stem.removeprefix("rank")) for path in self._files())

    def _files(self) -> list[Path]:
        return list(self._folder.glob("rank*.json"))


def _log_or_show(line: str, log: TextIO, display: Shows, outcome: Outcome) -> bool:
    """Show a marked line as progress, log any other; returns whether it was progress."""
    before, mark, payload = line.partition(MARK)
    if mark:
        display.update(payload)
        return True
    log.write(before + "\n")
    log.flush()
    outcome.tail.append(before)
    return False
