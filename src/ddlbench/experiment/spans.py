"""The spans of a cell's trace.json: what every rank did, and when.

::

    {"name": "forward 3.2 117", "tid": 1, "ts": ..., "dur": ...}
     kind, micro-batch.stage, mini-batch; rank; microseconds on rank 0's clock

``ddlbench.runtime.result`` writes it; timelines and predictors read it. It is only ever parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddlbench.common.errors import shown
from ddlbench.common.text import parse_json

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
