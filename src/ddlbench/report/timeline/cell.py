"""The timeline of one cell, from the files of its folder.

::

    plan.json      -> rows, schedule --.
    trace.json                          '-> replay -> planned boxes --.
    partitions.csv -> measured boxes -> medians ^                     |-> windows
                            '-----------------------------------------'
    result.json    -> how sure the clocks are, when and where it was measured
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import InvalidResult, Result, read_result
from ddlbench.planning.plan import Plan
from ddlbench.planning.planned_schedule import PlannedSchedule
from ddlbench.planning.strategy import known_strategy
from ddlbench.report.timeline.box import Box, InvalidTimeline, Row
from ddlbench.report.timeline.durations import measured_durations, unit_durations
from ddlbench.report.timeline.measured import read_measured
from ddlbench.report.timeline.planned import boxes_of, schedule_of
from ddlbench.report.timeline.windows import Window, windows_of

__all__ = ["CellTimeline", "read_cell"]

_MOST_MINI_BATCHES = 1000  # replayed; a cell records far fewer
_UNRECORDED = 8


@dataclass(frozen=True)
class CellTimeline:
    """Everything that a picture of one cell shows.

    Args:
        cell: what ran.
        rows: its devices.
        planned, measured: all boxes, each from its own zero; either may be empty.
        windows: the parts to draw.
        in_seconds: planned times are the cell's own medians; else a forward pass takes 1.
        not_planned: why there are no planned boxes; empty where there are.
        uncertainty_s: how sure the clocks of the ranks are; None where one clock saw all.
        result: what result.json holds; None where there is none.
    """

    cell: Cell
    rows: tuple[Row, ...]
    planned: tuple[Box, ...]
    measured: tuple[Box, ...]
    windows: tuple[Window, ...]
    in_seconds: bool
    not_planned: str
    uncertainty_s: float | None
    result: Result | None


def read_cell(folder: Path, steps: int | None = None) -> CellTimeline:
    """Read a cell's folder.

    Args:
        folder: below ``results/<site>/cells/``.
        steps: steps or mini-batches to show; chosen where left out.

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
        in_seconds=bool(measured),
        not_planned=not_planned,
        uncertainty_s=_uncertainty_s(result),
        result=result,
    )


def _read_plan(folder: Path) -> tuple[Plan, tuple[Row, ...]]:
    path = folder / "plan.json"
    if not path.is_file():
        raise InvalidTimeline(
            f"{folder}: no cell's folder, as it has no plan.json; write a folder below "
            "results/<site>/cells/ that a measurement has left"
        )
    try:
        plan = Plan.from_dict(json.loads(path.read_text(encoding="utf-8")))
        return plan, _rows(plan)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidTimeline(f"{path}: not a readable plan: {error!r}") from error


def _schedule(plan: Plan, mini_batches: int, folder: Path) -> PlannedSchedule | None:
    try:
        return schedule_of(plan, mini_batches)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidTimeline(
            f"{folder / 'plan.json'}: not a plan of strategy {plan.cell.strategy}: {error!r}"
        ) from error


def _rows(plan: Plan) -> tuple[Row, ...]:
    """A row a device, in the order of ranks and, within one process, of its partitions."""
    strategy = known_strategy(plan.cell.strategy)
    pipeline = None if strategy is None else strategy.pipeline_of(plan)
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


def _planned(
    schedule: PlannedSchedule | None, measured: Sequence[Box], rows: Sequence[Row], first: int
) -> tuple[tuple[Box, ...], str]:
    """Planned boxes, or why there are none."""
    if schedule is None:
        return (), "the strategy has no schedule of stages"
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
    """Of the rank whose clock is known worst, as the result states it."""
    if result is None:
        return None
    try:
        ranks = result.plan_details["clock"]["ranks"]
        return max((float(rank["uncertainty_s"]) for rank in ranks), default=None)
    except (KeyError, TypeError, ValueError):  # one clock saw all, or the file does not say
        return None
