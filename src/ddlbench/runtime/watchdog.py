"""Follows the ranks of a cell to their end, shows their progress, and stops them when they hang.

::

    lines of the ranks -> log.txt           marked lines -> progress, a sign of life
    a rank fails       -> the others get a few seconds to report, then all end
    time is up         -> all end: the result is 'timeout'
    no progress        -> every rank dumps its stacks into the log, then all end: a failure

Rank 0 prints marked lines, which the supervisor shows and files::

    rank 0, between steps      a marked line every half second
    supervisor, its process    a bar, or a line every 15 s; progress.json every 5 s, for `status`
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ddlbench.common.document import read_json
from ddlbench.common.quantities import two_digits
from ddlbench.common.screen import shortened, terminal_width
from ddlbench.experiment.paths import PROGRESS_FILE
from ddlbench.runtime.launch import Launch

MARK = "\x1eddlbench-progress "
_LABEL = re.compile(r"\[\d+\] |\s*\d+: |")  # of the rank: ours, or srun's
_REPORT_EVERY_S = 0.5
_LINE_EVERY_S = 15.0
_FILE_EVERY_S = 5.0
_INDENT = " " * 8  # under the names of the run's table

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
    # Before the ranks were stopped: those with a report, and how guards ended.
    reported: frozenset[int] = frozenset()
    guards_ended: dict[int, int] = field(default_factory=dict)


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
                if launch.has_failed() or reports.show_failure(now, launch):
                    stop_at = now + _OTHERS_REPORT_S
                elif now - moved > hang_timeout_s:
                    outcome.hung_s = now - moved
                    launch.dump_stacks()
                    stop_at = now + _DUMP_S
    finally:
        display.close()
        outcome.reported, outcome.guards_ended = reports.ranks(), launch.ended()
        launch.stop()
    return outcome


class _Reports:
    """Reports of ranks. srun itself may wait forever for a node that does not answer."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next_check = folder, 0.0

    def show_failure(self, now: float, launch: Launch) -> bool:
        """Whether a rank has reported a failure, or has ended without any report."""
        if now < self._next_check:
            return False
        self._next_check = now + _CHECK_REPORTS_S
        ended = launch.ended().keys()  # before the reports, which ranks write before they end
        return bool(ended - self.ranks()) or any(
            read_json(path).get("status") != "ok" for path in self._files()
        )

    def ranks(self) -> frozenset[int]:
        """Ranks that have reported, whatever it was."""
        return frozenset(int(path.stem.removeprefix("rank")) for path in self._files())

    def _files(self) -> list[Path]:
        return list(self._folder.glob("rank*.json"))


def _log_or_show(line: str, log: TextIO, display: Shows, outcome: Outcome) -> bool:
    """Show a mark as progress, log all other text; returns whether it was progress."""
    before, mark, payload = line.partition(MARK)
    if mark:
        display.update(payload)
    if not (mark and _LABEL.fullmatch(before)):  # a rank may print before it without a newline
        log.write(before + "\n")
        log.flush()
        outcome.tail.append(before)
    return bool(mark)


class Reporter:
    """Counts completed steps of a process and prints a marked line every half second.

    Attributes:
        on_step: called after each step with its number in the whole run.
    """

    def __init__(self, total_steps: int, batch_size: int) -> None:
        self._total, self._batch_size = total_steps, batch_size
        self._before = 0
        self._last_time, self._last_step = time.perf_counter(), 0
        self._last_sign = -_REPORT_EVERY_S
        self.on_step: Callable[[int], None] = lambda _step: None

    def phase_done(self, steps: int) -> None:
        """End a phase of ``steps`` steps; the next phase counts on from there."""
        self._before += steps

    @staticmethod
    def phase(name: str) -> None:
        """Mark the moment at which the phase "measured" begins, or is "done"."""
        print(MARK + json.dumps({"phase": name}), flush=True)

    def alive(self) -> None:
        """Give a sign of life in work that is no step, every half second at most."""
        now = time.perf_counter()
        if now - self._last_sign >= _REPORT_EVERY_S:
            self._last_sign = now
            self.phase("validating")

    def __call__(self, done: int) -> None:
        """Report that ``done`` steps of the current phase are complete."""
        self.on_step(self._before + done)
        now = time.perf_counter()
        if now - self._last_time < _REPORT_EVERY_S:
            return
        step = self._before + done
        rate = (step - self._last_step) * self._batch_size / (now - self._last_time)
        self._last_time, self._last_step = now, step
        line = json.dumps({"step": step, "total": self._total, "samples_per_s": rate})
        print(MARK + line, flush=True)


class Shows(Protocol):
    """What shows the progress of processes while the watchdog follows them."""

    def update(self, payload: str) -> None:
        """Take the content of a marked line."""

    def tick(self) -> None:
        """Look at the clock; called every half second at least."""

    def close(self) -> None:
        """The processes have ended."""


class Display:
    """A progress bar on a terminal; elsewhere a plain line every 15 seconds.

    Args:
        title: of the cell.
        stream: standard error if left out.
        folder: gets ``progress.json``, which `ddlbench status` reads.
    """

    def __init__(
        self, title: str, stream: TextIO | None = None, folder: Path | None = None
    ) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._folder = folder
        self._last_line, self._last_file = time.monotonic(), -_FILE_EVERY_S
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
        """Show and file the content of a marked line; a malformed one is ignored."""
        try:
            state = json.loads(payload)
            step, total = int(state["step"]), int(state["total"])
            rate = float(state["samples_per_s"])
        except (ValueError, KeyError, TypeError):
            return
        now = time.monotonic()
        if self._folder is not None and now - self._last_file >= _FILE_EVERY_S:
            self._last_file = now
            _write_step(self._folder / PROGRESS_FILE, step, total)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, total=total, rate=two_digits(rate))
        elif now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            numbers = f"   step {step}/{total}   {two_digits(rate)} images/s"
            room = terminal_width() - len(_INDENT) - len(numbers)
            print(
                f"{_INDENT}{shortened(self._title, room)}{numbers}", file=self._stream, flush=True
            )

    def tick(self) -> None:
        """Nothing moves between marked lines."""

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _write_step(path: Path, step: int, total: int) -> None:
    """Replace the file at once, without waiting for the disk; a full disk stops no cell."""
    new = path.with_name(f".{path.name}.new")
    with suppress(OSError):
        new.write_text(json.dumps({"step": step, "total": total}), encoding="utf-8")
        new.replace(path)


def phase_in(line: str) -> str | None:
    """Name of the phase that a line marks; None for any other line."""
    _, mark, payload = line.partition(MARK)
    if not mark:
        return None
    try:
        return str(json.loads(payload)["phase"])
    except (ValueError, KeyError, TypeError):
        return None
