"""Chrome's trace format, for chrome://tracing and ui.perfetto.dev.

Source: "Trace Event Format", complete events (``ph: X``) and metadata (``ph: M``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Piece:
    """One piece of work.

    Args:
        name: its label.
        kind: pieces of one kind have one colour.
        process, thread: its row.
        start_s, end_s: seconds from the trace's zero.
        arguments: shown at a click.
    """

    name: str
    kind: str
    process: int
    thread: int
    start_s: float
    end_s: float
    arguments: Mapping[str, Any] = field(default_factory=dict)


def chrome_trace(
    pieces: Iterable[Piece], processes: Mapping[int, str], threads: Mapping[tuple[int, int], str]
) -> dict[str, Any]:
    """The JSON value of a trace file; its times are microseconds.

    Args:
        pieces: in any order.
        processes: label of each process.
        threads: label of each row by (process, thread); rows are in the order of threads.
    """
    events = [_metadata("process_name", pid, 0, name=label) for pid, label in processes.items()]
    for (pid, tid), label in threads.items():
        events.append(_metadata("thread_name", pid, tid, name=label))
        events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
    events += [_complete(piece) for piece in pieces]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _metadata(event: str, process: int, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": process, "tid": thread, "args": arguments}


def _complete(piece: Piece) -> dict[str, Any]:
    return {
        "name": piece.name,
        "cat": piece.kind,
        "ph": "X",
        "ts": round(piece.start_s * 1e6, 3),
        "dur": round((piece.end_s - piece.start_s) * 1e6, 3),
        "pid": piece.process,
        "tid": piece.thread,
        "args": dict(piece.arguments),
    }
