"""``ddlbench report timeline``: what each device of a cell does when, planned and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ddlbench.commands.options import written
from ddlbench.common.document import write_json
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import Number, WholeNumber, examples, show
from ddlbench.report.drawing import draw_figure
from ddlbench.report.timeline.box import trace_of_boxes
from ddlbench.report.timeline.cell import read_cell
from ddlbench.report.timeline.figure import SCHEDULES, STAGE_ALL_REDUCES, Lesson, show_schedule
from ddlbench.report.traces.breakdown import breakdowns_of, lines_of, values_of
from ddlbench.report.traces.formats import FORMATS, write_cell

_OF_TRACES = ("last_step", "exact", "as_json")
_OF_PICTURES = ("out", "steps")


@click.command(
    "timeline",
    epilog=examples(
        "ddlbench report timeline results/local/cells/cifar10/resnet18/ddp/1x2/batch_size=16/rep0",
        "ddlbench report timeline traces/ --json",
        "ddlbench report timeline --schedule 1f1b --stages 4 --mini-batches 8",
    ),
)
@click.argument(
    "paths", metavar="[CELL_FOLDER | TRACE...]", nargs=-1, type=click.Path(path_type=Path)
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder; the cell's if left out.")
@click.option(
    "--steps",
    type=WholeNumber(1),
    help="Steps, or mini-batches, to show; chosen if left out, 1 for a schedule alone.",
)
@click.option(
    "--write",
    "to_write",
    nargs=2,
    metavar="FORMAT FOLDER",
    help=f"Write the cell for other tools in place of a picture: {', '.join(FORMATS)}.",
)
@click.option("--last-step", is_flag=True, help="Of traces: count the last step's work, too.")
@click.option("--exact", is_flag=True, help="Of traces: do not round to microseconds, as HTA does.")
@click.option("--json", "as_json", is_flag=True, help="Of traces: print JSON instead of a table.")
@click.option(
    "--schedule",
    type=click.Choice(list(SCHEDULES)),
    metavar="NAME",
    help=f"Draw this schedule alone: {', '.join(SCHEDULES)}.",
)
@click.option("--stages", type=WholeNumber(1), help="Of the schedule.  [default: 4]")
@click.option(
    "--mini-batches",
    "--micro-batches",
    "batches",
    type=WholeNumber(1),
    default=8,
    show_default=True,
    help="Mini-batches, or micro-batches of a step where the schedule splits them.",
)
@click.option(
    "--replicas",
    default="1",
    show_default=True,
    help="Copies of the whole; of each stage for pipedream, as 2+1+1.",
)
@click.option("--stages-per-device", type=WholeNumber(1), default=2, show_default=True)
@click.option(
    "--stage-all-reduce",
    type=click.Choice(list(STAGE_ALL_REDUCES)),
    default="sync",
    show_default=True,
    help="When replicas of a stage of pipedream wait for the sum of their gradients: before the "
    "update, before the next one, or within the backward pass, as torch's DDP.",
)
@click.option(
    "--division",
    is_flag=True,
    help="Also what PipeDream's released runtime does with mini-batches that the replicas of a "
    "stage do not divide.",
)
@click.option("--durations", help="Forward pass of each stage, as 2,1,1; 1 each if left out.")
@click.option("--backward", type=Number(0), default=2.0, show_default=True)
@click.option("--update", type=Number(0), default=0.0, show_default=True)
@click.option("--all-reduce", type=Number(0), default=1.0, show_default=True)
@click.option(
    "--message",
    type=Number(0),
    default=0.0,
    show_default=True,
    help="These four: how long, in forward passes.",
)
@click.pass_context
def timeline(
    context: click.Context,
    *,
    paths: tuple[Path, ...],
    out: Path | None,
    steps: int | None,
    to_write: tuple[str, str] | None,
    last_step: bool,
    exact: bool,
    as_json: bool,
    schedule: str | None,
    **options: Any,
) -> None:
    """Draw what devices do when; break down traces of others.

    CELL_FOLDER is a folder below results/<site>/cells/ with a plan.json. Writes a PNG, a PDF, a CSV
    of the boxes, and a JSON file for chrome://tracing or ui.perfetto.dev.

    TRACE is a file of torch.profiler (Kineto: .json, .json.gz), one a rank, or a folder of them.
    Prints how much of the time each rank computes, waits for communication, copies, or is idle.
    """
    if bool(paths) == (schedule is not None):
        raise ConfigError(
            "timeline: write a cell's folder, below results/<site>/cells/, traces of "
            f"torch.profiler, or --schedule with one of {', '.join(SCHEDULES)}"
        )
    if schedule is not None:
        _only("a cell or traces", written(context, ("to_write", *_OF_TRACES)))
        made = _of_schedule(_lesson(schedule, steps, **options), out or Path())
        click.echo(f"{made}, .pdf, .csv and .json are written")
        return
    _only("a --schedule", written(context, options))
    if _are_traces(paths):
        _only("a cell", written(context, ("to_write", *_OF_PICTURES)))
        breakdowns = breakdowns_of(paths, last_step=last_step, exact=exact)
        show(
            [values_of(breakdown) for breakdown in breakdowns],
            lines_of(breakdowns),
            as_json=as_json,
        )
        return
    _only("traces", written(context, _OF_TRACES))
    if len(paths) > 1:
        raise ConfigError(f"timeline: {len(paths)} folders; name one cell, or files of traces")
    if to_write is not None:
        _only("a picture", written(context, _OF_PICTURES))
        form, folder = to_write
        click.echo("\n".join(map(str, write_cell(paths[0], form, Path(folder)))))
        return
    made = _of_cell(paths[0], out or paths[0], steps)
    click.echo(f"{made}, .pdf, .csv and .json are written")


def _only(subject: str, options: Sequence[str]) -> None:
    if options:
        raise ConfigError(f"timeline: {', '.join(options)}: only for {subject}; leave it out")


def _are_traces(paths: Sequence[Path]) -> bool:
    """Whether files are named, or folders of traces, which have no plan.json."""
    if any(not path.is_dir() for path in paths):
        return any(path.exists() or path.suffix in (".json", ".gz") for path in paths)
    if any((path / "plan.json").is_file() for path in paths):
        return False
    return any(file.suffix in (".json", ".gz") for path in paths for file in path.iterdir())


def _of_cell(folder: Path, out: Path, steps: int | None) -> Path:
    cell = read_cell(folder, steps)
    png = draw_figure("timeline", out / "timeline.png", cell)
    boxes = {"planned": cell.planned, "measured": cell.measured}
    write_json(png.with_suffix(".json"), trace_of_boxes(boxes, cell.rows))
    return png


def _of_schedule(lesson: Lesson, out: Path) -> Path:
    png = draw_figure("schedule", out / f"{lesson.schedule}.png", lesson)
    shown = show_schedule(lesson)
    assert shown.window.planned is not None
    trace = trace_of_boxes({"planned": shown.window.planned.boxes}, shown.rows)
    write_json(png.with_suffix(".json"), trace)
    return png


def _lesson(
    schedule: str, steps: int | None, *, replicas: str, durations: str | None, **options: Any
) -> Lesson:
    parts = replicas.split("+")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--replicas {replicas}: write a number above 0, or as 2+1+1")
    counts = tuple(map(int, parts))
    taken = _numbers("--durations", durations)
    stages = options.pop("stages")
    if stages and schedule == "data-parallel":
        raise ConfigError(
            f"--stages: {schedule} does not cut the network; write --replicas {stages} for as many "
            "devices"
        )
    stages = stages or (len(counts) if len(counts) > 1 else len(taken) or 4)
    return Lesson(schedule, stages=stages, replicas=counts, steps=steps, durations=taken, **options)


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (math.nan,)
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ConfigError(f"{option} {text}: write numbers above 0, as 2,1,1")
    return numbers
