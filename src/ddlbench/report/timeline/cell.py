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

In the replay each pass takes the cell's own median. So the planned and the measured timeline differ
only by messages, waiting, data loading and passes of unusual length, not by the work itself.

A step that has no schedule of stages is predicted from the profile and links of its site. All
workers do the same, so each row shows the step of one of them; servers update. A message that
travels beside computation lies below its row; one that holds up its rank lies within it.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddlbench.common.document import read_json
from ddlbench.common.errors import ConfigError, file_fault, unplaced
from ddlbench.common.statistics import medians
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import InvalidResult, Result, read_result
from ddlbench.experiment.spans import TRACE_FILE, spans_in
from ddlbench.planning.pipeline import PlannedSchedule
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import StrategyPlan, read_plan
from ddlbench.planning.schedules import (
    EAGER,
    Action,
    Durations,
    Links,
    Messaging,
    StageDurations,
    no_links,
    replay,
)
from ddlbench.planning.step import COMPUTE, Compute
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, NO_HISTORY, CellInputs, NotPredictable
from ddlbench.predict.step_replay import ALL_TERMS, Replay, StepCosts, TaskSpan
from ddlbench.report.timeline.box import PASSES, WAIT, Box, InvalidTimeline, Row, Window, windows_of

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
    plan, rows = read_cell_plan(folder)
    measured = read_measured(folder, rows)
    numbers = {box.mini_batch for box in measured}
    first = min(numbers, default=0)
    count = max(numbers) - first + 1 if numbers else max(_UNRECORDED, 3 * len(rows), steps or 0)
    count = min(count, _MOST_MINI_BATCHES)
    schedule = _schedule(plan, count, folder)
    if schedule is None:
        planned, not_planned = _predicted(plan, folder, first, count)
    else:
        planned, not_planned = _planned(schedule, measured, rows, first)
    windows = windows_of(planned, measured, schedule, len(rows), steps)
    if not windows:
        raise InvalidTimeline(
            f"{folder}: nothing to draw: the cell has recorded no passes, and strategy "
            f"{plan.cell.strategy} has no schedule of stages; name a cell of a pipeline"
        )
    result = read_cell_result(folder)
    return CellTimeline(
        cell=plan.cell,
        rows=rows,
        planned=planned,
        measured=measured,
        windows=windows,
        in_seconds=bool(measured) or schedule is None,
        predicted=schedule is None,
        not_planned=not_planned,
        uncertainty_s=_uncertainty_s(result),
        result=result,
    )


def read_recorded(folder: Path) -> tuple[StrategyPlan, tuple[Row, ...], tuple[Box, ...]]:
    """The plan of a cell's folder, its devices, and the boxes that they have recorded.

    Raises:
        InvalidTimeline: it is no cell's folder, a file is wrong, or nothing is recorded in it.
    """
    plan, rows = read_cell_plan(folder)
    boxes = read_measured(folder, rows)
    if not boxes:
        raise InvalidTimeline(
            f"{folder}: the cell has recorded no step; name one with a trace.json or partitions.csv"
        )
    return plan, rows, boxes


def site_folder(folder: Path, cell: Cell) -> Path:
    """The folder of the site in which a cell's folder lies.

    Raises:
        ConfigError: it lies elsewhere.
    """
    place = folder.resolve()
    if not str(place).endswith(f"/cells/{cell.id}"):
        raise ConfigError("the cell's folder does not lie below results/SITE/cells/")
    return place.parents[len(Path(cell.id).parts)]


def read_cell_plan(folder: Path) -> tuple[StrategyPlan, tuple[Row, ...]]:
    """The plan of a cell's folder, and its devices.

    Raises:
        InvalidTimeline: it is no cell's folder, or its plan is wrong.
    """
    path = folder / "plan.json"
    if not folder.exists():
        raise InvalidTimeline(
            f"{folder} does not exist; write a cell's folder, or a trace or a folder of traces"
        )
    if not path.is_file():
        raise InvalidTimeline(
            f"{folder}: no cell's folder, as it has no plan.json; write a folder below "
            "results/<site>/cells/ that a measurement has left, or one of traces (.json, .json.gz)"
        )
    try:
        plan = read_plan(read_json(path))
        return plan, _rows(plan)
    except (OSError, ValueError) as error:
        fault = unplaced(path, file_fault(error) or str(error))
        raise InvalidTimeline(f"{path}: not a readable plan: {fault}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidTimeline(f"{path}: not a readable plan: {error!r}") from error


def _schedule(plan: StrategyPlan, mini_batches: int, folder: Path) -> PlannedSchedule | None:
    try:
        return plan.strategy.schedule_of(plan, mini_batches)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidTimeline(
            f"{folder / 'plan.json'}: not a plan of strategy {plan.cell.strategy}: {error!r}"
        ) from error


def _rows(plan: StrategyPlan) -> tuple[Row, ...]:
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
    schedule: PlannedSchedule, measured: Sequence[Box], rows: Sequence[Row], first: int
) -> tuple[tuple[Box, ...], str]:
    """Planned boxes, or the reason why there are none."""
    if schedule.schedule.world_size != len(rows):
        return (), "the schedule is of another number of devices than the plan"
    if not measured:
        return boxes_of(schedule, unit_durations(schedule.schedule.num_stages)), ""
    durations, missing = measured_durations(schedule, measured, rows)
    if durations is None:
        return (), f"nothing is recorded of {missing}"
    return boxes_of(schedule, durations, first), ""


