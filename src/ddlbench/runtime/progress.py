"""How far a cell is: rank 0 prints marked lines, the supervisor shows them and ends what hangs.

::

    lines of the ranks -> log.txt           progress -> bar, and the watch's last sign of life
    a rank fails       -> the others get a few seconds to report, then all end
    time is up         -> all end: the result is 'timeout'
    nothing moves      -> every rank dumps its stacks into the log, then all end: a failure
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ddlbench.runtime.launch import Launch

MARK = "\x1eddlbench-progress "
_REPORT_EVERY_S = 0.5
_LINE_EVERY_S = 15.0


class Reporter:
    """Counts completed steps of a process and prints a line now and then.

    Args:
        total_steps: warm-up and measured steps.
        batch_size: samples of one step over all workers.
    """

    def __init__(self, total_steps: int, batch_size: int) -> None:
        self._total, self._batch_size = total_steps, batch_size
        self._before = 0
        self._last_time, self._last_step = time.perf_counter(), 0
        self._tell: Callable[[int], None] | None = None

    def phase_done(self, steps: int) -> None:
        """A run of ``steps`` steps is over; the next counts on."""
        self._before += steps

    def tell(self, somebody: Callable[[int], None]) -> None:
        """From now on somebody hears of every step, by its number in the whole run."""
        self._tell = somebody

    @staticmethod
    def phase(name: str) -> None:
        """Mark the moment: "measured" begins, or is "done"."""
        print(MARK + json.dumps({"phase": name}), flush=True)

    def __call__(self, done: int) -> None:
        """``done`` steps of the current run are complete."""
        if self._tell is not None:
            self._tell(self._before + done)
        now = time.perf_counter()
        if now - self._last_time < _REPORT_EVERY_S:
            return
        step = self._before + done
        rate = (step - self._last_step) * self._batch_size / (now - self._last_time)
        self._last_time, self._last_step = now, step
        line = json.dumps({"step": step, "total": self._total, "samples_per_s": rate})
        print(MARK + line, flush=True)


class Display:
    """A progress bar on a terminal, else a plain line every quarter of a minute."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[rate]} images/s"),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=None, rate="-")
            self._bar.start()

    def update(self, payload: str) -> None:
        """Show one marked line (without its mark); a malformed one is ignored."""
        try:
            state = json.loads(payload)
            step, total = int(state["step"]), int(state["total"])
            rate = float(state["samples_per_s"])
        except (ValueError, KeyError, TypeError):
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=step, total=total, rate=f"{rate:.1f}")
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            print(
                f"{self._title}: step {step}/{total}, {rate:.1f} images/s",
                file=self._stream,
                flush=True,
            )

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def phase_in(line: str) -> str | None:
    """The phase that a line marks; None for any other line."""
    _, mark, payload = line.partition(MARK)
    if not mark:
        return None
    try:
        return str(json.loads(payload)["phase"])
    except (ValueError, KeyError, TypeError):
        return None


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
