"""``ddlbench oracle score|calibrate|terms RUNS``: tables of runs that other people published.

The kind of a table is told by its columns (:mod:`ddlbench.predict.run_tables`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import examples, paragraph, table
from ddlbench.experiment.cell import parse_geometry
from ddlbench.predict import horovod_scaling
from ddlbench.predict.hardware import Software
from ddlbench.predict.platforms import Fit, read_table
from ddlbench.predict.run_tables import (
    HOLD_OUTS,
    TABLES,
    HoldOut,
    ScoreQuestion,
    kind_of,
    kind_of_columns,
    score_file,
)
from ddlbench.predict.transformer.decoder_fit import FEW_ROWS, proposals
from ddlbench.predict.transformer.decoder_terms import term_gains
from ddlbench.predict.transformer.run_scores import calibrated
from ddlbench.predict.transformer.training_runs import ORIGINS, concatenated, training_runs

_PATH = click.Path(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
HOLD_OUT = click.option(
    "--hold-out",
    type=click.Choice(HOLD_OUTS),
    default="none",
    show_default=True,
    help="Predict each model, number of GPUs, submitter or device with constants fitted without "
    "it; none takes the constants as they are.",
)
KIND = click.option(
    "--kind",
    default="",
    metavar="NAME=VALUE,...",
    help="Only such rows: pipeline=no, max_gpus=256, tensor_max=8, model, accelerator, submitter, "
    "min_bytes, ...; of decoders cleaned=no; own_rows=10 fits three constants to random rows.",
)
SOFTWARE = click.option("--software", help="Its name in config/software, or a file.")
FABRIC = click.option(
    "--fabric", help="In place of the table's: its name in config/fabrics, or a file."
)
HARDWARE = click.option(
    "--hardware", help="In place of the table's: its name in config/hardware, or a file."
)
_SHOWN = ("model", "devices", "tensor", "pipeline", "accelerator")
_MOST_VALUES = 8

published = click.Group()
"""Commands that stand for those of the same name where a table is of a known kind."""


def is_published(name: str | None, arguments: Sequence[str]) -> bool:
    """Whether a command of :data:`published` answers: by the columns of the first table given."""
    if name not in published.commands:
        return False
    if "--geometry" in (word.partition("=")[0] for word in arguments):
        return True
    for word in arguments:
        path = Path(word)
        if not word.startswith("-") and path.suffix == ".csv" and path.is_file():
            columns = list(read_table(path, ()).columns)
            return kind_of_columns(columns) is not None or any(
                mark in columns for kind in TABLES.values() for mark in kind.marks
            )
    return False


def kinds(text: str) -> dict[str, str]:
    """Filters of rows, from ``name=value,...``.

    Raises:
        ConfigError: a part has no value.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if "=" not in part:
            raise ConfigError(f"--kind {part!r} has no value; write as pipeline=no,max_gpus=256")
    return {name.strip(): value.strip() for name, _, value in (p.partition("=") for p in parts)}


@published.command(
    "score",
    short_help="Score predictions of published runs.",
    epilog=examples("ddlbench oracle score runs.csv --hold-out model --kind pipeline=no"),
)
@click.argument("runs", type=_PATH)
@HOLD_OUT
@KIND
@SOFTWARE
@HARDWARE
@FABRIC
@JSON
def score_command(
    *,
    runs: Path,
    hold_out: str,
    kind: str,
    software: str | None,
    hardware: str | None,
    fabric: str | None,
    as_json: bool,
) -> None:
    """Score predictions of RUNS, a table that other people published, from data sheets."""
    question = ScoreQuestion(cast(HoldOut, hold_out), kinds(kind), software, hardware, fabric)
    values = score_file(runs, question)
    name = kind_of(runs).name
    lines = score_lines(values, f"{name}: {runs.name}", question)
    if (origin := ORIGINS.get(name)) and origin.accelerator and hardware is None:
        lines += paragraph(
            f"Its columns name no device: {origin.accelerator} is taken; yours is --hardware NAME."
        )
    click.echo(json.dumps(values) if as_json else "\n".join(lines))


@published.command(
    "calibrate",
    short_help="Fit constants of software to own runs.",
    epilog=examples("ddlbench oracle calibrate runs.csv --software nanotron --output mine.yaml"),
)
@click.argument("runs", type=_PATH, nargs=-1)
@SOFTWARE
@HARDWARE
@FABRIC
@click.option("--output", type=_PATH, help="Write the software's file here.")
@click.option("--geometry", help="Propose which runs to measure on NODESxDEVICES.")
@JSON
def calibrate_command(
    *,
    runs: tuple[Path, ...],
    software: str | None,
    hardware: str | None,
    fabric: str | None,
    output: Path | None,
    geometry: str | None,
    as_json: bool,
) -> None:
    """Fit constants of software to the runs of all tables RUNS.

    Up to ten runs fit three constants: share of the peak, host's time a layer, latency of a node.
    With --geometry and no table, say which runs to measure.
    """
    values: dict[str, Any] = {}
    lines: list[str] = []
    if geometry:
        nodes, devices_per_node = parse_geometry(geometry, where="--geometry")
        proposed = proposals(devices_per_node, nodes)
        values["proposed"] = [{"tells": entry.bound_by, **entry.layout} for entry in proposed]
        lines += table(
            "tells | > tensor | > data | > pipeline | > micro-batch",
            [(entry.bound_by, *map(str, entry.layout.values())) for entry in proposed],
        )
    if runs:
        question = ScoreQuestion(software=software, device=hardware, fabric=fabric)
        tables = [training_runs(read_table(entry, ()), question, str(entry)) for entry in runs]
        if len({entry.origin for entry in tables}) > 1:
            raise ConfigError("tables of different kinds; calibrate one software at a time")
        given = Software.load(software or tables[0].origin.software)
        where = ", ".join(path.name for path in runs)
        fitted, fits = calibrated(concatenated(tables), given, where)
        values |= {
            "rows": sum(entry.rows for entry in fits),
            "constants": {name: entry.of(name) for entry in fits for name in entry.constants},
            "intervals": {name: entry.to_dict() for name, entry in fitted.intervals.items()},
        }
        lines += calibration_lines(given, fits)
        if output:
            fitted.write(output)
            values["written"] = str(output)
            lines.append(f"{output} is written")
    if not values:
        raise ConfigError("nothing to do; give tables of runs, or --geometry 8x8")
    click.echo(json.dumps(values) if as_json else "\n".join(lines))


