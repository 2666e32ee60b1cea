"""``ddlbench oracle ... --workload transformer``: tensor x data x pipeline, chosen and scored."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands import oracle_transformer_display as display
from ddlbench.commands.experiment_options import with_matrix
from ddlbench.common.document import whole_file
from ddlbench.common.errors import ConfigError
from ddlbench.predict.transformer import search
from ddlbench.predict.transformer.accelerators import Accelerators
from ddlbench.predict.transformer.calibrate import calibrate, calibrated, held_out_s
from ddlbench.predict.transformer.counts import RECOMPUTATIONS
from ddlbench.predict.transformer.own_runs import COLUMNS, own_rows
from ddlbench.predict.transformer.runs import choices, read_runs, score, scored
from ddlbench.predict.transformer.search import Question, best
from ddlbench.predict.transformer.shapes import is_shape, load_shape
from ddlbench.predict.transformer.step import steps
from ddlbench.report.drawing import draw_figure

if TYPE_CHECKING:
    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow

PLATFORM = "a100-80gb"
BILLION = 1e9
_HOURS_PER_DAY = 24.0
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def with_accelerators(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--platform`` and hand the platform to the command."""

    @click.option(
        "--platform",
        "platform_name",
        default=PLATFORM,
        show_default=True,
        help="Its name in config/platforms, or a file.",
    )
    @wraps(command)
    def wrapped(platform_name: str, **options: Any) -> None:
        command(platform=Accelerators.load(platform_name), **options)

    return wrapped


def _of_shape(command: Callable[..., None]) -> Callable[..., None]:
    """Add SHAPE and what of a configuration is given, and hand a question to the command."""

    @click.argument("shape_name", metavar="SHAPE")
    @click.option("--batch-size", type=int, required=True, help="Samples over all devices.")
    @click.option(
        "--memory-gb", type=float, help="Of a device; 94 % of the platform's if left out."
    )
    @click.option("--zero", type=click.IntRange(0, 3), default=0, help="Stage of ZeRO.")
    @click.option("--sequence-parallel", is_flag=True, help="Divide norms and dropout, too.")
    @click.option(
        "--recomputation",
        type=click.Choice(["none", "selective", "full"]),
        help="Only this; all are tried if left out.",
    )
    @JSON
    @with_accelerators
    @wraps(command)
    def wrapped(
        *,
        shape_name: str,
        platform: Accelerators,
        batch_size: int,
        memory_gb: float | None,
        zero: int,
        sequence_parallel: bool,
        recomputation: str | None,
        **options: Any,
    ) -> None:
        whole = platform.device["memory_bytes"] * search.USABLE
        question = search.Question(
            shape=load_shape(shape_name),
            platform=platform,
            batch=batch_size,
            memory_bytes=memory_gb * BILLION if memory_gb else whole,
            zero=zero,
            sequence_parallel=sequence_parallel,
            recomputations=(recomputation,) if recomputation else RECOMPUTATIONS,
        )
        command(question=question, name=shape_name, **options)

    return wrapped


@click.command("best", short_help="Rank the ways to cut a transformer.")
@_of_shape
@click.option("--devices", type=int, required=True)
def best_command(*, question: Question, name: str, devices: int, as_json: bool) -> None:
    """Rank the ways to cut SHAPE over so many devices at one global batch.

    SHAPE is a published transformer (gpt3-175b, megatron-39.1b, ...) or a YAML file with layers,
    hidden_size, attention_heads, sequence_length and vocabulary.
    """
    found = best(question, devices)
    if as_json:
        ranking = [display.answer(one) for one in found]
        click.echo(json.dumps({"best": ranking[0], "next": ranking[1:2], "ranking": ranking}))
    else:
        click.echo("\n".join(display.best_lines(found, name, question)))


