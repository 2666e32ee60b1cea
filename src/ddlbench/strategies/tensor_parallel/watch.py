"""What a rank did when, within a step: computing, or speaking with the others of its group.

::

    forward | halo | forward | gather | forward | backward | all_reduce | backward | ... | update

Every exchange is waited for where it stands, so a step is one piece after the other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["KEPT_STEPS", "Watch"]

Span = tuple[str, int, float, float]

# Steps whose spans are kept: the last ones of a run. A deep network has a thousand spans a step.
KEPT_STEPS = 5


class Watch:
    """Times exchanges, and what lies between them, by this host's monotonic clock.

    Attributes:
        wait_s: all exchanges of the run so far.
    """

    def __init__(self) -> None:
        self.wait_s = 0.0
        self._mini_batch = 0
        self._phase = ""  # empty between steps
        self._since = 0.0
        self._spans: deque[list[Span]] = deque(maxlen=KEPT_STEPS)

    def begin_run(self, first: int) -> None:
        """Forget earlier runs; the next step is of mini-batch ``first``."""
        self._spans.clear()
        self.wait_s = 0.0
        self._mini_batch = first - 1

    def begin_step(self) -> None:
        """The forward pass of the next mini-batch begins."""
        self._mini_batch += 1
        self._spans.append([])
        self._phase, self._since = "forward", time.perf_counter()

    def phase(self, name: str) -> None:
        """From now on the rank computes something else; an empty name ends the step."""
        self._computed_until(time.perf_counter())
        self._phase = name

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Time an exchange."""
        start = time.perf_counter()
        self._computed_until(start)
        yield
        self._since = time.perf_counter()
        self.wait_s += self._since - start
        if self._phase:
            self._spans[-1].append((kind, self._mini_batch, start, self._since))

    def spans(self) -> list[Span]:
        """(kind, mini-batch, start, end) of the last steps."""
        return [span for step in self._spans for span in step]

    def _computed_until(self, now: float) -> None:
        if self._phase:
            self._spans[-1].append((self._phase, self._mini_batch, self._since, now))
        self._since = now
