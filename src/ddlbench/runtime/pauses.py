"""Pauses of a rank: times in which it stood still, although it waited for nobody.

::

    guard   tick  tick |  SIGSTOP of the whole job, a stopped machine  | tick      the tick is late,
    rank    computes   |                                               | computes  and the rank idle

    guard   tick  tick  tick  tick  tick  tick  tick                               the rank is seen
    rank    computes   | SIGSTOP of this rank alone | computes                     in state T

The meter runs in the guard of a rank (``rank_guard.py``): the guard is idle, so its ticks are late
only if it could not run. A thread of the rank itself would be late, too, whenever a library holds
Python's lock, be it to compute or to wait for other ranks.

A late tick alone is no pause: a guard may have to wait for a core or for memory while its rank
computes on. So the clock is compared with the processor time of the rank: in a pause it takes none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from ddlbench.common.form import Form

TICK_S = 0.25
SHORTEST_S = 1.5
"""What is shorter is no pause: a busy machine may delay a process as long."""

_LEAST_PART_S = 2 * TICK_S  # of a pause within measured steps; ends are known to a tick
_BUSY = 0.25  # a rank computes if it takes more than this share of the processor time before
_REMEMBERED = 9  # ticks, from which that time is known

# The clock of all processes of a machine; it goes on while the machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_s() -> float:
    """Seconds since the machine started, those in which it slept included."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class Pause(Form):
    """One pause; ``begin_s`` is by :func:`clock_s`. Both numbers are exact to a tick."""

    begin_s: float
    seconds: float

    @property
    def end_s(self) -> float:
        return self.begin_s + self.seconds


class ProcessState(NamedTuple):
    """What the kernel tells of a process: whether it is stopped, and its processor time."""

    stopped: bool
    cpu_s: float


def state_of(pid: int) -> ProcessState | None:
    """The state of a process, all of its threads together; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # the name before may hold anything
        user, system = int(fields[11]), int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    return ProcessState(fields[0] in ("T", "t"), (user + system) / os.sysconf("SC_CLK_TCK"))


class _Tick(NamedTuple):
    at_s: float
    state: ProcessState | None


class PauseMeter:
    """Notes the pauses of a process while the block runs.

    Attributes:
        pauses: those that have ended; after the block all.
    """

    def __init__(
        self, state: Callable[[], ProcessState | None], clock: Callable[[], float] = clock_s
    ) -> None:
        self.pauses: list[Pause] = []
        self._state, self._clock = state, clock
        self._ticks: deque[_Tick] = deque(maxlen=_REMEMBERED)
        self._since_s: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pause meter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.finish()

    def tick(self) -> None:
        """Look at the clock and at the process."""
        now = _Tick(self._clock(), self._state())
        if self._ticks:
            begin_s = self._pause_until(now)
            if begin_s is None:
                self.finish()
            elif self._since_s is None:
                self._since_s = begin_s
        self._ticks.append(now)

    def finish(self) -> None:
        """End a pause that goes on, at the last tick."""
        since_s, self._since_s = self._since_s, None
        if since_s is not None and self._ticks[-1].at_s - since_s >= SHORTEST_S:
            self.pauses.append(Pause(since_s, self._ticks[-1].at_s - since_s))

    def _run(self) -> None:
        self.tick()
        while not self._stop.wait(TICK_S):
            self.tick()
        self.tick()

    def _pause_until(self, now: _Tick) -> float | None:
        """Since when the process stood still until ``now``; None if it did not."""
        before = self._ticks[-1]
        if before.state is not None and before.state.stopped:
            return before.at_s
        due_s = before.at_s + TICK_S
        if now.at_s - due_s >= SHORTEST_S and not self._computed_until(now):
            return due_s
        return None

    def _computed_until(self, now: _Tick) -> bool:
        """Whether the process took processor time since the last tick."""
        first, before = self._ticks[0], self._ticks[-1]
        if first.state is None or before.state is None or now.state is None:
            return False
        rate = 0.0
        if before.at_s > first.at_s:
            rate = (before.state.cpu_s - first.state.cpu_s) / (before.at_s - first.at_s)
        # It may have computed until a tick was due; a rank that waits for others takes none.
        least_s = max(TICK_S, _BUSY * rate * (now.at_s - before.at_s))
        return now.state.cpu_s - before.state.cpu_s > least_s


class MeasuredTimes:
    """When the measured steps of a rank ran; each block is a stretch of them.

    Attributes:
        stretches: begin and end of each by :func:`clock_s`.
        from_s: seconds since 1970 at which the first began; None before that.
    """

    def __init__(self) -> None:
        self.stretches: list[tuple[float, float]] = []
        self.from_s: float | None = None
        self._begin_s = 0.0

    def __enter__(self) -> Self:
        self.from_s = self.from_s or time.time()
        self._begin_s = clock_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.stretches.append((self._begin_s, clock_s()))


def within(pauses: Iterable[Pause], stretches: Iterable[tuple[float, float]]) -> tuple[Pause, ...]:
    """What of the pauses lies in stretches of measured steps; crumbs are left out."""
    parts = [
        (max(pause.begin_s, begin_s), min(pause.end_s, end_s))
        for begin_s, end_s in stretches
        for pause in pauses
    ]
    return tuple(
        Pause(begin_s, end_s - begin_s)
        for begin_s, end_s in parts
        if end_s - begin_s >= _LEAST_PART_S
    )
