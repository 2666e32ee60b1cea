"""The three figures of timelines: of an experiment, of one cell, and of a schedule.

An experiment's figure has one cell of each strategy and geometry that has recorded spans. In the
figure of a schedule a forward pass takes 1.

Schedules are drawn as papers draw them, without a cell or a measurement::

    data-parallel    every device has the whole network      | F 0 | B 0 | all-reduce | F 4 | ...
    model-parallel   one device works at a time              GPipe, figure 2b
    gpipe            micro-batches, then a flush             GPipe, figure 2c
    1f1b             the same bubble, less memory            Megatron-LM, figure 4 above
    interleaved      several stages a device                 Megatron-LM, figure 4 below
    zero-bubble(-v)  weight gradients fill the bubble        Qi et al., 2024
    pipedream        never flushed                           PipeDream, figures 4 and 8

DDLBench (Jansen et al., 2020) and the thesis behind it explain data parallelism, GPipe and
PipeDream with such pictures.
"""

from __future__ import annotations

from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import setting_text
from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pandas as pd
from matplotlib.figure import Figure

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import Result
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.planning.pipeline import PlannedSchedule, repeated
from ddlbench.planning.schedules import (
    EAGER,
    Action,
    Messaging,
    Schedule,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    model_parallel,
    one_f_one_b,
    pipedream,
    replicate,
    zero_bubble_v,
)
from ddlbench.planning.schedules.check import (
    mini_batches_of,
    release_receives,
    thesis_per_loader,
    why_release_stops,
)
from ddlbench.report.comparability import commit_of
from ddlbench.report.footer import Context, footer, place_and_time, sentence, without_signs
from ddlbench.report.layout import nothing_to_show
from ddlbench.report.tables import Tables, rows_of
from ddlbench.report.timeline.box import InvalidTimeline, Row, Window, whole_run
from ddlbench.report.timeline.cell import (
    CellTimeline,
    boxes_of,
    has_spans,
    read_cell,
    unit_durations,
)
from ddlbench.report.timeline.draw import COLUMNS, Shown, draw_page, duration_text

# Schedules whose numbers are mini-batches; the others split them and flush after each.
WHOLE = ("data-parallel", "model-parallel", "pipedream")
STAGE_ALL_REDUCES = ("sync", "async", "ddp")
"""When replicas of a stage wait for the sum of their gradients."""

_MOST_PASSES = 20_000
"""Their picture takes some 20 s."""


@dataclass(frozen=True)
class Lesson:
    """A schedule to draw.

    Args:
        schedule: a key of :data:`SCHEDULES`.
        stages: of the pipeline; its devices for ``interleaved`` and ``zero-bubble``.
        batches: mini-batches for the schedules in :data:`WHOLE`, else micro-batches of a step.
        replicas: of each stage for ``pipedream``; else one number, the copies of the pipeline.
        stages_per_device: for ``interleaved`` and ``zero-bubble``.
        steps: of schedules that flush; None is one.
        durations: of a forward pass of each stage; empty if all take 1.
        backward: duration of a backward pass in forward passes of its stage.
        update, all_reduce, message: durations.
        stage_all_reduce: for ``pipedream``: replicas of a stage wait for the sum of their gradients
            before the update (``sync``), before the next update (``async``), or within the backward
            pass, as torch's DistributedDataParallel has it (``ddp``): then the gradient goes to the
            stage before only after the sum.
        division: for ``pipedream``: also what its released runtime does with mini-batches that the
            replicas of a stage do not divide, see :mod:`ddlbench.planning.schedules.check`.
    """

    schedule: str
    stages: int = 4
    batches: int = 8
    replicas: tuple[int, ...] = (1,)
    stages_per_device: int = 2
    steps: int | None = None
    durations: tuple[float, ...] = ()
    backward: float = 2.0
    update: float = 0.0
    all_reduce: float = 1.0
    message: float = 0.0
    stage_all_reduce: str = "sync"
    division: bool = False

    @property
    def forward_passes(self) -> int:
        """Forward passes of all stages, micro-batches, steps and copies."""
        stages = 1 if self.schedule == "data-parallel" else self.stages
        if self.schedule in ("interleaved", "zero-bubble"):
            stages *= self.stages_per_device
        # Replicas of a stage of pipedream share its mini-batches.
        copies = 1 if self.schedule == "pipedream" else self.replicas[0]
        return stages * self.batches * (self.steps or 1) * copies

    @property
    def messaging(self) -> Messaging:
        return Messaging(late_sums=True) if self.stage_all_reduce == "async" else EAGER

    def forward_of(self, stages: int) -> tuple[float, ...]:
        """The forward pass of each stage.

        Raises:
            ConfigError: there are other stages than durations.
        """
        if self.durations and len(self.durations) != stages:
            numbers = ",".join(f"{duration:g}" for duration in self.durations)
            raise ConfigError(
                f"--durations {numbers}: {self.schedule} has {counted(stages, 'stage')} here; "
                "write a number for each"
            )
        return self.durations or (1.0,) * stages


