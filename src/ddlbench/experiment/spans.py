"""Spans of a trace.json: what every rank did, and when, in Chrome's trace format.

::

    {"name": "forward 3.2 117", "tid": 1, "ts": ..., "dur": ...}
     kind, micro-batch.stage, mini-batch; rank; microseconds on rank 0's clock

``ddlbench.runtime.result`` writes it; timelines, predictors, chrome://tracing and ui.perfetto.dev
read it. It is only ever parsed.

Source: "Trace Event Format", complete events (``ph: X``) and metadata (``ph: M``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddlbench.common.document import parse_json
from ddlbench.common.errors import shown

TRACE_FILE = "trace.json"
_NAME = re.compile(
    r"(?P<kind>[A-Za-z_]+)( (?P<micro_batch>\d+)\.(?P<stage>\d+))? (?P<mini_batch>\d+)"
)
_US_PER_S = 1e6


@dataclass(frozen=True)
class Span:
    """A piece of a rank's work; micro-batch and stage only where it names them."""

    kind: str
    rank: int
    mini_batch: int
    micro_batch: int | None
    stage: int | None
    start_s: float
    length_s: float


def spans_in(text: str) -> Iterator[Span]:
    """The spans in the text of a trace.json.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not what a cell records.
    """
    for event in parse_json(text)["traceEvents"]:
        if event["ph"] != "X":
            continue
        if not (type(event["tid"]) is int and event["tid"] >= 0 and event["dur"] >= 0):
            raise ValueError(f"{shown(event)} has no rank, or ends before it begins")
        name = _NAME.fullmatch(event["name"])
        if name is None:
            raise ValueError(f"{shown(event['name'])} names no kind of work and mini-batch")
        micro_batch, stage = name["micro_batch"], name["stage"]
        yield Span(
            kind=name["kind"],
            rank=event["tid"],
            mini_batch=int(name["mini_batch"]),
            micro_batch=int(micro_batch) if micro_batch else None,
            stage=int(stage) if stage else None,
            start_s=float(event["ts"]) / _US_PER_S,
            length_s=float(event["dur"]) / _US_PER_S,
        )


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
    """The JSON value of a trace file, in microseconds; rows are in the order of ``threads``.

    Processes and (process, thread) pairs have labels.
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
