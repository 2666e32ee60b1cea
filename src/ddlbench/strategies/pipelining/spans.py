"""What a process did when: the passes of its stages, and everything between them.

::

    F0.0 | wait | F1.0 | wait | B0.0 | wait | B1.0 | wait | all_reduce | update

A pass is timed around torch's own call. Between passes a process receives, sends and waits for
both; torch does these together, so they are one kind, ``wait``. torch's own work on the schedule,
tens of microseconds a pass, is in it too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ddlbench.planning.schedules import Action
from ddlbench.planning.schedules.action import Kind

__all__ = ["KEPT_STEPS", "StepRecorder"]

Span = tuple[str, int, float, float]

# Steps whose spans are kept: the last ones of a run.
KEPT_STEPS = 20


class StepRecorder:
    """Watches the passes of one process.

    Attributes:
        passes: of the step under way, in the order in which they ran.
        wait_s: all waits of the run so far, the average over replicas included.
    """

    def __init__(self) -> None:
        self.passes: list[Action] = []
        self._spans: deque[list[Span]] = deque(maxlen=KEPT_STEPS)
        self.wait_s = 0.0
        self._mini_batch = 0

    def begin_run(self) -> None:
        """Forget earlier runs."""
        self._spans.clear()
        self.wait_s = 0.0

    def begin(self, mini_batch: int) -> None:
        """The step of a mini-batch begins."""
        self.passes = []
        self._mini_batch = mini_batch
        self._spans.append([])

    @contextmanager
    def passing(self, kind: Kind, stage: int, micro_batch: int) -> Iterator[None]:
        """Time a pass."""
        self.passes.append(Action(kind, stage, micro_batch))
        with self.span(f"{kind} {micro_batch}.{stage}"):
            yield

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Time what is done inside."""
        start = time.perf_counter()
        yield
        end = time.perf_counter()
        step = self._spans[-1]
        if step:
            self.wait_s += start - step[-1][3]
        if kind == "all_reduce":
            self.wait_s += end - start
        step.append((kind, self._mini_batch, start, end))

    def spans(self) -> list[Span]:
        """(kind, mini-batch, start, end) of the last steps; a pass is ``forward 3.2``.

        That is micro-batch 3 of the replica on stage 2. Seconds of this host's monotonic clock.
        """
        return [span for step in self._spans for span in _with_waits(step)]


def _with_waits(step: list[Span]) -> Iterator[Span]:
    """The spans of a step, and what lies between them."""
    for span, before in zip(step, [None, *step], strict=False):
        if before is not None:
            yield ("wait", span[1], before[3], span[2])
        yield span