def planned_lesson(lesson: Lesson) -> PlannedSchedule:
    """The schedule of a lesson.

    Raises:
        ConfigError: its numbers do not fit together.
    """
    if lesson.steps is not None and lesson.schedule in WHOLE:
        raise ConfigError(
            f"--steps: {lesson.schedule} does not split a step; write --mini-batches instead"
        )
    if lesson.stage_all_reduce != "sync":
        _check_replicas(lesson, "--stage-all-reduce")
    if lesson.forward_passes > _MOST_PASSES:
        raise ConfigError(
            f"timeline: {lesson.forward_passes:,} forward passes of {lesson.schedule} are more "
            f"than the {_MOST_PASSES:,} that can be drawn; write fewer --mini-batches, --stages, "
            "--steps or --replicas"
        )
    return SCHEDULES[lesson.schedule](lesson)


def _check_replicas(lesson: Lesson, option: str) -> None:
    if lesson.schedule != "pipedream":
        raise ConfigError(
            f"{option}: {lesson.schedule} has no replicas of a stage; only pipedream has"
        )


def mini_batches_of_a_loader(lesson: Lesson) -> int:
    """Mini-batches of each replica of the first stage of a lesson with a division.

    Raises:
        ConfigError: the schedule is another, or its first stage's loaders are unequal.
    """
    _check_replicas(lesson, "--division")
    per_loader, rest = divmod(lesson.batches, lesson.replicas[0])
    if rest:
        raise ConfigError(
            f"--mini-batches {lesson.batches}: the {lesson.replicas[0]} loaders of the first stage "
            f"have as many each; write a multiple of {lesson.replicas[0]}"
        )
    return per_loader


def _copies(lesson: Lesson) -> int:
    if len(lesson.replicas) > 1:
        raise ConfigError(
            f"--replicas {_sum(lesson.replicas)}: {lesson.schedule} has copies of the whole, so "
            "write one number; only pipedream has replicas of each stage"
        )
    return lesson.replicas[0]


def _flushing(make: Callable[[Lesson], Schedule]) -> Callable[[Lesson], PlannedSchedule]:
    def planned(lesson: Lesson) -> PlannedSchedule:
        copies = _copies(lesson)
        schedule = repeated(replicate(make(lesson), copies), lesson.steps or 1)
        return PlannedSchedule(schedule, lesson.batches, copies)

    return planned


def _model_parallel(lesson: Lesson) -> PlannedSchedule:
    if _copies(lesson) > 1:
        raise ConfigError("--schedule model-parallel has no replicas; leave --replicas out")
    return PlannedSchedule(model_parallel(lesson.stages, lesson.batches))


def pipedream_replicas(lesson: Lesson) -> tuple[int, ...]:
    """Replicas of each stage.

    Raises:
        ConfigError: there are other stages than replicas.
    """
    counts = lesson.replicas
    if len(counts) == 1:
        counts *= lesson.stages
    if len(counts) != lesson.stages:
        raise ConfigError(
            f"--replicas {_sum(counts)} is of {len(counts)} stages, and --stages is "
            f"{lesson.stages}; leave --stages out"
        )
    return counts


