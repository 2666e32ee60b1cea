"""Boxes of what was recorded: trace.json of most pipelines, partitions.csv of torchgpipe.

::

    trace.json       {"name": "forward 3.2 117", "tid": 1, "ts": ..., "dur": ...}
                      kind, micro-batch.stage, mini-batch; rank; microseconds on rank 0's clock
    partitions.csv   partition, kind, micro_batch, start_s, end_s          of one step

Files are only ever parsed, and a file that is not what a cell writes is said to be none.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddlbench.report.timeline.box import WAIT, Box, InvalidTimeline, Row

__all__ = ["PARTITIONS_FILE", "TRACE_FILE", "has_spans", "read_measured"]

TRACE_FILE = "trace.json"
PARTITIONS_FILE = "partitions.csv"
_NAME = re.compile(
    r"(?P<kind>[A-Za-z_]+)( (?P<micro_batch>\d+)\.(?P<stage>\d+))? (?P<mini_batch>\d+)"
)
_AGAIN = "delete the result.json beside it and run again to measure the cell anew"


def has_spans(folder: Path) -> bool:
    """Whether a cell has recorded what its devices did."""
    return any((folder / name).is_file() for name in (TRACE_FILE, PARTITIONS_FILE))


def read_measured(folder: Path, rows: Sequence[Row]) -> tuple[Box, ...]:
    """The boxes of a cell's folder, from the first one's start; none where none were recorded.

    Args:
        folder: of the cell.
        rows: the devices that its plan names.

    Raises:
        InvalidTimeline: a file is not what a cell writes.
    """
    for name, read in ((TRACE_FILE, _read_trace), (PARTITIONS_FILE, _read_partitions)):
        path = folder / name
        if not path.is_file():
            continue
        try:
            boxes = read(path.read_text(encoding="utf-8"), rows)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidTimeline(f"{path}: not what a cell records: {what}; {_AGAIN}") from error
        return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))
    return ()


def _read_trace(text: str, rows: Sequence[Row]) -> list[Box]:
    events = json.loads(text)["traceEvents"]
    return [_of_event(event, rows) for event in events if event["ph"] == "X"]


def _of_event(event: dict[str, Any], rows: Sequence[Row]) -> Box:
    found = _NAME.fullmatch(event["name"])
    if found is None:
        raise ValueError(f"{event['name']!r} names no kind of work and mini-batch")
    row = _row(event["tid"], rows)
    start_s, length_s = float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
    micro_batch, stage = found["micro_batch"], found["stage"]
    own = rows[row].stages
    return _box(
        row=row,
        kind=_kind(found["kind"]),
        # Loss and update name no stage: the loss is the last stage's, an update is a row's.
        stage=int(stage) if stage else (own[-1] if own else 0),
        mini_batch=int(found["mini_batch"]),
        micro_batch=int(micro_batch) if micro_batch else None,
        start_s=start_s,
        end_s=start_s + length_s,
    )


def _kind(recorded: str) -> str:
    """Waits for messages are one kind; the wait for replicas is what an all-reduce costs."""
    if recorded == "all_reduce_wait":
        return "all_reduce"
    return WAIT if recorded == WAIT or recorded.endswith("_wait") else recorded


def _read_partitions(text: str, rows: Sequence[Row]) -> list[Box]:
    boxes = []
    for line in csv.DictReader(text.splitlines()):
        row = _row(int(line["partition"]), rows)
        boxes.append(
            _box(
                row=row,
                kind=line["kind"],
                stage=row,
                mini_batch=0,  # which one is not told: one step after all measured ones
                micro_batch=int(line["micro_batch"]),
                start_s=float(line["start_s"]),
                end_s=float(line["end_s"]),
            )
        )
    return boxes


def _row(rank: int, rows: Sequence[Row]) -> int:
    if not isinstance(rank, int) or not 0 <= rank < len(rows):
        raise ValueError(f"it names device {rank}, and the plan has {len(rows)}")
    return rank


def _box(**values: Any) -> Box:
    box = Box(**values)
    if not (math.isfinite(box.start_s) and math.isfinite(box.end_s) and box.start_s <= box.end_s):
        raise ValueError(f"{box.kind} {box.number} lasts from {box.start_s} to {box.end_s} s")
    return box
