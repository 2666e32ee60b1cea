"""The boxes of a timeline in Chrome's trace format, planned above and measured below.

Unlike a cell's own trace.json it also holds what was planned, and what torchgpipe's partitions did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddlbench.experiment.chrome_trace import Piece, chrome_trace
from ddlbench.report.timeline.box import Box, Row

__all__ = ["trace_of_boxes"]


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