def _pipedream(lesson: Lesson) -> PlannedSchedule:
    schedule = pipedream(pipedream_replicas(lesson), lesson.batches)
    if lesson.stage_all_reduce == "ddp":
        schedule = replace(
            schedule, actions=tuple(tuple(_sum_first(actions)) for actions in schedule.actions)
        )
    return PlannedSchedule(schedule)


def _sum_first(actions: tuple[Action, ...]) -> Iterator[Action]:
    """Every sum of gradients before the gradient that is sent in front of it."""
    held: Action | None = None
    for action in actions:
        if held is not None and action.kind != "all_reduce":
            yield held
            held = None
        if action.kind == "send_gradient":
            held = action
            continue
        yield action
    if held is not None:
        yield held


SCHEDULES: dict[str, Callable[[Lesson], PlannedSchedule]] = {
    # A pipeline of one stage whose replicas each take a mini-batch of a step.
    "data-parallel": lambda lesson: PlannedSchedule(
        pipedream((_copies(lesson),), lesson.batches, warmup_counts=(0,))
    ),
    "model-parallel": _model_parallel,
    "gpipe": _flushing(lambda lesson: gpipe(lesson.stages, lesson.batches)),
    "1f1b": _flushing(lambda lesson: one_f_one_b(lesson.stages, lesson.batches)),
    "interleaved": _flushing(
        lambda lesson: interleaved_1f1b(lesson.stages, lesson.stages_per_device, lesson.batches)
    ),
    "zero-bubble": _flushing(
        lambda lesson: interleaved_zero_bubble(
            lesson.stages, lesson.stages_per_device, lesson.batches
        )
    ),
    "zero-bubble-v": _flushing(lambda lesson: zero_bubble_v(lesson.stages, lesson.batches)),
    "pipedream": _pipedream,
}


def _sum(counts: tuple[int, ...]) -> str:
    return "+".join(map(str, counts))


TITLE = "Which device computes what when, as planned and as measured"


def shown_windows(cell: CellTimeline) -> Iterator[Shown]:
    """The windows of a cell under their headings."""
    parts = [
        f"{strategy_label(cell.cell.strategy)}: {network_label(cell.cell.network)}",
        dataset_label(cell.cell.dataset),
        f"{counted(cell.cell.devices, 'worker')} ({cell.cell.geometry})",
        " ".join(f"{name}={setting_text(value)}" for name, value in cell.cell.options),
    ]
    heading = ", ".join(filter(None, parts))
    for window in cell.windows:
        yield Shown(
            heading=f"{heading}: {window.title}" if window.title else heading,
            window=window,
            rows=cell.rows,
            cell_id=cell.cell.id,
            not_planned=cell.not_planned,
            in_seconds=cell.in_seconds,
        )


def sentences(cells: Sequence[CellTimeline]) -> list[str]:
    """Explain the windows of these cells."""
    planned = [cell for cell in cells if cell.planned]
    measured = any(cell.measured for cell in cells)
    lines = {
        "timeline_predicted": any(cell.predicted for cell in planned),
        "timeline_planned": any(cell.in_seconds and not cell.predicted for cell in planned),
        "timeline_units": any(not cell.in_seconds for cell in planned),
        "timeline_measured": measured,
        "timeline_numbers": measured,
        "timeline_paler": any(len(row.stages) > 1 for cell in cells for row in cell.rows),
    }
    return [
        _measured(cells) if name == "timeline_measured" else sentence(name)
        for name, line in lines.items()
        if line
    ]


def _measured(cells: Sequence[CellTimeline]) -> str:
    text = f"Measured: {_part(cells)}"
    known = [cell.uncertainty_s for cell in cells if cell.uncertainty_s is not None]
    if max(known, default=0.0) > 0:  # ranks of one process have one clock
        worst = duration_text(max(known))
        text += f", on rank 0's clock; clocks of ranks may be {worst} apart"
    return f"{text}."


