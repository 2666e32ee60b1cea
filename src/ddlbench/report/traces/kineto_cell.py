"""A cell's recorded step as Kineto traces, one a device, which HTA and others open.

::

    recorded       | forward | wait | backward | all_reduce | update |      beside: |- bucket 0 -|

    cpu_op         | forward | wait | backward | all_reduce | update |      thread of the rank
    kernel         | forward |      | backward |            | update |      stream 7: computations
                                        |- nccl..Kernel -|                  stream 20: messages
    annotation     |------------------- ProfilerStep#0 --------------|

So that breakdowns of a GPU's work mean what they should for a cell of CPUs, too:

* A computation is a kernel of stream 7, whatever device did it.
* A message is a kernel of stream 20 (21, ... where several travel at once). Its name begins with
  ``ncclKernel``, whatever library carried it, as HTA knows messages by that name only. The library
  is in ``distributedInfo``.
* A wait is no kernel, so it is idle. The kernel after it was launched before the wait, so that HTA
  blames no host. Any other kernel is launched when it begins: HTA blames the host for the gap
  before it, which nothing was recorded of (loading data, time between two calls).
* Where messages travel beside computation, ``all_reduce`` of the rank is its wait for them.
* On GPUs, recorded times are those of the device, so that there are no ``cpu_op`` of them.

Source: what PyTorch 2's ``export_chrome_trace`` writes, and hta/common/trace.py.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddlbench.report.timeline.box import BESIDE, PASSES, WAIT, Box, Row, beside_lanes, extents
from ddlbench.report.timeline.cell import read_cell_result, read_recorded

MESSAGES = frozenset((*BESIDE, "all_reduce", "gather", "scatter", "halo"))
_COMPUTING_STREAM, _FIRST_LINK_STREAM = 7, 20
_FIRST_LINK = 2**16  # HTA with pandas 3 keeps indices in the type of links, and int8 is too short
_US_PER_S = 1e6
Event = dict[str, Any]


def kineto_files(folder: Path) -> dict[str, bytes]:
    """``rank-N.json`` for each device of a cell.

    Raises:
        InvalidTimeline: the folder is no cell's, or nothing is recorded in it.
    """
    plan, rows, boxes = read_recorded(folder)
    result = read_cell_result(folder)
    on_gpu = result is not None and result.device_kind == "cuda"
    backend = None if result is None else result.provenance.backend
    about = {"cell": plan.cell.id, "strategy": plan.cell.strategy}
    files = {}
    for number, row in enumerate(rows):
        of_rank = [box for box in boxes if box.row == number]
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [],
            "distributedInfo": {
                "backend": backend or "gloo",
                "rank": number,
                "world_size": len(rows),
            },
            "ddlbench": about,
            "displayTimeUnit": "ms",
        }
        events = rank_events(number, row, of_rank, on_host=not on_gpu)
        # A line an event, as HTA looks for the rank line by line.
        head, lines = json.dumps(trace)[:-1], ",\n".join(map(json.dumps, events))
        text = f'{head}, "traceEvents": [\n{lines}\n]}}\n'
        files[f"rank-{number}.json"] = text.encode()
    return files


def rank_events(number: int, row: Row, boxes: Sequence[Box], *, on_host: bool) -> list[Event]:
    """The events of the device of a rank; operators are known where the host computes."""
    writer = _Writer(number, row, on_host)
    begins, ends = extents(boxes)
    steps = sorted(begins, key=lambda step: (begins[step], step))
    # A step ends where the next begins.
    borders = [*(begins[step] for step in steps), max(ends.values(), default=0.0)]
    waits_apart = any(box.kind in BESIDE for box in boxes)
    main = sorted((box for box in boxes if box.kind not in BESIDE), key=lambda box: box.start_s)
    before: Box | None = None
    waited = False
    for box in main:
        waits = box.kind == WAIT or (box.kind == "all_reduce" and waits_apart)
        writer.operator(box)
        if waits:
            waited = True
            continue
        begun = borders[max(0, bisect_right(borders, box.start_s, hi=len(steps)) - 1)]
        launched = before.start_s if waited and before is not None else box.start_s
        stream = _FIRST_LINK_STREAM if box.kind in MESSAGES else _COMPUTING_STREAM
        writer.kernel(box, stream, max(begun, launched))
        before, waited = box, False
    for box, lane in beside_lanes(boxes).items():
        writer.kernel(box, _FIRST_LINK_STREAM + lane, box.start_s)
    for step, (start_s, end_s) in zip(steps, pairwise(borders), strict=True):
        writer.step(step, start_s, end_s)
    return writer.events


@dataclass
class _Writer:
    """Events in Kineto's words; times are microseconds.

    The first event is of no work, as HTA takes a link to event 0 for none.
    """

    number: int
    row: Row
    on_host: bool

    def __post_init__(self) -> None:
        self._process = 1000 + self.number  # of the host; devices have the numbers from 0
        self._links = _FIRST_LINK
        device = f"rank {self.number}: {self.row.label}"
        self.events: list[Event] = [
            _named("process_name", self._process, 0, f"{device}, host"),
            _named("process_name", self.number, 0, f"{device}, device"),
            _named("thread_name", self._process, self._process, "steps and recorded spans"),
            _named("thread_name", self.number, _COMPUTING_STREAM, "computations"),
        ]

    def step(self, number: int, start_s: float, end_s: float) -> None:
        self._add("user_annotation", f"ProfilerStep#{number}", start_s, end_s, arguments={})

    def operator(self, box: Box) -> None:
        if self.on_host:
            self._add("cpu_op", _label(box), box.start_s, box.end_s, arguments=_numbers(box))

    def kernel(self, box: Box, stream: int, launched_s: float) -> None:
        self._links += 1
        link = {"External id": self._links, "correlation": self._links}
        self._add("cuda_runtime", "launch", launched_s, launched_s, arguments=link)
        label = _label(box)
        self._add(
            "kernel",
            f"ncclKernel_{label.replace(' ', '_')}" if box.kind in MESSAGES else label,
            box.start_s,
            box.end_s,
            arguments={
                **_numbers(box),
                **link,
                "device": self.number,
                "context": 1,
                "stream": stream,
            },
            place=(self.number, stream),
        )

    def _add(
        self,
        category: str,
        name: str,
        start_s: float,
        end_s: float,
        *,
        arguments: Event,
        place: tuple[int, int] | None = None,
    ) -> None:
        process, thread = place or (self._process, self._process)
        begin = round(start_s * _US_PER_S, 3)
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": begin,
                "dur": round(end_s * _US_PER_S - begin, 3),
                "args": arguments,
            }
        )


def _label(box: Box) -> str:
    """A kind of work, and the stage: the same for all micro-batches, as HTA sums up by names."""
    staged = box.kind in PASSES and box.micro_batch is not None
    return f"{box.kind} stage {box.stage}" if staged else box.kind


def _numbers(box: Box) -> Event:
    numbers = {"mini_batch": box.mini_batch, "micro_batch": box.micro_batch, "stage": box.stage}
    return {name: value for name, value in numbers.items() if value is not None}


def _named(event: str, process: int, thread: int, name: str) -> Event:
    arguments = {"name": name}
    return {"ph": "M", "name": event, "pid": process, "tid": thread, "ts": 0.0, "args": arguments}
