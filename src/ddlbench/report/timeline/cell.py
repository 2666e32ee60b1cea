"""The timeline of one cell, from the files of its folder.

::

    plan.json      -> rows, schedule --.
    trace.json                          '-> replay -> planned boxes --.
    partitions.csv -> measured boxes -> medians ^                     |-> windows
                            '-----------------------------------------'
    result.json    -> how sure the clocks are, when and where it was measured

    trace.json       spans of every rank (ddlbench.experiment.spans)
    partitions.csv   partition, kind, micro_batch, start_s, end_s      of one step of torchgpipe

Files are only ever parsed, never executed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.text import read_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import InvalidResult, Result, read_result
from ddlbench.experiment.spans import TRACE_FILE, Span, spans_in
from ddlbench.planning.pipeline import PlannedSchedule
from ddlbench.planning.planner import StrategyPlan, read_plan
from ddlbench.report.timeline.box import WAIT, Box, InvalidTimeline, Row
from ddlbench.report.timeline.planned import boxes_of, measured_durations, unit_durations
from ddlbench.report.timeline.predicted_step import predicted_boxes
from ddlbench.report.timeline.windows import Window, windows_of

PARTITIONS_FILE = "partitions.csv"
_AGAIN = "delete the result.json beside it and run again to measure the cell anew"


def has_spans(folder: Path) -> bool:
    """Whether a cell has recorded spans."""
    return any((folder / name).is_file() for name in (TRACE_FILE, PARTITIONS_FILE))


def read_measured(folder: Path, rows: Sequence[Row]) -> tuple[Box, ...]:
    """The recorded boxes of a cell, in the order of their start; empty without a record.

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
            fault = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidTimeline(f"{path}: not what a cell records: {fault}; {_AGAIN}") from error
        return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))
    return ()


def _read_trace(text: str, rows: Sequence[Row]) -> list[Box]:
    return [_of_span(span, rows) for span in spans_in(text)]


def _of_span(span: Span, rows: Sequence[Row]) -> Box:
    row = _row(span.rank, rows)
    own = rows[row].stages
    return _box(
        row=row,
        kind=_kind(span.kind),
        # Loss and update name no stage: the loss is the last stage's, an update the whole row's.
        stage=span.stage if span.stage is not None else (own[-1] if own else 0),
        mini_batch=span.mini_batch,
        micro_batch=span.micro_batch,
        start_s=span.start_s,
        end_s=span.start_s + span.length_s,
    )


def _kind(recorded: str) -> str:
    """Map all waits for messages to one kind; the wait for replicas is the all-reduce."""
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
                mini_batch=0,  # the one step after all measured ones
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


_MOST_MINI_BATCHES = 1000  # to replay; a cell records far fewer
_UNRECORDED = 8  # mini-batches to replay of a cell without a record


@dataclass(frozen=True)
class CellTimeline:
    """Everything that the timeline of one cell shows.

    Args:
        planned, measured: all boxes, each from its own zero; either may be empty.
        windows: the parts to draw.
        in_seconds: planned times are seconds; else a forward pass takes 1.
        predicted: planned times are those of the site's profile and links, not the cell's medians.
        not_planned: the reason why there are no planned boxes, or nothing.
        uncertainty_s: of the ranks' clocks; None for a single clock.
    """

    cell: Cell
    rows: tuple[Row, ...]
    planned: tuple[Box, ...]
    measured: tuple[Box, ...]
    windows: tuple[Window, ...]
    in_seconds: bool
    predicted: bool
    not_planned: str
    uncertainty_s: float | None
    result: Result | None