@click.command(
    "terms",
    short_help="Say what each term of the model buys.",
    epilog=examples(
        "ddlbench oracle terms runs.csv",
    ),
)
@click.argument("runs", type=_PATH)
@HOLD_OUT
@SOFTWARE
@HARDWARE
@FABRIC
@JSON
def terms_command(
    *,
    runs: Path,
    hold_out: str,
    software: str | None,
    hardware: str | None,
    fabric: str | None,
    as_json: bool,
) -> None:
    """Take each term of a model out, fit again, and score RUNS held out.

    Each model of decoders, or submitter of MLPerf, is held out in turn, unless --hold-out says
    another.
    """
    kind = kind_of(runs).name
    question = ScoreQuestion(cast(HoldOut, hold_out), {}, software, hardware, fabric)
    if kind == "mlperf":
        rows = list(horovod_scaling.term_gains(read_table(runs, ()), question))
        lines = scaling_terms_lines(rows)
        click.echo(json.dumps(rows) if as_json else "\n".join(lines))
        return
    if kind not in ORIGINS:
        raise ConfigError(f"{runs}: terms are of the tables {', '.join(ORIGINS)} and mlperf only")
    rows = list(term_gains(read_table(runs, ()), question))
    click.echo(json.dumps(rows) if as_json else "\n".join(terms_lines(rows)))


def _percent(value: Any) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _errors(values: Mapping[str, Any], name: str = "") -> str:
    """Mean and median error in per cent."""
    mean = values.get(f"{name}mean_absolute_error")
    median = values.get(f"{name}median_absolute_error")
    return "" if mean is None else f"{_percent(mean)} / {_percent(median)}"


def score_lines(values: Mapping[str, Any], where: str, question: ScoreQuestion) -> list[str]:
    """Errors for a terminal; mean / median in per cent."""
    held = question.hold_out
    how = "constants as they are" if held == "none" else f"each {held} held out in turn"
    lines = paragraph(f"{where}, {values['rows']:,} rows, {how}; errors are mean / median in %")
    rows = []
    if _errors(values):
        within = f"{values['within_20_percent']:.0%} within 20 %"
        rows.append(("time", _errors(values), within))
    if _errors(values, "memory_"):
        rows.append(("memory", _errors(values, "memory_"), "the nearer of both settings of inputs"))
    fit = values.get("fit") or {}
    for name, share in fit.items():
        if share is not None:
            rows.append((name.replace("_", " "), _percent(share), ""))
    choice = values.get("choice") or {}
    if choice.get("cases"):
        three = f"{_percent(choice['best_of_three_regret'])} of the best of three"
        rows.append(("mean regret", _percent(choice["mean_regret"]), three))
    lines += table("part | > % | remark", rows)
    for name in (column for column in _SHOWN if column in values.get("by", {})):
        parts = [
            (f"{value}", f"{column.get('rows', '')}", _errors(column), _errors(column, "memory_"))
            for value, column in list(values["by"][name].items())[:_MOST_VALUES]
            if isinstance(column, Mapping)
        ]
        lines += table(f"{name} | > rows | > time | > memory", parts)
    return lines


def calibration_lines(software: Software, fits: Sequence[Fit]) -> list[str]:
    """Every fitted constant with its interval."""
    parts = [f"{fit.rows:,} rows fit {len(fit.constants)} constants" for fit in fits]
    few = f"; up to {FEW_ROWS} rows fit three" if fits[0].rows <= FEW_ROWS else ""
    lines = paragraph(f"{software.description}; {', '.join(parts)}{few}")
    return lines + table(
        "constant | > fitted | > 90 % | > prior | unit", list(_constants(software, fits))
    )


def _constants(software: Software, fits: Sequence[Fit]) -> Iterator[tuple[str, ...]]:
    for fit in fits:
        for name, value in fit.constants.items():
            low, high = fit.intervals[name]
            constant = software.constants[name]
            ends = f"{low:.2g} to {high:.2g}"
            yield name, f"{value:.3g}", ends, f"{constant.prior:.3g}", constant.unit


def terms_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors without each term."""
    lines = paragraph(
        "without ...: errors of steps, mean / median in %; mean error of memory; mean regret of "
        "choices without pipelines"
    )
    cells = [
        (
            str(row["term"]),
            *(_errors(row.get(kind, {})) for kind in ("no_pipeline", "pipeline")),
            _percent(row["memory_mean_absolute_error"]),
            _percent(row["mean_regret"]),
        )
        for row in rows
    ]
    return lines + table("without | > no pipeline | > pipeline | > memory | > regret", cells)


def scaling_terms_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors of MLPerf's steps without each term."""
    cells = [
        (str(row["term"]), *(_errors(row.get(kind, {})) for kind in ("all", "many")))
        for row in rows
    ]
    lines = paragraph("without ...: errors of steps, mean / median in %")
    return lines + table("without | > all | > 64 accelerators and more", cells)
