"""Cells that a command measures: through the workflow, as any cell is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import project_root, result_file

if TYPE_CHECKING:
    from ddlbench.experiment.result import Glance
    from ddlbench.experiment.site import Site
    from ddlbench.predict.recommend import PredictionRequest


def by_workflow(site: Site, named: Callable[[Cell], str]) -> Callable[[Cell], Glance]:
    """A function that measures a cell with the site's profile of Snakemake.

    Args:
        site: where.
        named: what the error stream says is being measured.
    """
    from ddlbench.predict.choose import result_of  # noqa: PLC0415 - slow to import

    def measure(cell: Cell) -> Glance:
        path = result_file(site.name, cell.id)
        click.echo(f"measuring {named(cell)} ...", err=True)
        command = [sys.executable, "-m", "snakemake", str(path)]
        command += ["--profile", f"profiles/{site.launcher}", "--config", f"site={site.name}"]
        ended = subprocess.run(command, cwd=project_root(), check=False, stdout=sys.stderr)
        found = result_of(cell, site.name)
        if found is None:
            raise ConfigError(
                f"{path} was not measured: snakemake ended with {ended.returncode}, and says why "
                "above; the same command goes on from here"
            )
        return found

    return measure


def case_of(request: PredictionRequest) -> dict[str, Any]:
    """The case as JSON values."""
    return asdict(request)


def case_id(request: PredictionRequest) -> str:
    """The case as a path: what differs from the defaults of a cell is in its last part."""
    defaults = {field.name: field.default for field in fields(Cell)}
    parts = [f"batch_size={request.batch_size}"]
    parts += [f"{key}={v}" for key, v in sorted(request.settings.items()) if v != defaults[key]]
    parts += [
        f"{strategy}.{key}={value}"
        for strategy, options in sorted(request.options.items())
        for key, value in sorted(options.items())
    ]
    geometry = f"{request.nodes}x{request.devices_per_node}"
    network = request.network.replace(":", "@")
    return f"{request.dataset}/{network}/{geometry}/{'+'.join(parts)}"
