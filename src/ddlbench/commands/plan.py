"""``ddlbench plan``: what an experiment will cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ddlbench.cluster.preflight import examine_for, is_here
from ddlbench.commands.experiment_options import with_matrix
from ddlbench.commands.plan_display import plan_lines
from ddlbench.commands.site import show_findings
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import Site
from ddlbench.own_parts import try_own_parts
from ddlbench.planning.budget import cells_to_run, estimate, finished_rows
from ddlbench.planning.matrix import MatrixRow

if TYPE_CHECKING:
    from ddlbench.experiment.cell import Cell


@click.command()
@with_matrix
@click.option("--list", "every_cell", is_flag=True, help="List the cells to run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def plan(
    experiment: Any, site: Site, rows: list[MatrixRow], every_cell: bool, as_json: bool
) -> None:
    """Say what an experiment will cost before it runs."""
    finished = finished_rows(rows, site)
    cost = estimate(rows, site, RESULTS, try_own_parts(site, rows), finished)
    if as_json:
        click.echo(json.dumps(cost.to_dict(), indent=1))
        return
    to_run = cells_to_run(rows, finished)
    lines = plan_lines(cost, experiment, site, rows, to_run, every_cell=every_cell)
    click.echo("\n".join(lines))
    if site.launcher == "slurm" and to_run:
        _show_preflight(site, to_run)


def _show_preflight(site: Site, cells: Sequence[Cell]) -> None:
    """What is wrong with a cluster's site; exit status 1 if no job could run as it is."""
    if not is_here():
        click.echo("Not checked: account, partition and limits, as no SLURM is in PATH.")
        return
    findings = [f for f in examine_for(site, cells) if not f.ok or f.doubtful]
    if show_findings(findings, site):
        sys.exit(1)
