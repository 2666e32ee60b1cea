"""``ddlbench check-data``: open every file of one's own data, before a job meets a bad one."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddlbench.commands.plan import matrix_at
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import paragraph
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest
from ddlbench.experiment.paths import CONFIG
from ddlbench.own_parts import CheckedData, check_files
from ddlbench.planning.planner import request_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command("check-data")
@click.option(
    "--configfile",
    type=click.Path(path_type=Path),
    help=f"The experiment whose own data is checked; {CONFIG} if left out.",
)
@click.option("--site", "site_name", help="Another site than the file names.")
@click.option("--dataset", help="Only this one.")
@click.option("--folder", help="Check this folder as data of --dataset.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def check_data(
    *,
    configfile: Path | None,
    site_name: str | None,
    dataset: str | None,
    folder: str | None,
    as_json: bool,
) -> None:
    """Open every file of your own data once, and name all bad ones.

    Exit status 1 if some cannot be read.
    """
    if folder is not None and dataset is None:
        raise ConfigError("--folder needs --dataset: as which dataset is it read?")
    if folder is not None and dataset is not None:
        DATASETS.check(dataset, "--dataset")
        requests = [DataRequest(dataset, source=folder)]
    else:
        requests = list(_of_experiment(configfile, site_name, dataset))
    done = []
    for request in requests:
        done.append(check_files(request))
        if not as_json:
            _show(done[-1])
    if as_json:
        click.echo(json.dumps([asdict(checked) for checked in done], indent=1))
    if any(checked.faults for checked in done):
        sys.exit(1)


def _of_experiment(
    configfile: Path | None, site_name: str | None, dataset: str | None
) -> Iterator[DataRequest]:
    """The own data of an experiment.

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
    chosen = [cell for cell in real.values() if dataset in (None, cell.dataset)]
    if not chosen:
        which = f"no data of your own of dataset {dataset}" if dataset else "no data of your own"
        raise ConfigError(
            f"{configfile or CONFIG} names {which}; write data: {{photos: {{folder: /your/folder, "
            "size: 224}}, or give --dataset and --folder"
        )
    for cell in chosen:
        yield request_of(cell, site)


def _show(checked: CheckedData) -> None:
    described = checked.described or f"{checked.read:,} samples can be read"
    click.echo("\n".join(paragraph(f"{checked.dataset}: {described}", hanging="  ")))
    for fault in checked.faults:
        click.echo(f"  {fault}")  # not wrapped, so that names can be taken from it
    bad = f"{len(checked.faults):,} bad, {checked.read:,} can be read"
    click.echo(f"  {bad if checked.faults else 'every file can be read'}")
