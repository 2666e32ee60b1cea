"""Seconds of many pieces, collected over passes, and what a profile says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, Literal

from ddlbench.experiment.statistics import is_known, median_interval
from ddlbench.profiling.clock import Marks

__all__ = ["Phase", "Samples", "Span", "median_with_interval"]

Phase = Literal["forward", "backward"]
Span = tuple[int, int]


class Samples:
    """Busy seconds of pieces by phase and batch size, and the stretch of all of them together."""

    def __init__(self) -> None:
        self._values: dict[tuple[Hashable, Phase], dict[int, list[float]]] = defaultdict(dict)
        self._busy_s = 0.0
        self._wall_s = 0.0

    def add(
        self, piece: Hashable, phase: Phase, batch_size: int, marks: Marks, span: Span | None
    ) -> None:
        """One pass of a piece; no span means that there was nothing to do."""
        busy_s = 0.0
        if span is not None:
            busy_s = max(marks.busy_s(*span), 0.0)
            self._busy_s += busy_s
            self._wall_s += marks.wall_s(*span)
        self._values[piece, phase].setdefault(batch_size, []).append(busy_s)

    @property
    def stretch(self) -> float:
        """Wall seconds over busy seconds of everything."""
        return self._wall_s / self._busy_s if self._busy_s > 0 else 1.0

    def timings(self, piece: Hashable, phase: Phase) -> list[dict[str, Any]]:
        """Entries of profile.json, one a batch size, ascending."""
        entries = []
        for batch_size, values in sorted(self._values.get((piece, phase), {}).items()):
            time_s, interval_s = median_with_interval(values)
            entries.append(
                {
                    "batch_size": batch_size,
                    "time_s": time_s * self.stretch,
                    "interval_s": interval_s and [end * self.stretch for end in interval_s],
                }
            )
        return entries

    def total_s(self, batch_size: int) -> float:
        """Sum of the medians of all pieces and phases at one batch size."""
        return self.stretch * sum(
            median_with_interval(values[batch_size])[0]
            for values in self._values.values()
            if batch_size in values
        )


def median_with_interval(values: Sequence[float]) -> tuple[float, list[float] | None]:
    """Median and 95 % rank-based interval; None where one value is all there is."""
    found = median_interval(values)
    return found.median, [found.low, found.high] if is_known(found) else None
