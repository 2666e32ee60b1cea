"""``ddlbench oracle score|terms|roofline|read``: how right models are on other people's runs.

The kind of a table is told by its columns (:mod:`ddlbench.predict.run_tables`). ``read`` makes one
from other people's logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from ddlbench.commands.measured_links import MeasuredLinks, is_links_file, measured_links, text_of
from ddlbench.commands.options import JSON
from ddlbench.commands.oracle_display import accuracy_lines
from ddlbench.common.document import csv_text, write_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import MS, counted, duration_text, few
from ddlbench.common.screen import WholeNumber, examples, paragraph, show, table
from ddlbench.common.statistics import grouped
from ddlbench.interconnect.link_tests import FORMATS, format_of
from ddlbench.predict import horovod_scaling
from ddlbench.predict.roofline_score import (
    RUN_COLUMNS,
    RUNS,
    calibrated,
    eager_runs,
    node_runs,
    profiled_networks,
    scored,
)
from ddlbench.predict.run_logs import megatron, mlperf, torchtitan
from ddlbench.predict.run_logs.logged_run import (
    OUT_OF_MEMORY,
    LoggedRun,
    table_text,
    with_note,
)
from ddlbench.predict.run_tables import (
    CNN,
    HOLD_OUTS,
    HoldOut,
    ScoreQuestion,
    kind_of,
    read_table,
    refuse_options,
    score_file,
)
from ddlbench.predict.transformer.run_scores import term_gains
from ddlbench.predict.transformer.training_runs import ORIGINS

_PATH = click.Path(path_type=Path)
HOLD_OUT = click.option(
    "--hold-out",
    type=click.Choice(HOLD_OUTS),
    default="none",
    show_default=True,
    help="Predict each model, number of GPUs or layers, submitter or device with constants fitted "
    "without it; none takes the constants as they are.",
)
SOFTWARE = click.option("--software", help="Its name in config/software, or a file.")
FABRIC = click.option(
    "--fabric", help="In place of the table's: its name in config/fabrics, or a file."
)
HARDWARE = click.option(
    "--hardware", help="In place of the table's: its name in config/hardware, or a file."
)
PLATFORM = click.option(
    "--platform",
    help="Of CNNs (config/platforms) and GPTs (config/transformers): a name or a file; the one of "
    "such runs if left out.",
)
_SHOWN = ("model", "devices", "tensor", "pipeline", "accelerator", "family", "from")
_MOST_VALUES = 20
_WORST = 5


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


@click.command(
    "score",
    short_help="Score predictions of measured runs.",
    epilog=examples(
        "ddlbench oracle score runs.csv --hold-out model --kind pipeline=no",
        "ddlbench oracle score iterations.csv --predictor authors-code",
    ),
)
@click.argument("runs", type=_PATH)
@HOLD_OUT
@click.option(
    "--kind",
    default="",
    metavar="NAME=VALUE,...",
    help="Only such rows: pipeline=no, max_gpus=256, tensor_max=8, model, accelerator, submitter, "
    "min_bytes, ...; of decoders cleaned=no; own_rows=10 fits three constants to random rows.",
)
@SOFTWARE
@HARDWARE
@FABRIC
@PLATFORM
@click.option(
    "--predictor",
    default="corrected",
    show_default=True,
    help="Of CNNs: authors-code, printed-table, corrected, or a baseline: computation-only, "
    "carry-forward, paradl-projected.",
)
@JSON
def score_command(
    *,
    runs: Path,
    hold_out: str,
    kind: str,
    software: str | None,
    hardware: str | None,
    fabric: str | None,
    platform: str | None,
    predictor: str,
    as_json: bool,
) -> None:
    """Score predictions of RUNS, a table of runs that its columns tell.

    CNNs: model, strategy, gpus, seconds_per_iteration, and batch_per_gpu, batch_per_group or
    batch_global. GPTs: hidden_size, attention_heads, layers, sequence_length, global_batch,
    micro_batch, tensor, data, pipeline, step_s. docs/oracle.md tells the other kinds.
    """
    question = ScoreQuestion(
        cast(HoldOut, hold_out), kinds(kind), software, hardware, fabric, platform, predictor
    )
    name = kind_of(runs).name
    if name == CNN:
        sheets = {"software": software, "hardware": hardware, "fabric": fabric}
        refuse_options(sheets, "iterations of CNNs, which --platform describes")
    elif predictor != ScoreQuestion.predictor:
        refuse_options({"predictor": predictor}, "other runs than iterations of CNNs")
    values = score_file(runs, question)
    lines = (
        accuracy_lines(values)
        if name == CNN
        else score_lines(values, f"{name}: {runs.name}", question)
    )
    if (origin := ORIGINS.get(name)) and origin.accelerator and hardware is None:
        lines += paragraph(
            f"Its columns name no device: {origin.accelerator} is taken; yours is --hardware NAME."
        )
    show(values, lines, as_json=as_json)


@click.command(
    "terms",
    short_help="Say what each term of the model buys.",
    epilog=examples("ddlbench oracle terms runs.csv"),
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
        show(rows, terms_lines(rows, of_scaling=True), as_json=as_json)
        return
    if kind not in ORIGINS:
        raise ConfigError(f"{runs}: terms are of the tables {', '.join(ORIGINS)} and mlperf only")
    rows = list(term_gains(read_table(runs, ()), question))
    show(rows, terms_lines(rows, of_scaling=False), as_json=as_json)


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
    total, timed = values["rows"], values.get("timed_rows", values["rows"])
    counts = counted(total, "row") + ("" if timed == total else f", {timed:,} with a step")
    lines = paragraph(f"{where}, {counts}, {how}; errors are mean / median in %")
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
        three = (
            f"of {choice['cases']} choices, {_percent(choice['best_of_three_regret'])} of the best "
            "of three"
        )
        rows.append(("mean regret", _percent(choice["mean_regret"]), three))
    lines += table("part | > % | remark", rows)
    for name in (column for column in _SHOWN if column in values.get("by", {})):
        parts = [
            (f"{value}", f"{column.get('rows', '')}", _errors(column), _errors(column, "memory_"))
            for value, column in list(values["by"][name].items())[:_MOST_VALUES]
            if isinstance(column, Mapping)
        ]
        lines += table(f"{name} | > rows | > time | > memory", parts)
    if worst := values.get("worst"):
        lines += ["worst rows", *_worst_table(worst[:_WORST])]
    return lines


def _worst_table(worst: Sequence[Mapping[str, Any]]) -> list[str]:
    headings = "model | > devices | > t x d x p | > micro | > measured | > predicted | > error"
    rows = [
        (
            row["model"],
            str(row["devices"]),
            " x ".join(str(row[name]) for name in ("tensor", "data", "pipeline")),
            str(row["micro_batch"]),
            duration_text(row["measured_s"]),
            duration_text(row["predicted_s"]),
            f"{row['error']:+.0%}",
        )
        for row in worst
    ]
    return table(headings, rows)


def terms_lines(rows: Sequence[Mapping[str, Any]], *, of_scaling: bool) -> list[str]:
    """Errors without each term, of MLPerf's steps or of decoders' trainings."""
    text = "without ...: errors of steps, mean / median in %"
    if of_scaling:
        headings, kinds = "> all | > 64 accelerators and more", ("all", "many")
    else:
        text += "; mean error of memory; mean regret of choices without pipelines"
        headings = "> no pipeline | > pipeline | > memory | > regret"
        kinds = ("no_pipeline", "pipeline")
    others = () if of_scaling else ("memory_mean_absolute_error", "mean_regret")
    cells = [
        (
            str(row["term"]),
            *(_errors(row.get(kind, {})) for kind in kinds),
            *(_percent(row[name]) for name in others),
        )
        for row in rows
    ]
    return paragraph(text) + table(f"without | {headings}", cells)


@click.command(
    "roofline",
    short_help="Score block times by data sheets.",
    epilog=examples(
        "ddlbench oracle roofline",
        "ddlbench oracle roofline runs.csv --json",
    ),
)
@click.argument("runs", type=click.Path(path_type=Path), default=RUNS)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Fit on all rows and write the constants."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def roofline_command(runs: Path, output: Path | None, as_json: bool) -> None:
    """Score block times by data sheets on networks and devices that are held out.

    RUNS is a table of MLPerf's runs of ResNet-50, of which those on one node count; the project's
    if left out.
    """
    rows = node_runs(read_table(runs, RUN_COLUMNS), str(runs))
    values = scored(profiled_networks(), rows, eager_runs())
    lines = roofline_lines(values)
    if output is not None:
        calibrated(rows, runs.name).write(output)
        lines.append(f"written: {output}")
    show(values, lines, as_json=as_json)


def roofline_lines(values: dict[str, Any]) -> list[str]:
    """Errors by network, by device, and by step of this project."""
    lines = paragraph(
        "PipeDream's profiles (single precision, one V100), each network held out: mean error "
        f"{values['networks_mean_absolute_error']:.1%} of a whole pass"
    )
    lines += table(
        "network | > samples | > measured | > predicted | > error | > of blocks",
        [
            (
                row["network"],
                str(row["samples"]),
                MS.text(row["measured_s"], ".0f"),
                MS.text(row["predicted_s"], ".0f"),
                f"{row['ratio'] - 1:+.0%}",
                f"{row['blocks_error']:.0%}",
            )
            for row in values["networks"]
        ],
    )
    lines += paragraph(
        f"MLPerf's {values['rows']} runs of ResNet-50 on one node (half precision), each "
        "generation of devices held out: mean error "
        f"{values['devices_mean_absolute_error']:.1%} of a device's median"
    )
    lines += table(
        "device | > runs | > error of the median | > mean error",
        [
            (
                row["device"],
                str(row["rows"]),
                f"{row['ratio'] - 1:+.1%}",
                f"{row['mean_absolute_error']:.1%}",
            )
            for row in values["devices"]
        ],
    )
    lines += paragraph(
        "This project's steps on an H100 (docs/validation/gpu), all H100s held out: mean error "
        f"{values['eager_mean_absolute_error']:.1%}; beside it with the device known and the "
        "network held out"
    )
    lines += table(
        "network | precision | > samples | > measured | > predicted | > error | > device known",
        [
            (
                row["network"],
                row["precision"],
                str(row["samples"]),
                MS.text(row["measured_s"], ".1f"),
                MS.text(row["predicted_s"], ".1f"),
                f"{row['ratio'] - 1:+.0%}",
                f"{row['ratio_device_known'] - 1:+.0%}",
            )
            for row in values["eager"]
        ],
    )
    for row in values["cpu_ratios"]:
        lines += paragraph(
            f"Shares of {row['network']}'s blocks on the GPU: off by {row['shares_error']:.0%} in "
            f"all by a CPU core's profile, {row['roofline_shares_error']:.0%} by the roofline."
        )
    return lines


_MOST_BYTES = 2**30
_FEW_NAMES = 3
_READERS: Mapping[str, tuple[Callable[[str], int], Callable[[str, str], LoggedRun]]] = {
    "MLPerf's :::MLLOG": (mlperf.lines_of, mlperf.read),
    "torchtitan": (torchtitan.lines_of, torchtitan.read),
    "Megatron": (megatron.lines_of, megatron.read),
}
_POINT_COLUMNS = (
    "collective",
    "accelerator",
    "nodes",
    "ranks",
    "payload_bytes",
    "time_s",
    "file",
)
"""No ``source``, whose values tell clusters apart: one cluster has many files."""


@click.command(
    "read",
    short_help="Make one table of other people's logs.",
    epilog=examples("ddlbench oracle read slurm-1.out slurm-2.out --output runs.csv"),
)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Table to write.")
@click.option("--nodes", type=WholeNumber(1), help="Of collectives whose text does not tell.")
@click.option("--devices-per-node", type=WholeNumber(1), help="The same.  [default: 8]")
def read_command(
    *, files: Sequence[Path], output: Path, nodes: int | None, devices_per_node: int | None
) -> None:
    """Read logs of MLPerf, torchtitan or Megatron, or times of collectives, into one CSV table.

    The format is recognised by content. Steps are medians after warm-up. A system description of
    MLPerf (systems/NAME.json) fills in the accelerators of its logs. Collectives (nccl-tests,
    osu_xccl_allreduce, links.json) are a table of their own. `ddlbench oracle score` and
    `ddlbench calibrate` read the tables; docs/oracle.md lists the columns.
    """
    if output.resolve() in [file.resolve() for file in files]:
        raise ConfigError(f"--output {output} is one of the files to read; write another name")
    runs: list[LoggedRun] = []
    others: dict[Path, str] = {}
    systems: dict[str, Mapping[str, object]] = {}
    for file in files:
        text = _text(file)
        if (system := _system(text)) is not None:
            systems[file.stem] = system
        elif logs := _logs_of(text):
            run = _READERS[logs[0]][1](text, str(file))
            runs.append(with_note(run, _left_out(*logs, *_tests_of(text))))
        else:
            others[file] = text
    of_links = [file for file, text in others.items() if _is_of_links(text, file)]
    if runs and of_links:
        raise ConfigError(
            f"{of_links[0]} is read as times of links, {runs[0].source} as a training; read them "
            "into two tables"
        )
    tests = [
        (file, _collectives(text, file, nodes, devices_per_node)) for file, text in others.items()
    ]
    for name, system in systems.items():
        runs = [mlperf.with_system(run, name, system) for run in runs]
    if systems:
        runs = [mlperf.with_note_of_system(run, list(systems)) for run in runs]
    if not runs and not tests:
        raise ConfigError("only descriptions of systems; give the logs of their runs, too")
    if runs and not any(map(_tells_something, runs)):
        raise ConfigError(
            f"{runs[0].source}: no step of it has a time above 0; give the whole log of a training"
        )
    text = table_text(runs) if runs else _points_text(tests)
    write_text(output, text)
    click.echo("\n".join(_lines(runs, tests)))
    click.echo(f"{output}: {counted(text.count(chr(10)) - 1, 'row')}")


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{file}: over a gigabyte; give the part with the training's lines")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    return text_of(file)


def _system(text: str) -> Mapping[str, object] | None:
    """A description of a system, if the text is one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if mlperf.is_system(value) else None