@click.command("limits", short_help="Say how far a transformer scales.")
@_of_shape
@click.option("--max-devices", type=int, default=4096, show_default=True)
def limits_command(*, question: Question, name: str, max_devices: int, as_json: bool) -> None:
    """Say how SHAPE scales at one global batch, and from where on efficiency is under a half."""
    found = search.scaling(search.without_replays(question), search.powers(max_devices))
    if as_json:
        shares = search.efficiencies(found)
        sizes = [
            {**display.answer(one), "efficiency": share}
            for one, share in zip(found, shares, strict=True)
        ]
        click.echo(json.dumps({"below_half_from": search.below_half(found), "sizes": sizes}))
    else:
        click.echo("\n".join(display.limits_lines(found, name, question)))


@click.command("target", short_help="Say which devices end a training in time.")
@_of_shape
@click.option("--tokens-billion", type=float, required=True, help="Of the whole training.")
@click.option("--days", type=float, required=True, help="That it may take.")
@click.option("--max-devices", type=int, default=4096, show_default=True)
def target_command(
    *,
    question: Question,
    name: str,
    tokens_billion: float,
    days: float,
    max_devices: int,
    as_json: bool,
) -> None:
    """Say with how few devices a training of SHAPE ends in time, and what it costs."""
    if tokens_billion <= 0 or days <= 0:
        raise ConfigError(
            f"{tokens_billion:g} billion tokens in {days:g} days: write numbers above 0"
        )
    tokens, seconds = tokens_billion * BILLION, days * _HOURS_PER_DAY * search.SECONDS_PER_HOUR
    found = search.scaling(search.without_replays(question), search.powers(max_devices))
    chosen = search.fewest(found, tokens, seconds)
    if as_json:
        answer = display.answer(chosen, tokens) if chosen else None
        click.echo(json.dumps({"tokens": tokens, "days": days, "answer": answer}))
    else:
        click.echo(
            "\n".join(display.target_lines(found, chosen, name, question, tokens=tokens, days=days))
        )


@click.command("score", short_help="Score predicted steps against measured ones.")
@click.argument("measured", type=click.Path(path_type=Path))
@click.option(
    "--hold-out",
    type=click.Choice(["hidden_size", "devices", "layers"]),
    help="Fit without the rows of each value in turn, and score those.",
)
@click.option(
    "--also",
    type=click.Path(path_type=Path),
    multiple=True,
    help="With --hold-out: fit these tables' rows as well, those held out left out.",
)
@JSON
@with_accelerators
def score_command(
    *,
    measured: Path,
    hold_out: str | None,
    also: tuple[Path, ...],
    platform: Accelerators,
    as_json: bool,
) -> None:
    """Score predictions against the measured steps of MEASURED, a CSV table.

    Columns: hidden_size, attention_heads, layers, sequence_length, global_batch, micro_batch,
    tensor, data, pipeline, step_s; also known: vocabulary, schedule, chunks, recomputation, zero,
    sequence_parallel.
    """
    runs = read_runs(measured)
    if also and not hold_out:
        raise ConfigError("--also adds rows to a fit; write --hold-out, or leave it out")
    if hold_out:
        others = read_runs(*also) if also else None
        predicted = held_out_s(runs, platform, hold_out, others)
    else:
        predicted = steps(runs.asked, platform).seconds
    found = {
        **scored(runs, predicted),
        "hold_out": hold_out,
        "choices": dict(choices(runs, predicted)),
    }
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(display.score_lines(found, platform)))