def read_cell_result(folder: Path) -> Result | None:
    """The result of a cell's folder; None without one.

    Raises:
        InvalidTimeline: it is wrong.
    """
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
            for box in boxes:
                if not -math.inf < box.start_s <= box.end_s < math.inf:
                    lasts = f"lasts from {box.start_s} to {box.end_s} s"
                    raise ValueError(f"{box.kind} {box.number} {lasts}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            fault = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidTimeline(f"{path}: not what a cell records: {fault}; {_AGAIN}") from error
        return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))
    return ()


def _read_trace(text: str, rows: Sequence[Row]) -> list[Box]:
    boxes = []
    for span in spans_in(text):
        stages, stage = _stages(span.rank, rows), span.stage
        if stage is None:  # the loss is the last stage's, an update the whole row's
            stage = stages[-1] if stages else 0
        numbers, end_s = (span.mini_batch, span.micro_batch), span.start_s + span.length_s
        boxes.append(Box(span.rank, _kind(span.kind), stage, *numbers, span.start_s, end_s))
    return boxes


def _kind(recorded: str) -> str:
    """Map all waits for messages to one kind; the wait for replicas is the all-reduce."""
    if recorded == "all_reduce_wait":
        return "all_reduce"
    return WAIT if recorded == WAIT or recorded.endswith("_wait") else recorded


def _read_partitions(text: str, rows: Sequence[Row]) -> list[Box]:
    boxes = []
    for line in csv.DictReader(text.splitlines()):
        row, micro_batch = int(line["partition"]), int(line["micro_batch"])
        _stages(row, rows)
        ends_s = float(line["start_s"]), float(line["end_s"])
        # It is the one step after all measured ones.
        boxes.append(Box(row, line["kind"], row, 0, micro_batch, *ends_s))
    return boxes


def _stages(rank: int, rows: Sequence[Row]) -> tuple[int, ...]:
    if not isinstance(rank, int) or not 0 <= rank < len(rows):
        raise ValueError(f"it names device {rank}, and the plan has {len(rows)}")
    return rows[rank].stages


def boxes_of(
    planned: PlannedSchedule,
    durations: Durations,
    first: int = 0,
    links: Links = no_links,
    messaging: Messaging = EAGER,
) -> tuple[Box, ...]:
    """Replay a schedule; waiting for a message makes no box.

    Args:
        planned: the schedule.
        durations: seconds of passes, all-reduces and updates.
        first: id of the first mini-batch.
        links: seconds of messages.
        messaging: what ranks wait for.

    Raises:
        InvalidSchedule: it deadlocks.
    """
    boxes = []
    for row, done in enumerate(replay(planned.schedule, durations, links, messaging).ranks):
        for timed in done:
            action, start_s = timed.action, timed.start_s
            if action.kind == "update":  # it may have waited for a sum, and waiting makes no box
                start_s = max(start_s, timed.end_s - durations(action))
            if action.communicates or timed.end_s <= start_s:
                continue
            mini_batch, micro_batch = planned.numbers_of(action)
            boxes.append(
                Box(
                    row=row,
                    kind=planned.kind_of(action),
                    stage=action.stage,
                    mini_batch=first + mini_batch,
                    micro_batch=micro_batch,
                    start_s=start_s,
                    end_s=timed.end_s,
                )
            )
    return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))


Seconds = dict[tuple[str, int], float]  # by kind and stage


