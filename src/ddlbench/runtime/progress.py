"""Progress of a cell: rank 0 prints marked lines, and the supervisor shows them as a bar."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

MARK = "\x1eddlbench-progress "
_REPORT_EVERY_S = 0.5
_LINE_EVERY_S = 15.0


class Reporter:
    """Counts completed steps of a process and prints a marked line every half second.

    Args:
        total_steps: warm-up and measured steps.
        batch_size: samples of one step over all workers.

    Attributes:
        on_step: called after each step with its number in the whole run.
    """

    def __init__(self, total_steps: int, batch_size: int) -> None:
        self._total, self._batch_size = total_steps, batch_size
        self._before = 0
        self._last_time, self._last_step = time.perf_counter(), 0
        self.on_step: Callable[[int], None] = lambda _step: None

    def phase_done(self, steps: int) -> None:
        """End a phase of ``steps`` steps; the next phase counts on from there."""
        self._before += steps

    @staticmethod
    def phase(name: str) -> None:
        """Mark the moment at which the phase "measured" begins, or is "done"."""
        print(MARK + json.dumps({"phase": name}), flush=True)

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


class Display:
    """A progress bar on a terminal; elsewhere a plain line every 15 seconds."""

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
        """Show the content of a marked line; a malformed one is ignored."""
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
        if self._bar is not None:
            self._bar.stop()


def phase_in(line: str) -> str | None:
    """Name of the phase that a line marks; None for any other line."""
    _, mark, payload = line.partition(MARK)
    if not mark:
        return None
    try:
        return str(json.loads(payload)["phase"])
    except (ValueError, KeyError, TypeError):
        return None
