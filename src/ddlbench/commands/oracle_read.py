"""``ddlbench oracle read``: other people's logs as one table of runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from ddlbench.commands.links import text_of
from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import counted, duration_text, examples, table
from ddlbench.interconnect.nccl_tests import NcclTest, is_nccl_tests, parse_nccl_tests
from ddlbench.predict.run_logs import megatron, mlperf, torchtitan
from ddlbench.predict.run_logs.logged_run import OUT_OF_MEMORY, LoggedRun, table_text

_MOST_BYTES = 2**30
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
    "source",
)


@click.command(
    "read",
    short_help="Make one table of other people's logs.",
    epilog=examples("ddlbench oracle read slurm-1.out slurm-2.out --output runs.csv"),
)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Table to write.")
def read_command(files: Sequence[Path], output: Path) -> None:
    """Read logs of MLPerf, torchtitan or Megatron, or the text of nccl-tests, into one CSV table.

    The format is recognised by content. Steps are medians after warm-up. A system description of
    MLPerf (systems/NAME.json) fills in the accelerators of its logs. Points of nccl-tests are a
    table of their own. `ddlbench oracle score` reads the tables; docs/oracle.md lists the columns.
    """
    runs: list[LoggedRun] = []
    tests: list[tuple[Path, NcclTest]] = []
    systems: dict[str, Mapping[str, object]] = {}
    for file in files:
        text = _text(file)
        if (system := _system(text)) is not None:
            systems[file.stem] = system
        elif is_nccl_tests(text):
            tests.append((file, parse_nccl_tests(text, str(file))))
        else:
            runs.append(_run(text, file))
    if runs and tests:
        raise ConfigError(
            f"{tests[0][0]} has points of nccl-tests, {runs[0].source} a training; read them into "
            "two tables"
        )
    for name, system in systems.items():
        runs = [mlperf.with_system(run, name, system) for run in runs]
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
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
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


def _run(text: str, file: Path) -> LoggedRun:
    counts = {name: lines_of(text) for name, (lines_of, _) in _READERS.items()}
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        raise ConfigError(
            f"{file}: no line of a known log in it; known are {', '.join(_READERS)} and nccl-tests"
        )
    return _READERS[best][1](text, str(file))


def _tells_something(run: LoggedRun) -> bool:
    """Whether a run has a time, a size of memory, or ended for want of memory."""
    values = (run.step_s, run.run_s_median, run.memory_gib)
    return run.status == OUT_OF_MEMORY or any(value is not None for value in values)


def _points_text(tests: Sequence[tuple[Path, NcclTest]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_POINT_COLUMNS)
    for file, test in tests:
        if not test.ranks:
            raise ConfigError(f"{file}: it does not list its ranks; capture all that it prints")
        head = (
            test.operation.replace("_", "-"),
            test.devices[0] if test.devices else "",
            len(test.hosts),
            test.ranks,
        )
        for point in test.points:
            writer.writerow([*head, point.payload_bytes, f"{point.time_s:.6g}", file])
    return text.getvalue()


def _lines(runs: Sequence[LoggedRun], tests: Sequence[tuple[Path, NcclTest]]) -> list[str]:
    rows = [
        (Path(run.source).name, run.log, run.status, duration_text(run.step_s),
         run.note or ("" if run.step_s else "no step has a time above 0"))
        for run in runs
    ]  # fmt: skip
    rows += [
        (file.name, f"nccl-tests, {test.operation}", counted(test.ranks, "rank"),
         counted(len(test.points), "size"), "; ".join(test.remarks))
        for file, test in tests
    ]  # fmt: skip
    return table("file | log | status | > step | note /1", rows)