def read_cell(folder: Path, steps: int | None = None) -> CellTimeline:
    """Read a cell's folder.

    ``steps`` is the number of steps or mini-batches to show; None chooses.

    Raises:
        InvalidTimeline: it is no cell's folder, a file is wrong, or there is nothing to draw.
    """
    plan, rows = _read_plan(folder)
    measured = read_measured(folder, rows)
    numbers = {box.mini_batch for box in measured}
    first = min(numbers, default=0)
    count = max(numbers) - first + 1 if numbers else max(_UNRECORDED, 3 * len(rows), steps or 0)
    schedule = _schedule(plan, min(count, _MOST_MINI_BATCHES), folder)
    planned, not_planned = _planned(schedule, measured, rows, first)
    predicted = schedule is None
    if predicted:
        planned, not_planned = _predicted(plan, folder, first, min(count, _MOST_MINI_BATCHES))
    windows = windows_of(planned, measured, schedule, len(rows), steps)
    if not windows:
        raise InvalidTimeline(
            f"{folder}: nothing to draw: the cell has recorded no passes, and strategy "
            f"{plan.cell.strategy} has no schedule of stages; name a cell of a pipeline"
        )
    result = _read_result(folder)
    return CellTimeline(
        cell=plan.cell,
        rows=rows,
        planned=planned,
        measured=measured,
        windows=windows,
        in_seconds=bool(measured) or predicted,
        predicted=predicted,
        not_planned=not_planned,
        uncertainty_s=_uncertainty_s(result),
        result=result,
    )


def _read_plan(folder: Path) -> tuple[StrategyPlan, tuple[Row, ...]]:
    path = folder / "plan.json"
    if not path.is_file():
        raise InvalidTimeline(
            f"{folder}: no cell's folder, as it has no plan.json; write a folder below "
            "results/<site>/cells/ that a measurement has left"
        )
    try:
        plan = read_plan(read_json(path))
        return plan, _rows(plan)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidTimeline(f"{path}: not a readable plan: {error!r}") from error


def _schedule(plan: StrategyPlan, mini_batches: int, folder: Path) -> PlannedSchedule | None:
    try:
        return plan.strategy.schedule_of(plan, mini_batches)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidTimeline(
            f"{folder / 'plan.json'}: not a plan of strategy {plan.cell.strategy}: {error!r}"
        ) from error


def _rows(plan: StrategyPlan) -> tuple[Row, ...]:
    """One row for each device, in the order of ranks and of a process's partitions."""
    pipeline = plan.strategy.pipeline_of(plan)
    stage_ranks = [] if pipeline is None else [stage.ranks for stage in pipeline.stages]
    rows = []
    for process in plan.processes:
        if len(process.devices) > 1 or process.role == "driver":
            rows += [
                Row(f"node {process.node} · device {device}", (partition,))
                for partition, device in enumerate(process.devices)
            ]
            continue
        place = f"node {process.node} · device {process.local_rank}"
        if process.role not in ("stage", "worker"):
            place = f"{place} · {process.role}"
        stages = tuple(s for s, ranks in enumerate(stage_ranks) if process.rank in ranks)
        copies = any(len(stage_ranks[stage]) > 1 for stage in stages)
        rows.append(Row(place, stages, process.replica if copies else None))
    return tuple(rows)


def _predicted(
    plan: StrategyPlan, folder: Path, first: int, steps: int
) -> tuple[tuple[Box, ...], str]:
    """Boxes of the predicted step, or the reason why there are none."""
    try:
        return predicted_boxes(plan, folder, first, steps), ""
    except ConfigError as error:
        return (), f"the strategy has no schedule of stages, and {str(error).partition(';')[0]}"


def _planned(
    schedule: PlannedSchedule | None, measured: Sequence[Box], rows: Sequence[Row], first: int
) -> tuple[tuple[Box, ...], str]:
    """Planned boxes, or the reason why there are none."""
    if schedule is None:
        return (), ""
    if schedule.schedule.world_size != len(rows):
        return (), f"the schedule is of {schedule.schedule.world_size} devices, the plan is not"
    if not measured:
        return boxes_of(schedule, unit_durations(schedule.schedule.num_stages)), ""
    durations, missing = measured_durations(schedule, measured, rows)
    if durations is None:
        return (), f"nothing is recorded of {missing}"
    return boxes_of(schedule, durations, first), ""


def _read_result(folder: Path) -> Result | None:
    path = folder / "result.json"
    if not path.is_file():
        return None
    try:
        return read_result(path)
    except InvalidResult as error:
        raise InvalidTimeline(str(error)) from error


def _uncertainty_s(result: Result | None) -> float | None:
    """The largest uncertainty of any rank's clock, as the result states it."""
    if result is None:
        return None
    try:
        ranks = result.plan_details["clock"]["ranks"]
        return max((float(rank["uncertainty_s"]) for rank in ranks), default=None)
    except (KeyError, TypeError, ValueError):  # one clock saw all, or the file does not say
        return None
