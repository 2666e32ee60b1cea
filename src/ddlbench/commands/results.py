"""``ddlbench status``, ``status forget``, ``report`` and ``report export``.

They show what was measured and what was not yet, and write results in the formats of other people's
tools.
"""

from __future__ import annotations

import getpass
import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from ddlbench.commands.options import config_at, snakemake_command, with_matrix
from ddlbench.common.document import json_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.common.screen import examples, paragraph
from ddlbench.experiment.cell import short_names
from ddlbench.experiment.paths import (
    RESULTS,
    advice_file,
    enter_project,
    figures_dir,
    html_report_file,
    result_file,
    tables_dir,
)
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.cell_states import states, status_document, status_lines
from ddlbench.report.exports.registry import EXPORTS, FOLDER, Study
from ddlbench.report.measurements import records_of
from ddlbench.report.result_tree import read_tree
from ddlbench.report.slow_ranks import failed_nodes, slow_lines, slow_of
from ddlbench.report.tables import are_of
from ddlbench.report.terminal import advice_lines, summary_lines
from ddlbench.report.tree_tables import TreeTables
from ddlbench.user_parts import look, measured_with_other_code, other_code_remark


@click.command(
    epilog=examples("ddlbench status", "ddlbench status --all", "ddlbench status --json")
)
@with_matrix
@click.option(
    "--state",
    type=click.Choice([state.value for state in Status]),
    metavar="STATE",
    help="Only cells in this state: " + ", ".join(state.value for state in Status) + ".",
)
@click.option("--all", "every_cell", is_flag=True, help="Name every cell that is not ok.")
@click.option("--paths", is_flag=True, help="Print the cells' result files, one a line.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def status(
    *,
    experiment: Any,
    site: Site,
    rows: list[MatrixRow],
    state: str | None,
    every_cell: bool,
    paths: bool,
    as_json: bool,
) -> None:
    """Say what runs, what failed, and why.

    To run only the failed ones again: snakemake --profile profiles/slurm $(ddlbench status
    --state failed --paths)
    """
    cells = states(experiment.name, site.name, rows)
    if state is not None:
        cells = [cell for cell in cells if cell.state == state]
    if as_json:
        document = status_document(experiment.name, site.name, cells)
        click.echo(json_text(document.to_dict()), nl=False)
        return
    if paths:
        for cell in cells:
            click.echo(result_file(site.name, cell.cell_id))
        return
    head = f"{experiment.name} on {site.name}: "
    if not cells:
        click.echo(f"{head}no cell is {state}" if state else f"{head}no cells")
        return
    lines = status_lines(cells, every_cell=every_cell or state is not None)
    unfinished = {state for state in Status if not state.is_result} - {Status.NEWER}
    page = html_report_file(site.name, experiment.name)
    figure = figures_dir(site.name, experiment.name) / "speedup.png"
    drawn = figure if figure.is_file() else page
    if state is None and unfinished & {cell.state for cell in cells}:
        lines += slow_lines(failed_nodes(cell.reason or "" for cell in cells), site)
        lines.append(f"Next: {snakemake_command(experiment, site)}")
    elif state is None:
        tables = tables_dir(site.name, experiment.name)
        shown = drawn.is_file() and are_of(tables, (row.cell.id for row in rows))
        lines[0] += f": {drawn}" if shown else "; draw the figures: ddlbench report"
        lines += slow_lines(slow_of(rows, site), site)  # reads the results once more
    if state is None:
        every = [row.cell for row in rows]
        real = [cell for cell in every if cell.data_source == "real"]
        of_data = look(site, real, waiting=()).other_data_remark(site, real)
        for remark in (*of_data, *other_code_remark(site, every)):
            lines += paragraph(f"Warning: {remark}.", hanging="  ")
    click.echo(head + "\n".join(lines))


_DISTURBED = "disturbed"
_OTHER_DATA, _OTHER_CODE = "other-data", "other-code"
_OF_FILES = (Status.INVALID, Status.NEWER)
_MOST_NAMES = 20
_FORGOTTEN = (
    *(s.value for s in Status if s.is_result or s in _OF_FILES),
    _DISTURBED,
    _OTHER_DATA,
    _OTHER_CODE,
)


@click.command(
    epilog=examples(
        "ddlbench status forget --state out_of_memory",
        "ddlbench status forget --state disturbed --yes",
    )
)
@with_matrix
@click.option(
    "--state",
    type=click.Choice(list(dict.fromkeys((*_FORGOTTEN, *map(str, Status))))),
    metavar="STATE",
    required=True,
    help=f"Which results to delete: {', '.join(_FORGOTTEN)}. Disturbed are cells that something "
    "stopped while they trained; other-data and other-code mean measured with other data, or other "
    "code of the network, than is here now.",
)
@click.option("--yes", is_flag=True, help="Delete them without a question.")
def forget(experiment: Any, site: Site, rows: list[MatrixRow], state: str, yes: bool) -> None:
    """Delete results, so that the next run measures them again."""
    if state not in _FORGOTTEN:
        raise ConfigError(f"{state} cells have no result to delete: the next run measures them")
    if state == _DISTURBED:  # they are ok, but not to be used
        records = records_of(experiment.name, site.name, rows, stale=False)
        chosen = [str(record["cell_id"]) for record in records if record.get("disturbed")]
    elif state == _OTHER_DATA:
        cells = [row.cell for row in rows if row.cell.data_source == "real"]
        chosen = [cell.id for cell in look(site, cells).with_other_data(site, cells)]
    elif state == _OTHER_CODE:
        cells = [row.cell for row in rows]
        chosen = [cell.id for cell in measured_with_other_code(site, cells)]
    else:
        known = states(experiment.name, site.name, rows)
        chosen = [cell.cell_id for cell in known if cell.state == state]
    # A cell that the plan itself calls unsupported has none.
    files = {cell_id: result_file(site.name, cell_id) for cell_id in chosen}
    files = {cell_id: file for cell_id, file in files.items() if file.is_file()}
    if files and not yes:
        names = zip(rows, short_names([row.cell for row in rows]), strict=True)
        lines = [f"{state}: {name}" for row, name in names if row.cell.id in files]
        more = len(lines) - _MOST_NAMES
        click.echo("\n".join([*lines[:_MOST_NAMES], *([f"and {more} more"] if more > 0 else [])]))
        question = "Delete these results, so that the cells are measured again?"
        click.confirm(question, abort=True)
    for file in files.values():
        file.unlink()
    click.echo(f"{counted(len(files), 'result')} deleted")