def measured_durations(
    planned: PlannedSchedule, boxes: Sequence[Box], rows: Sequence[Row]
) -> tuple[Durations | None, str]:
    """Median durations of recorded boxes; None, and a missing pass, if one was not recorded."""
    seconds = _medians(boxes, rows)
    for action in (a for actions in planned.schedule.actions for a in actions if a.computes):
        key = (planned.kind_of(action), action.stage)
        if key not in seconds:
            return None, f"{key[0].replace('_', ' ')} of stage {key[1]}"

    def durations(action: Action) -> float:
        return seconds.get((planned.kind_of(action), action.stage), 0.0)

    return durations, ""


def unit_durations(
    stages: int,
    *,
    forward: Sequence[float] = (),
    backward: float = 2.0,
    update: float = 0.0,
    all_reduce: float = 0.0,
) -> StageDurations:
    """Durations in forward passes.

    ``forward`` is a forward pass, and a recomputation, of each stage; empty if all take 1. A
    backward pass is in forward passes of its stage.
    """
    forward = forward or [1.0] * stages
    return StageDurations(
        forward_s=forward,
        backward_s=[backward * duration_s for duration_s in forward],
        update_s=[update] * stages,
        all_reduce_s=[all_reduce] * stages,
    )


def _medians(boxes: Sequence[Box], rows: Sequence[Row]) -> Seconds:
    lengths: dict[tuple[str, int], list[float]] = defaultdict(list)
    for box in boxes:
        if box.kind in (*PASSES, "loss"):
            lengths[box.kind, box.stage].append(box.end_s - box.start_s)
        elif box.kind == "update":
            # Recorded once for all stages of a device; the schedule updates stage by stage.
            stages = rows[box.row].stages
            for stage in stages:
                lengths["update", stage].append((box.end_s - box.start_s) / len(stages))
    seconds = {key: median(values) for key, values in lengths.items()}
    for (kind, stage), loss_s in list(seconds.items()):
        if kind == "loss" and ("forward", stage) in seconds:
            seconds["forward", stage] += loss_s  # a schedule has the loss in the forward pass
    return seconds | _all_reduces(boxes, rows)


def _all_reduces(boxes: Iterable[Box], rows: Sequence[Row]) -> Seconds:
    """Median all-reduce of each stage; of each sum the shortest span, which waited for nobody."""
    shortest: dict[tuple[int, int], float] = {}
    for box in boxes:
        if box.kind == "all_reduce":
            stages = rows[box.row].stages
            for stage in stages:
                share_s = (box.end_s - box.start_s) / len(stages)
                key = (stage, box.mini_batch)
                shortest[key] = min(share_s, shortest.get(key, share_s))
    return medians((("all_reduce", stage), seconds) for (stage, _), seconds in shortest.items())


_KINDS = {"all_gather": "gather", "broadcast": "gather", "reduce_scatter": "scatter"}
_DRAWN = ("load", "forward", "backward", "update")


def predicted_boxes(plan: Plan, folder: Path, first: int, steps: int) -> tuple[Box, ...]:
    """The boxes of so many steps from number ``first`` on, by the site's profile and links.

    Raises:
        ConfigError: the site has no profile or links, or the strategy states no step.
    """
    site = site_folder(folder, plan.cell)
    files = Inputs(site.name, site.parent)
    workload, links = files.workload(plan.cell), files.links(plan.cell)
    inputs = CellInputs(DEFAULT_PREDICTOR, workload, links, plan, plan.cell, NO_HISTORY)
    step = inputs.step
    if step.alone is not None:
        raise NotPredictable("messages of its step have no places")
    replay = Replay(step, StepCosts(inputs, step, ALL_TERMS))
    boxes = [
        _predicted_box(span, process.rank, number, first + turn, turn * replay.end_s)
        for turn in range(steps)
        for process in plan.processes
        for number, span in enumerate(replay.spans)
        if (span.lane == "server") == (process.role == "server")
        and span.end_s > span.begin_s
        and not (isinstance(span.task, Compute) and span.task.phase not in _DRAWN)
    ]
    return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))


def _predicted_box(span: TaskSpan, row: int, number: int, step: int, shift_s: float) -> Box:
    task = span.task
    if isinstance(task, Compute):
        kind: str = task.phase
    elif span.lane == COMPUTE:
        kind = _KINDS.get(task.operation, task.operation)
    else:
        kind = "all_reduce_bucket" if task.sums_gradients else "message"
    beside = span.lane != COMPUTE and not isinstance(task, Compute)
    return Box(
        row=row,
        kind=kind,
        stage=0,
        mini_batch=step,
        micro_batch=number if beside else None,
        start_s=shift_s + span.begin_s,
        end_s=shift_s + span.end_s,
    )
