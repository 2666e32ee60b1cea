"""What a timeline is made of: rows, and boxes in them; and the same as a file for Chrome.

::

    row 0 | F0 | F1 |         | B0 | B1 | U |      a box: one piece of work, of which mini- or
    row 1      | F0 | B0 | F1 | B1 |               micro-batch, from when to when; white between
                                                   boxes is the bubble
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.experiment.chrome_trace import Piece, chrome_trace
from ddlbench.experiment.errors import ConfigError

# What has a number written into it, and what counts as work.
PASSES = ("forward", "recompute", "backward", "backward_input", "backward_weight")
COMPUTING = frozenset((*PASSES, "loss"))
WAIT = "wait"
# What runs while a device does something else, and several of it at a time.
BESIDE = frozenset(("all_reduce_bucket",))


class InvalidTimeline(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A folder or file that no timeline can be drawn from."""


@dataclass(frozen=True)
class Row:
    """One device.

    Args:
        place: where it is, as ``node 0 · device 1``.
        stages: that it holds; none where the strategy has no stages.
        replica: which copy of them it is; None where there is one.
    """

    place: str
    stages: tuple[int, ...] = ()
    replica: int | None = None

    @property
    def label(self) -> str:
        """What stands to the left of the row."""
        parts = [self.place]
        if self.stages:
            noun = "stage" if len(self.stages) == 1 else "stages"
            parts.append(f"{noun} {', '.join(map(str, self.stages))}")
        if self.replica is not None:
            parts.append(f"replica {self.replica}")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class Box:
    """One piece of work.

    Args:
        row: index of its row.
        kind: "forward", "backward", "backward_input", "backward_weight", "recompute", "loss",
            "all_reduce", "all_reduce_bucket", "update", "wait", or what else a strategy records.
        stage: that it was done for.
        mini_batch: its id.
        micro_batch: within the mini-batch and replica; None where the mini-batch is not split.
        start_s, end_s: seconds, all boxes of a timeline from one zero.
    """

    row: int
    kind: str
    stage: int
    mini_batch: int
    micro_batch: int | None
    start_s: float
    end_s: float

    @property
    def number(self) -> int:
        """What is written into the box."""
        return self.mini_batch if self.micro_batch is None else self.micro_batch


def computing_share(boxes: Iterable[Box], rows: int, start_s: float, end_s: float) -> float:
    """Share of ``rows`` devices' time from ``start_s`` to ``end_s`` that passes take."""
    whole = rows * (end_s - start_s)
    if whole <= 0:
        return 0.0
    inside = (
        min(box.end_s, end_s) - max(box.start_s, start_s) for box in boxes if box.kind in COMPUTING
    )
    return sum(seconds for seconds in inside if seconds > 0) / whole


def beside_lanes(boxes: Iterable[Box]) -> dict[Box, int]:
    """A lane below its row for each box that runs beside others: those of one lane never overlap.

    Each takes the first lane that is free when it begins.
    """
    lanes: dict[Box, int] = {}
    free_from: dict[int, list[float]] = {}
    beside = (box for box in boxes if box.kind in BESIDE)
    for box in sorted(beside, key=lambda box: (box.start_s, box.end_s, box.number)):
        ends = free_from.setdefault(box.row, [])
        lane = next((n for n, end_s in enumerate(ends) if end_s <= box.start_s), len(ends))
        ends[lane : lane + 1] = [box.end_s]
        lanes[box] = lane
    return lanes


def trace_of_boxes(panels: Mapping[str, Sequence[Box]], rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON value of a trace file.

    Args:
        panels: boxes by what their process is called, as "planned"; empty ones are left out.
        rows: the threads of each.
    """
    shown = {process: panel for process, panel in enumerate(panels.items()) if panel[1]}
    return chrome_trace(
        [_piece(box, process) for process, (_, boxes) in shown.items() for box in boxes],
        {process: name for process, (name, _) in shown.items()},
        {(process, index): row.label for process in shown for index, row in enumerate(rows)},
    )


def _piece(box: Box, process: int) -> Piece:
    return Piece(
        name=f"{box.kind} {box.number}",
        kind=box.kind,
        process=process,
        thread=box.row,
        start_s=box.start_s,
        end_s=box.end_s,
        arguments={
            "mini_batch": box.mini_batch,
            "micro_batch": box.micro_batch,
            "stage": box.stage,
        },
    )
