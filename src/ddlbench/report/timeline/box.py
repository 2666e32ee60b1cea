"""The rows and boxes of a timeline, and their trace file for Chrome.

::

    row 0 | F0 | F1 |         | B0 | B1 | U |      a box: one piece of work of a mini-batch or
    row 1      | F0 | B0 | F1 | B1 |               micro-batch; the gap between boxes is the
                                                   bubble
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.common.chrome_trace import Piece, chrome_trace
from ddlbench.common.errors import ConfigError

# PASSES have their number written into the box; COMPUTING counts as work.
PASSES = ("forward", "recompute", "backward", "backward_input", "backward_weight")
COMPUTING = frozenset((*PASSES, "loss"))
WAIT = "wait"
# Work that runs at the same time as other work of its device, and several at a time.
BESIDE = frozenset(("all_reduce_bucket", "message"))


class InvalidTimeline(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A folder or file that no timeline can be drawn from."""


@dataclass(frozen=True)
class Row:
    """One device.

    Args:
        place: as ``node 0 · device 1``.
        stages: that it holds, if the strategy has stages.
        replica: index of the copy of these stages; None for the only copy.
    """

    place: str
    stages: tuple[int, ...] = ()
    replica: int | None = None

    @property
    def label(self) -> str:
        """Written to the left of the row."""
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
            "all_reduce", "all_reduce_bucket", "update", "wait", or another that a strategy records.
        stage: of the pipeline.
        mini_batch: its id.
        micro_batch: within the mini-batch and replica; None if the mini-batch is not split.
        start_s, end_s: in seconds; all boxes of a timeline have the same zero.
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
        """Written into the box."""
        return self.mini_batch if self.micro_batch is None else self.micro_batch


def computing_share(boxes: Iterable[Box], rows: int, start_s: float, end_s: float) -> float:
    """Share of the time of ``rows`` devices, from ``start_s`` to ``end_s``, with computation."""
    whole = rows * (end_s - start_s)
    if whole <= 0:
        return 0.0
    inside = (
        min(box.end_s, end_s) - max(box.start_s, start_s) for box in boxes if box.kind in COMPUTING
    )
    return sum(seconds for seconds in inside if seconds > 0) / whole


def beside_lanes(boxes: Iterable[Box]) -> dict[Box, int]:
    """Assign boxes of kinds in :data:`BESIDE` to lanes below their rows, without overlaps.

    Each box takes the first lane that is free when it begins.
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
    """The JSON value of a trace file, with a process for each panel that has boxes."""
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