def _logs_of(text: str) -> list[str]:
    """The logs that have lines in a text, the one with most of them first."""
    counts = {name: lines_of(text) for name, (lines_of, _) in _READERS.items()}
    return sorted(filter(counts.get, counts), key=lambda name: -counts[name])


def _tests_of(text: str) -> list[str]:
    """The link tests that have lines in a text."""
    return [name for name, each in FORMATS.items() if each.is_of(text)]


def _left_out(log: str, *others: str) -> str:
    names = " and ".join(others)
    return f"read are its lines of {log}; those of {names} are left out" if others else ""


def _is_of_links(text: str, file: Path) -> bool:
    return format_of(text) is not None or is_links_file(text, file)


def _collectives(
    text: str, file: Path, nodes: int | None, devices_per_node: int | None
) -> MeasuredLinks:
    if not _is_of_links(text, file):
        raise ConfigError(
            f"{file}: no line of a known log in it; known are {', '.join(_READERS)}, links.json "
            "and outputs of link tests"
        )
    holds = measured_links(text, file, None, nodes, devices_per_node)
    if not holds.sweeps:
        raise ConfigError(
            f"{file} has no sweep of a collective of NCCL; give a test of one (`ddlbench links "
            "read` reads this file)"
        )
    return holds


def _tells_something(run: LoggedRun) -> bool:
    """Whether a run has a time, a size of memory, or ended for want of memory."""
    values = (run.step_s, run.run_s_median, run.memory_gib)
    return run.status == OUT_OF_MEMORY or any(value is not None for value in values)


