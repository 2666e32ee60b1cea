"""The boxes of a timeline in Chrome's trace format, planned above and measured below.

For chrome://tracing and ui.perfetto.dev; unlike a cell's own trace.json it also holds what was
planned, and what torchgpipe's partitions did.

Source: "Trace Event Format", complete events (``ph: X``) and metadata (``ph: M``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddlbench.report.timeline.box import Box, Row

__all__ = ["chrome_trace"]


def chrome_trace(panels: Mapping[str, Sequence[Box]], rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON value of a trace file; microseconds.

    Args:
        panels: boxes by what their process is called, as "planned"; empty ones are left out.
        rows: the threads of each.
    """
    events: list[dict[str, Any]] = []
    for process, (name, boxes) in enumerate(panels.items()):
        if boxes:
            events += _names(name, process, rows)
            events += [_event(box, process) for box in boxes]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _names(name: str, process: int, rows: Sequence[Row]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [_told("process_name", process, 0, {"name": name})]
    for index, row in enumerate(rows):
        told.append(_told("thread_name", process, index, {"name": row.label}))
        told.append(_told("thread_sort_index", process, index, {"sort_index": index}))
    return told


def _told(what: str, process: int, row: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": arguments}


def _event(box: Box, process: int) -> dict[str, Any]:
    return {
        "name": f"{box.kind} {box.number}",
        "cat": box.kind,
        "ph": "X",
        "ts": round(box.start_s * 1e6, 3),
        "dur": round((box.end_s - box.start_s) * 1e6, 3),
        "pid": process,
        "tid": box.row,
        "args": {
            "mini_batch": box.mini_batch,
            "micro_batch": box.micro_batch,
            "stage": box.stage,
        },
    }
