"""What a process did when: the passes of its stages, and everything between them.

::

    F0.0 | wait | F1.0 | wait | B0.0 | wait | B1.0 | wait | all_reduce | update

A pass is timed around torch's own call. Between passes a process receives, sends and waits for
both; torch does these together, so they are one kind, ``wait``. On the last stage the loss is in it
too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.pipelining import PipelineStage

from ddlbench.planning.schedules import Action
from ddlbench.planning.schedules.action import Kind

__all__ = ["KEPT_STEPS", "StepRecorder"]

Span = tuple[str, int, float, float]

# Steps whose spans are kept: the last ones of a run.
KEPT_STEPS = 20


class StepRecorder:
    """Watches the stages of one process.

    Args:
        stages: whose passes are seen from now on.

    Attributes:
        passes: of the step under way, in the order in which they ran.
    """

    def __init__(self, stages: list[PipelineStage]) -> None:
        self.passes: list[Action] = []
        self._spans: deque[list[Span]] = deque(maxlen=KEPT_STEPS)
        self._step = 0
        for stage in stages:
            self._watch(stage)

    def begin(self, step: int) -> None:
        """A step of the mini-batch ``step`` begins."""
        self.passes = []
        self._step = step
        self._spans.append([])

    def begin_run(self) -> None:
        """Forget the spans of earlier runs."""
        self._spans.clear()

    def spans(self) -> list[Span]:
        """(kind, mini-batch, start, end) of the last steps; a pass is ``forward 3.2``.

        That is micro-batch 3 of the replica on stage 2. Seconds of this host's monotonic clock.
        """
        return [span for step in self._spans for span in _with_waits(step)]

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Time what is done inside."""
        start = time.perf_counter()
        yield
        self._spans[-1].append((kind, self._step, start, time.perf_counter()))

    def _watch(self, stage: PipelineStage) -> None:
        forward, backward = stage.forward_one_chunk, stage.backward_one_chunk
        weight = stage.backward_weight_one_chunk

        def seen(kind: Kind, chunk: int, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
            action = Action(kind, stage.stage_index, chunk)
            self.passes.append(action)
            with self.span(f"{kind} {chunk}.{stage.stage_index}"):
                return call(chunk, *args, **named)

        def backward_seen(chunk: int, *args: Any, full_backward: bool = True, **named: Any) -> Any:
            kind: Kind = "backward" if full_backward else "backward_input"
            return seen(kind, chunk, backward, *args, full_backward=full_backward, **named)

        stage.forward_one_chunk = lambda chunk, *a, **k: seen("forward", chunk, forward, *a, **k)
        stage.backward_one_chunk = backward_seen
        stage.backward_weight_one_chunk = lambda chunk, *a, **k: seen(
            "backward_weight", chunk, weight, *a, **k
        )


def _with_waits(step: list[Span]) -> Iterator[Span]:
    """The spans of a step, and what lies between them."""
    for span, before in zip(step, [None, *step], strict=False):
        if before is not None:
            yield ("wait", span[1], before[3], span[2])
        yield span
