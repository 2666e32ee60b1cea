"""Folders of cells with made-up spans: what the tests of timelines read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.report.timeline.box import Box
from ddlbench.report.timeline.cell import boxes_of

FIRST = 3  # id of the first recorded mini-batch
LETTERS = {
    "forward": "f",
    "recompute": "r",
    "backward": "b",
    "backward_input": "i",
    "backward_weight": "w",
    "all_reduce": "a",
    "update": "u",
}


def cell_of(strategy: str, devices: int = 2, **options: Any) -> Cell:
    return Cell(
        dataset="mnist",
        network="vgg11",
        strategy=strategy,
        batch_size=32,
        devices_per_node=devices,
        options=tuple(options.items()),
    )


def write_plan(folder: Path, cell: Cell) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(make_plan(cell).to_dict()))
    return folder


def write_trace(folder: Path, boxes: list[Box] | tuple[Box, ...], origin_s: float = 0.0) -> None:
    """The boxes as a cell's executors name them."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": 0}]
    for box in boxes:
        kind = box.kind
        if box.micro_batch is not None:
            kind = f"{kind} {box.micro_batch}.{box.stage}"
        elif kind == "all_reduce":
            kind = "all_reduce_wait"
        events.append(
            {
                "name": f"{kind} {box.mini_batch}",
                "cat": kind.split(" ")[0],
                "ph": "X",
                "ts": (origin_s + box.start_s) * 1e6,
                "dur": (box.end_s - box.start_s) * 1e6,
                "pid": 0,
                "tid": box.row,
                "args": {"mini_batch": box.mini_batch},
            }
        )
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))


def write_partitions(folder: Path, boxes: list[Box] | tuple[Box, ...]) -> None:
    lines = ["partition,kind,micro_batch,start_s,end_s"]
    for box in boxes:
        if box.micro_batch is None:
            continue  # torchgpipe records no update
        lines.append(f"{box.row},{box.kind},{box.micro_batch},{box.start_s!r},{box.end_s!r}")
    (folder / "partitions.csv").write_text("\n".join(lines) + "\n")


def recorded(
    cell: Cell, durations: Callable[..., float], mini_batches: int, message_s: float = 0.0
) -> tuple[Box, ...]:
    """What a cell would record whose passes took ``durations`` and messages ``message_s``."""
    schedule = strategy_of(cell.strategy).schedule_of(make_plan(cell), mini_batches)
    assert schedule is not None
    first = 0 if schedule.recomputes else FIRST
    return boxes_of(schedule, durations, first, lambda source, target, send: message_s)


def write_cell(
    folder: Path,
    cell: Cell,
    durations: Callable[..., float],
    mini_batches: int = 30,
    message_s: float = 0.0,
) -> tuple[Box, ...]:
    """A cell's folder with its plan and spans; returns what it recorded."""
    write_plan(folder, cell)
    boxes = recorded(cell, durations, mini_batches, message_s)
    if cell.strategy in ("gpipe", "model-parallel"):
        write_partitions(folder, boxes)
    else:
        write_trace(folder, boxes)
    return boxes


def table_of(boxes: tuple[Box, ...], rows: int) -> list[str]:
    """A line a row, a word a unit of time: ``f0 . b0 b0``; times must be whole units."""
    end = round(max(box.end_s for box in boxes))
    table = [["."] * end for _ in range(rows)]
    for box in boxes:
        for moment in range(round(box.start_s), round(box.end_s)):
            assert table[box.row][moment] == ".", "two boxes at once"
            table[box.row][moment] = f"{LETTERS[box.kind]}{box.number}"
    return [" ".join(line) for line in table]
