"""trace.json: what every rank did when, for chrome://tracing or ui.perfetto.dev.

A row a rank; a piece's name is its kind and mini-batch. Microseconds from the first piece, on rank
0's clock: each rank's offset, and how sure it is, stand in ``plan_details.clock`` of the result.

Source: "Trace Event Format", complete events (``ph: X``) and metadata (``ph: M``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["trace_json"]


def trace_json(reports: Sequence[dict[str, Any]]) -> str:
    """The spans of all ranks; empty where no rank has any.

    Args:
        reports: of the ranks, with ``spans`` (kind, mini-batch, start_s, end_s) by a rank's own
            clock, and ``clock_offset_s`` to rank 0's.
    """
    rows = [
        (report, kind, number, start_s + report["clock_offset_s"], end_s - start_s)
        for report in sorted(reports, key=lambda report: int(report["rank"]))
        for kind, number, start_s, end_s in report["spans"]
    ]
    if not rows:
        return ""
    begin_s = min(start_s for *_, start_s, _ in rows)
    events = [
        {
            "name": f"{kind} {number}",
            "cat": kind.split(" ")[0],
            "ph": "X",
            "ts": round((start_s - begin_s) * 1e6, 3),
            "dur": round(duration_s * 1e6, 3),
            "pid": report["node"],
            "tid": report["rank"],
            "args": {"mini_batch": number},
        }
        for report, kind, number, start_s, duration_s in rows
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*_names(reports), *events]})


def _names(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names: list[dict[str, Any]] = []
    for report in reports:
        where = {"ph": "M", "pid": report["node"], "tid": report["rank"]}
        part = f"stage {report['stage']}, replica {report['replica']}"
        part = "server" if report.get("role") == "server" else part
        label = f"rank {report['rank']}: {part}"
        host = f"node {report['node']} ({report['host']})"
        names.append({**where, "name": "process_name", "args": {"name": host}})
        names.append({**where, "name": "thread_name", "args": {"name": label}})
        names.append({**where, "name": "thread_sort_index", "args": {"sort_index": report["rank"]}})
    return names
