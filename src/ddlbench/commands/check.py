"""``ddlbench check``: whether strategies train alike, and whether files can be read."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddlbench.commands.options import matrix_at
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.quantities import counted
from ddlbench.common.screen import WholeNumber, examples, paragraph, shortened
from ddlbench.experiment.cell import Cell, OptionValue, parse_geometry
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest
from ddlbench.experiment.paths import CONFIG, enter_project
from ddlbench.experiment.registry import BASE, known, mismatch
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import check_name
from ddlbench.planning.planner import request_of
from ddlbench.user_parts import CheckedData, check_files

if TYPE_CHECKING:
    from ddlbench.equivalence.examination import Verdict

_LEARNING_RATE = 0.05  # so that a few steps change weights much, and no network diverges
_MARKS = {
    "equal": ("ok", "green"),
    "unsupported": ("--", "yellow"),
    "different": ("!!", "red"),
    str(Status.FAILED): ("!!", "red"),
}
_NAME_WIDTH = 18
_VERDICT_WIDTH = len("unsupported")


@click.command(
    "check",
    epilog=examples(
        "ddlbench check --network torchvision:resnet18 --dataset cifar10 --strategy ddp,fsdp",
        "ddlbench check --data --configfile mine.yaml",
    ),
)
@click.option("--network", "networks", multiple=True, help="Name, or package.module:callable.")
@click.option("--dataset", "datasets", multiple=True, help="What the networks read.")
@click.option("--strategy", "strategies", multiple=True, help="Only these; all if left out.")
@click.option("--geometry", default="1x2", show_default=True, help="Nodes x devices a node.")
@click.option("--batch-size", type=WholeNumber(1), help="The smallest that serves if left out.")
@click.option(
    "--configfile",
    type=click.Path(path_type=Path),
    help=f"The experiment; {CONFIG} where network or dataset is left out.",
)
@click.option("--data", "of_data", is_flag=True, help="Open each file of your own data instead.")
@click.option("--folder", help="Of --data: check this folder as data of --dataset.")
@click.option("--site", "site_name", help="Of --data: another site than the file names.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def check(
    *,
    networks: tuple[str, ...],
    datasets: tuple[str, ...],
    strategies: tuple[str, ...],
    geometry: str,
    batch_size: int | None,
    configfile: Path | None,
    of_data: bool,
    folder: str | None,
    site_name: str | None,
    as_json: bool,
) -> None:
    """Train tiny steps with each strategy, and compare with one device.

    Each option may be given again, or be a list: --strategy ddp,fsdp. Networks, datasets and
    strategies that are left out are those of the experiment.

    With --data, opens every file of your own data once instead, and names all bad ones.

    Exit status 1 if a strategy trains something else, or fails, or a file cannot be read.
    """
    if of_data:
        if networks or strategies or batch_size is not None:
            raise ConfigError(
                "--data opens files and trains nothing: leave --network, --strategy "
                "and --batch-size out"
            )
        _check_data(configfile, site_name, _listed(datasets), folder, as_json=as_json)
        return
    if folder is not None or site_name is not None:
        raise ConfigError("--folder and --site are of --data: write it, too, or leave them out")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("ddlbench check trains, and there is no torch here: run it on a node")
    shape = parse_geometry(geometry, "--geometry")
    cells = _cells(_listed(networks), _listed(datasets), _listed(strategies), configfile)
    sys.path.insert(0, str(Path.cwd()))  # as for jobs, which start in the project's folder
    verdicts = _verdicts(cells, shape, batch_size)
    if as_json:
        done = list(verdicts)
        click.echo(json.dumps([verdict.to_dict() for verdict in done], indent=1))
    else:
        done = _show(cells, verdicts)
    if any(verdict.is_wrong for verdict in done):
        sys.exit(1)


def _listed(values: Sequence[str]) -> list[str]:
    """``a,b`` and ``c`` as three names.

    Raises:
        ConfigError: there is an option, but no name.
    """
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    if values and not names:
        raise ConfigError(f"{shown(','.join(values))} names nothing; write one name or several")
    return names


def _verdicts(
    cells: Sequence[Cell], geometry: tuple[int, int], batch_size: int | None
) -> Iterator[Verdict]:
    from ddlbench.equivalence.examination import (  # noqa: PLC0415 - imports torch
        Examination,
        Verdict,
    )
    from ddlbench.equivalence.rounding import Kind  # noqa: PLC0415 - these import torch

    examination = Examination(geometry, batch_size)
    several = len({cell.network for cell in cells}) > 1
    for cell in cells:
        try:
            yield examination.verdict_of(cell)
        except ConfigError as error:
            if not several:  # else the others have verdicts all the same
                raise
            yield Verdict(cell, Kind.FAILED, None, str(error))


def _cells(
    networks: list[str], datasets: list[str], strategies: list[str], configfile: Path | None
) -> list[Cell]:
    """A cell for each network, dataset, strategy and its options; network by network.

    Raises:
        ConfigError: a name is unknown, or no network reads a dataset.
    """
    if networks and datasets and configfile is None:
        with suppress(ConfigError):  # nothing of a project is needed
            enter_project()
        names = strategies or known("ddlbench.strategies")
        first = Cell(datasets[0], networks[0], BASE, batch_size=1, learning_rate=_LEARNING_RATE)
        trained = [first.with_(strategy=name) for name in names]
        return _paired(trained, [(n, d) for n in networks for d in datasets])
    _, _, rows = matrix_at(configfile or CONFIG)
    cells = [row.cell for row in rows]
    trained = [cell for cell in cells if not strategies or cell.strategy in strategies]
    new = set(strategies) - {cell.strategy for cell in cells}
    trained += [cells[0].with_(strategy=name, options=()) for name in strategies if name in new]
    pairs = [
        (network, dataset)
        for cell in cells
        for network in networks or [cell.network]
        for dataset in datasets or [cell.dataset]
    ]
    return _paired(trained, list(dict.fromkeys(pairs)))


def _paired(trained: Sequence[Cell], pairs: Sequence[tuple[str, str]]) -> list[Cell]:
    """Each way to train once for each pair; pairs that do not fit are left out.

    Raises:
        ConfigError: a name is unknown, or no pair fits.
    """
    for network, dataset in pairs:
        DATASETS.check(dataset, "--dataset")
        check_name("ddlbench.networks", network, "--network")
    for cell in trained:
        check_name("ddlbench.strategies", cell.strategy, "--strategy")
    wrong = {pair: reason for pair in pairs if (reason := mismatch(*pair)) is not None}
    if len(wrong) == len(pairs):
        raise ConfigError(f"nothing to check: {next(iter(wrong.values()))}")
    ways: dict[tuple[str, str, tuple[tuple[str, OptionValue], ...]], Cell] = {}
    for cell in map(_without_rule, trained):
        ways.setdefault((cell.strategy, cell.optimizer, cell.options), cell)
    return [
        cell.with_(network=network, dataset=dataset)
        for network, dataset in pairs
        if (network, dataset) not in wrong
        for cell in ways.values()
    ]


def _without_rule(cell: Cell) -> Cell:
    """The cell without a rule for its balance: blocks are dealt anew, unless numbers deal them."""
    by_rule = str(cell.option("balance", "")).isalpha()
    kept = [pair for pair in cell.options if not (by_rule and pair[0] == "balance")]
    return cell.with_(options=tuple(kept))


def _show(cells: Sequence[Cell], verdicts: Iterator[Verdict]) -> list[Verdict]:
    """Print a line for each verdict as soon as it is known, and the number of each kind."""
    done: list[Verdict] = []
    pair = None
    for cell, verdict in zip(cells, verdicts, strict=True):
        done.append(verdict)
        if pair != (cell.network, cell.dataset):
            pair = (cell.network, cell.dataset)
            click.echo("\n".join(paragraph(f"{cell.network} on {cell.dataset}, and one device:")))
        click.echo("\n".join(_lines(cell, verdict)))
    counts = Counter(str(verdict.kind) for verdict in done)
    click.echo(", ".join(f"{counts[kind]} {kind}" for kind in _MARKS if counts[kind]))
    return done


def _lines(cell: Cell, verdict: Verdict) -> list[str]:
    """A verdict, with the options that the user wrote; its reason is wrapped beside it."""
    text, colour = _MARKS[verdict.kind]
    name = shortened(cell.strategy, _NAME_WIDTH).ljust(_NAME_WIDTH)
    head = f"    {name}  {verdict.kind.ljust(_VERDICT_WIDTH)}  "
    pairs = [*cell.options, *([] if cell.optimizer == "sgd" else [("optimizer", cell.optimizer)])]
    options = " ".join(f"{name}={value}" for name, value in pairs)
    says = "; ".join(filter(None, (options, verdict.reason)))
    first, *others = paragraph(says, head, " " * len(head)) or [head.rstrip()]
    return [click.style(text, fg=colour) + first[len(text) :], *others]


def _check_data(
    configfile: Path | None,
    site_name: str | None,
    datasets: list[str],
    folder: str | None,
    *,
    as_json: bool,
) -> None:
    """Open every file once; exit status 1 if some cannot be read."""
    if folder is not None:
        if len(datasets) != 1:
            raise ConfigError("--folder needs one --dataset: as which dataset is it read?")
        DATASETS.check(datasets[0], "--dataset")
        requests = [DataRequest(datasets[0], source=folder)]
    else:
        requests = _own_data(configfile, site_name, datasets)
    done = []
    for request in requests:
        done.append(check_files(request))
        if not as_json:
            _show_checked(done[-1])
    if as_json:
        click.echo(json.dumps([asdict(checked) for checked in done], indent=1))
    if any(checked.faults for checked in done):
        sys.exit(1)


def _own_data(
    configfile: Path | None, site_name: str | None, datasets: list[str]
) -> list[DataRequest]:
    """The own data of an experiment: of these datasets, or all.

    Raises:
        ConfigError: it has none, or none of that name.
    """
    _, site, rows = matrix_at(configfile or CONFIG, site_name)
    named = {*DATASETS.declared, *site.real_data}
    real = {
        (row.cell.dataset, row.cell.data_format): row.cell
        for row in rows
        if row.cell.data_source == "real" and row.cell.dataset in named
    }
    chosen = [cell for cell in real.values() if not datasets or cell.dataset in datasets]
    if not chosen:
        of_these = f" of dataset {', '.join(datasets)}" if datasets else ""
        raise ConfigError(
            f"{configfile or CONFIG} names no data of your own{of_these}; write data: {{photos: "
            "{folder: /your/folder, size: 224}}, or give --dataset and --folder"
        )
    return [request_of(cell, site) for cell in chosen]


def _show_checked(checked: CheckedData) -> None:
    described = checked.described or f"{counted(checked.read, 'sample')} can be read"
    click.echo("\n".join(paragraph(f"{checked.dataset}: {described}", hanging="  ")))
    for fault in checked.faults:
        click.echo(f"  {fault}")  # not wrapped, so that names can be taken from it
    bad = f"{len(checked.faults):,} bad, {checked.read:,} can be read"
    click.echo(f"  {bad if checked.faults else 'every file can be read'}")
