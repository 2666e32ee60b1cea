"""``ddlbench report``: tables, figures and a page of the results so far."""

from __future__ import annotations

from typing import Any

import click

from ddlbench.commands.experiment_options import config_at, with_matrix
from ddlbench.experiment.paths import enter_project, figures_dir, html_report_file, tables_dir
from ddlbench.experiment.site import Site
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.products import compare_sites, make_page, make_report
from ddlbench.report.terminal import advice_lines, summary_lines


@click.command()
@with_matrix
@click.option("--show", is_flag=True, help="Only print the summary of the tables that are there.")
@click.option("--html", is_flag=True, help="Only write the HTML report of what is drawn.")
@click.option("--all", "every_row", is_flag=True, help="A line for every configuration.")
@click.option("--also-site", multiple=True, help="Compare with this site; may be given again.")
def report(
    *,
    experiment: Any,
    site: Site,
    rows: list[MatrixRow],
    show: bool,
    html: bool,
    every_row: bool,
    also_site: tuple[str, ...],
) -> None:
    """Make tables, figures and an HTML report of the results so far."""
    tables = tables_dir(site.name, experiment.name)
    if not (show or html) or not (tables / "summary.csv").is_file():
        make_report(experiment, site, rows)
    if html:
        click.echo(make_page(experiment, site, rows))
        return
    click.echo("\n".join([*summary_lines(tables, every_row=every_row), *advice_lines(tables)]))
    figures = figures_dir(site.name, experiment.name)
    # The figure that is read first; a matrix without a second strategy has no speed-up.
    drawn = [figures / "speedup.png", *sorted(figures.glob("*.png"))]
    for name, places in (
        ("tables: ", [tables / "measurements.csv"]),
        ("figures:", drawn),
        ("page:   ", [html_report_file(site.name, experiment.name)]),
    ):
        for place in [place for place in places if place.is_file()][:1]:
            click.echo(f"{name} {place}")
    if also_site:
        given = click.get_current_context().params
        configfile = enter_project(given["configfile"])
        config, _ = config_at(configfile, scale=given["scale"])
        figure = compare_sites(config, [experiment.site, *also_site], str(configfile))
        click.echo(f"sites:   {figure}")