def _points_text(tests: Sequence[tuple[Path, MeasuredLinks]]) -> str:
    rows: list[Sequence[object]] = [_POINT_COLUMNS]
    for file, test in tests:
        device = test.names[0] if test.names else ""
        for sweep in test.sweeps:
            ranks = sweep.nodes * sweep.devices_per_node
            head = (sweep.operation.replace("_", "-"), device, sweep.nodes, ranks)
            points = zip(sweep.payload_bytes, sweep.time_s, strict=True)
            rows += [[*head, size, f"{time_s:.6g}", file] for size, time_s in points]
    return csv_text(rows)


def _lines(runs: Sequence[LoggedRun], tests: Sequence[tuple[Path, MeasuredLinks]]) -> list[str]:
    """The table of what was read, and the notes below it, each with its files."""
    rows = [(Path(run.source).name, run.log, run.status, duration_text(run.step_s)) for run in runs]
    rows += [
        (file.name, f"{sweep.name}, {sweep.operation}",
         f"{sweep.nodes}x{sweep.devices_per_node}", counted(len(sweep.time_s), "size"))
        for file, test in tests
        for sweep in test.sweeps
    ]  # fmt: skip
    silent = "no step has a time above 0"
    notes = [(run.note or ("" if run.step_s else silent), Path(run.source).name) for run in runs]
    notes += [(remark, file.name) for file, test in tests for remark in test.remarks]
    lines = table("file | log | status | > step", rows)
    for note, names in grouped(pair for pair in notes if pair[0]).items():
        lines += paragraph(f"{few(names, _FEW_NAMES)}: {note}.", hanging="  ")
    return lines