def _part(cells: Sequence[CellTimeline]) -> str:
    """Name the part of the runs that is shown; some strategies record a single step."""
    single = [len({b.mini_batch for b in cell.measured}) == 1 for cell in cells if cell.measured]
    if all(single):
        return "one more step after the timed ones"
    of_run = "the part of the run that took the median time"
    return f"{of_run}; of some, one more step after it" if any(single) else of_run


def measured_where(result: Result | None) -> list[str]:
    """Notes of a single cell, and its site, date and commit."""
    if result is None:
        return []
    created, commit = result.provenance.created, commit_of(result.provenance)
    where = place_and_time(f"Site {result.site}", created=created, commit=commit)
    return [*(f"{note}." for note in result.notes), where]


MOST_CELLS = 12
NOTHING = "No cell of the experiment has recorded spans."


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Draw the cells in the order of the matrix, planned above measured."""
    cells: list[CellTimeline] = []
    below: list[str] = []
    left_out = 0
    for cell in _cells(tables, context):
        if isinstance(cell, str):
            below.append(cell)
        elif len(cells) < MOST_CELLS:
            cells.append(cell)
        else:
            left_out += 1
    if left_out:
        below.append(
            f"{left_out} more strategies and geometries: ddlbench report timeline CELL_FOLDER."
        )
    if cells:
        below.append(sentence("timelines"))
    shown = [window for cell in cells for window in shown_windows(cell)]
    ids = {cell.cell.id.rpartition("/")[0] for cell in cells}
    summary = tables.summary
    chosen = summary[summary["configuration"].isin(ids)] if ids else summary
    # The figure has no number from a table, so no sign.
    lines = footer(without_signs(chosen), context, [*sentences(cells), *below])
    if not shown:
        return nothing_to_show(TITLE, NOTHING, lines, COLUMNS)
    return draw_page(TITLE, shown, lines)


def draw_cell(cell: CellTimeline) -> tuple[Figure, pd.DataFrame]:
    """One cell: planned above, measured below."""
    lines = [*sentences([cell]), *measured_where(cell.result)]
    return draw_page(TITLE, list(shown_windows(cell)), lines)


def _cells(tables: Tables, context: Context) -> Iterator[CellTimeline | str]:
    """The first cell with spans of each strategy and geometry; a sentence if it is unreadable."""
    seen: set[tuple[str, str]] = set()
    good = tables.measurements[tables.measurements["status"] == Status.OK]
    parallel = good[good["strategy"] != BASE]
    good = parallel if len(parallel) else good  # one device alone has no schedule to compare with
    for row in rows_of(good):
        key = (str(row.strategy), str(row.geometry))
        folder = context.results / cell_dir(row.site, row.cell_id).relative_to(RESULTS)
        if key in seen or not has_spans(folder):
            continue
        seen.add(key)
        try:
            yield read_cell(folder)
        except InvalidTimeline as error:
            yield f"Not shown: {error}."


def draw_schedule(lesson: Lesson) -> tuple[Figure, pd.DataFrame]:
    """The picture of a schedule, and a table of its boxes."""
    if lesson.division:
        below = [*caption(lesson), *division_sentences(lesson)]
        return draw_page("Which replica computes which mini-batch", show_division(lesson), below)
    return draw_page("Which device computes what when", [show_schedule(lesson)], caption(lesson))


def show_division(lesson: Lesson) -> list[Shown]:
    """PipeDream's mini-batches as its release, the thesis and this project divide them.

    Raises:
        ConfigError: the lesson has no division, or its numbers do not go together.
    """
    per_loader = mini_batches_of_a_loader(lesson)
    replicas = pipedream_replicas(lesson)
    shown = []
    kept = thesis_per_loader(replicas, per_loader)
    for rule, each in (("released runtime", per_loader), ("thesis", kept)):
        whole = each * replicas[0]
        dropped = lesson.batches - whole
        heading = f"{rule}: {whole} mini-batches" + (f", {dropped} dropped" if dropped else "")
        why = why_release_stops(replicas, each) if each else "a loader has too few mini-batches"
        if why:
            nothing = Window(rule, 0, 0, False, None, None)
            heading += "; it stops before the first pass" if each else ""
            shown.append(Shown(heading, nothing, (), not_planned=why, in_seconds=False))
        else:
            shown.append(_named(show_schedule(replace(lesson, batches=whole)), rule, heading))
    here = "this project: a mini-batch's number decides on its replica, whatever their count"
    return [*shown, _named(show_schedule(lesson), "this project", here)]


def _named(shown: Shown, title: str, heading: str) -> Shown:
    return replace(shown, heading=heading, window=replace(shown.window, title=title))


def division_sentences(lesson: Lesson) -> list[str]:
    """Why the release may stop, and whether its division is the one that is drawn."""
    replicas = pipedream_replicas(lesson)
    kept = thesis_per_loader(replicas, mini_batches_of_a_loader(lesson))
    lines = [sentence("division", multiple=math.lcm(*replicas[1:]))]
    if kept and not why_release_stops(replicas, kept):
        ours = mini_batches_of(pipedream(replicas, kept * replicas[0]))
        theirs = [
            release_receives(replicas, stage, replica, kept)
            for stage, count in enumerate(replicas)
            for replica in range(count)
        ]
        if ours != theirs:
            lines.append(sentence("division_numbers"))
    return lines


@lru_cache(maxsize=1)
def show_schedule(lesson: Lesson) -> Shown:
    """The window of a schedule with all its boxes.

    Raises:
        ConfigError: the lesson's numbers do not go together.
    """
    planned = planned_lesson(lesson)
    durations = unit_durations(
        planned.schedule.num_stages,
        forward=lesson.forward_of(planned.schedule.num_stages),
        backward=lesson.backward,
        update=lesson.update,
        all_reduce=lesson.all_reduce,
    )
    boxes = boxes_of(
        planned,
        durations,
        links=lambda source, target, send: lesson.message,
        messaging=lesson.messaging,
    )
    rows = _device_rows(planned.schedule, staged=lesson.schedule != "data-parallel")
    heading = f"{lesson.schedule}, {counted(len(rows), 'device')}"
    return Shown(heading, whole_run(boxes, len(rows), planned.flushes), rows, in_seconds=False)


_SEVERAL_STAGES = ("interleaved", "zero-bubble", "zero-bubble-v")


def caption(lesson: Lesson) -> list[str]:
    """The sentences under the picture."""
    forward, backward = "A forward pass takes 1", f"a backward pass {lesson.backward:g}"
    if lesson.durations:
        taken = ", ".join(f"{duration:g}" for duration in lesson.durations)
        forward, backward = f"A forward pass takes {taken} by stage", f"{backward} times that"
    if lesson.schedule.startswith("zero-bubble"):
        backward += " (half for inputs, half for weights)"
    numbers = "mini-batches" if lesson.schedule in WHOLE else "micro-batches"
    sums = len(set(lesson.replicas)) > 1 or lesson.stage_all_reduce != "sync"
    return [
        sentence("schedule", passes=f"{forward}, {backward}", lesson=lesson, numbers=numbers),
        *([sentence(f"stage_all_reduce_{lesson.stage_all_reduce}")] if sums else []),
        *([sentence("timeline_paler")] if lesson.schedule in _SEVERAL_STAGES else []),
        sentence("schedule_alone"),
    ]


def _device_rows(schedule: Schedule, staged: bool) -> tuple[Row, ...]:
    rows = []
    for rank in range(schedule.world_size):
        stages = tuple(s for s, ranks in enumerate(schedule.stage_ranks) if rank in ranks)
        ranks = schedule.stage_ranks[stages[0]]
        replica = ranks.index(rank) if len(ranks) > 1 else None
        rows.append(Row(f"device {rank}", stages, replica) if staged else Row(f"device {rank}"))
    return tuple(rows)