@click.command(epilog=examples("ddlbench report", "ddlbench report --show"))
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
    from ddlbench.report.drawing import LeftOut  # noqa: PLC0415
    from ddlbench.report.products import (  # noqa: PLC0415 - matplotlib takes its time
        compare_sites,
        make_advice,
        make_page,
        make_report,
    )

    tables = tables_dir(site.name, experiment.name)
    left_out: LeftOut | None = None
    there = are_of(tables, (row.cell.id for row in rows))
    if not (show or html) or not there:
        if (show or html) and (tables / "summary.csv").is_file():
            click.echo(f"The tables were of other cells than {experiment.where}: made anew.")
        try:
            make_report(experiment, site, rows)
        except LeftOut as error:  # told below all that is made
            left_out = error
    if html:
        click.echo(make_page(experiment, site, rows))
    else:
        if there and _is_older(advice_file(site.name, experiment.name), tables / "summary.csv"):
            make_advice(experiment, site, rows)
        _show_report(experiment, site, rows, every_row=every_row)
    if also_site and not html:
        given = click.get_current_context().params
        configfile = enter_project(given["configfile"])
        config, _ = config_at(configfile, scale=given["scale"])
        figure = compare_sites(config, [experiment.site, *also_site], str(configfile))
        click.echo(f"sites:   {figure}")
    if left_out:
        raise left_out


def _show_report(experiment: Any, site: Site, rows: list[MatrixRow], *, every_row: bool) -> None:
    """The summary, and where tables, figures and the page lie."""
    tables = tables_dir(site.name, experiment.name)
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
    for line in slow_lines(slow_of(rows, site), site):
        click.echo(line)


def _is_older(path: Path, other: Path) -> bool:
    """Whether a file is missing, or was written before another."""
    return not path.is_file() or path.stat().st_mtime_ns < other.stat().st_mtime_ns


class _Format(click.Option):
    """Says what each format holds; those of other packages are imported for the help only."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = f"{'; '.join(map(_holds, EXPORTS))}."
        return super().get_help_record(ctx)


def _holds(name: str) -> str:
    """A format and what it holds; the name alone where a package's module has a fault."""
    try:
        return f"{name}: {EXPORTS[name].holds}"
    except ConfigError:
        return name


@click.command(
    epilog=examples(
        "ddlbench report export --to duckdb",
        "ddlbench report export --to openmetrics --out /var/lib/node_exporter",
        "ddlbench report export --to ro-crate --author 'Ada Lovelace' --licence CC-BY-4.0",
    )
)
@click.argument("results", nargs=-1, type=click.Path(path_type=Path))
@click.option("--to", "name", cls=_Format, required=True, metavar="FORMAT")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"File or folder to write, in place of an earlier export; else one in {FOLDER}/.",
)
@click.option("--author", help="Who publishes the results: 'Name <address>'; else your login.")
@click.option(
    "--licence", default="Apache-2.0", show_default=True, help="Of the results, SPDX's identifier."
)
@click.option(
    "--configfile",
    "configs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For ro-crate: an experiment's file; else those in config/ of that name.",
)
def export(
    *,
    results: tuple[Path, ...],
    name: str,
    out: Path | None,
    author: str | None,
    licence: str,
    configs: tuple[Path, ...],
) -> None:
    """Write results for DuckDB, MLflow, Prometheus and others.

    RESULTS are folders of results, of a site or of one cell; without any, those of this repository.
    Whatever was measured is in it, failed cells too.
    """
    EXPORTS.check(name)
    chosen = EXPORTS[name]
    chosen.check(name)
    out = out or FOLDER / chosen.out
    if out.is_dir() and Path(chosen.out).suffix:  # a file, and a folder for it
        out /= chosen.out
    study = Study(author or _login(), licence, tuple(path.absolute() for path in configs))
    place = out.absolute()
    if not results:
        enter_project()
        results = (RESULTS,)
    tables = TreeTables(read_tree(results))
    opens = chosen.written(name, tables, place, study)
    cells = len(tables.tree.cells)
    failed = int((tables.cells.frame["status"] != "ok").sum())
    without = f", {failed} without a measurement" if failed else ""
    click.echo(f"{out}: {counted(cells, 'cell')}{without}")
    click.echo(f"Open it:\n  {opens.replace(str(place), str(out))}")  # to be copied as it is


def _login() -> str:
    """The user's full name, or that of the login."""
    with suppress(KeyError, OSError):
        if full := pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0].strip():
            return full
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"user {os.getuid()}"