@click.command("calibrate", short_help="Fit a platform's constants to measured steps.")
@click.argument("measured", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--output", type=click.Path(path_type=Path), help="Write the platform file here.")
@JSON
@with_accelerators
def calibrate_command(
    *, measured: tuple[Path, ...], output: Path | None, platform: Accelerators, as_json: bool
) -> None:
    """Fit the platform's constants to the steps of all tables MEASURED, and say each of them.

    The interval of the file comes from the same rows with each hidden size held out in turn, or
    each number of devices where there is one size only.
    """
    runs = read_runs(*measured)
    fit = calibrate(runs, platform)
    names = ", ".join(path.name for path in measured)
    fitted = calibrated(platform, fit, runs, names)
    value: dict[str, Any] = {
        "rows": fit.rows,
        "constants": {
            name: {
                "value": fit.constants[name],
                "low": fit.intervals[name][0],
                "high": fit.intervals[name][1],
                "prior": entry["prior"],
                "at_most": entry.get("at_most"),
                "unit": entry["unit"],
                "meaning": entry["meaning"],
            }
            for name, entry in fitted.values["fitted"].items()
        },
        "mean_absolute_error": score(runs, fitted)["mean_absolute_error"],
        "interval": dict(fitted.values["interval"]),
    }
    if output is not None:
        fitted.write(output)
        value["written"] = str(output)
    if as_json:
        click.echo(json.dumps(value))
    else:
        click.echo("\n".join(display.calibration_lines(value, platform)))


@click.command("rows", short_help="Write measured cells as a table of runs.")
@with_matrix
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Write the CSV table here."
)
def rows_command(
    *, experiment: Experiment, site: Site, rows: list[MatrixRow], output: Path
) -> None:
    """Write the experiment's measured cells of transformers as rows for score and calibrate.

    A row is the median step of a cell's repeats: sequential, data-parallel, FSDP and synchronous
    pipelines in fp32.
    """
    found = own_rows(rows, site.name)
    if not found:
        raise ConfigError(
            f"{experiment.where}: site {site.name} has no measured cell of a transformer; measure "
            "one of vit-tiny, gpt-tiny, ... first"
        )
    with whole_file(output) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)
    click.echo(f"{output} is written: {len(found)} row(s)")


@click.command("figure", short_help="Draw measurements beside predictions.")
@click.argument("measured", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Folder.")
@with_accelerators
def figure_command(measured: tuple[Path, ...], out: Path, platform: Accelerators) -> None:
    """Draw all tables MEASURED beside predictions, and how a 175-billion-parameter model scales.

    Each hidden size is predicted with constants fitted to the others. Writes transformer_runs,
    transformer_errors and transformer_scaling, each as .png, .pdf and .csv.
    """
    runs = read_runs(*measured)
    predicted = held_out_s(runs, platform, "hidden_size")
    where = f"{', '.join(path.name for path in measured)}. {platform.description}."
    for name in ("transformer_runs", "transformer_errors"):
        made = draw_figure(name, out / f"{name}.png", runs, predicted, where)
        click.echo(f"{made}, .pdf and .csv are written")
    made = draw_figure("transformer_scaling", out / "transformer_scaling.png", platform)
    click.echo(f"{made}, .pdf and .csv are written")


COMMANDS: dict[str, click.Command] = {
    str(command.name): command
    for command in (
        best_command,
        limits_command,
        target_command,
        score_command,
        calibrate_command,
        rows_command,
        figure_command,
    )
}
WORKLOADS = ("cnn", "transformer")


class ByWorkload(click.Group):
    """A group whose commands speak of CNNs, or of transformers with ``--workload transformer``.

    A command also speaks of transformers if its first argument is the name of a published one.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command for ``args``; ``--workload`` is taken out of them."""
        name, command, rest = super().resolve_command(ctx, args)
        workload, rest = _workload(rest)
        if workload is None and any(_names_transformer(word) for word in rest[:1]):
            workload = "transformer"
        if workload == "transformer":
            if name not in COMMANDS:
                known = ", ".join(COMMANDS)
                raise ConfigError(f"oracle {name} speaks of CNNs only; for transformers: {known}")
            command = COMMANDS[str(name)]
        return name, command, rest


def _workload(args: list[str]) -> tuple[str | None, list[str]]:
    """The value of ``--workload``, and the other arguments."""
    for place, word in enumerate(args):
        if word == "--workload" or word.startswith("--workload="):
            _, equals, value = word.partition("=")
            rest = args[:place] + args[place + (1 if equals else 2) :]
            if not equals:
                value = args[place + 1] if place + 1 < len(args) else ""
            if value not in WORKLOADS:
                raise ConfigError(f"--workload {value!r}; write {' or '.join(WORKLOADS)}")
            return value, rest
    return None, args


def _names_transformer(word: str) -> bool:
    """Whether a first argument is a published transformer or a shape file."""
    if word.startswith("-"):
        return False

    return is_shape(word)
