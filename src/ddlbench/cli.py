"""The ``ddlbench`` command: what a person asks beside the workflow. Thin on purpose."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

from ddlbench import __version__
from ddlbench.commands.accelerator import accelerator
from ddlbench.commands.calibrate import calibrate
from ddlbench.commands.check import check
from ddlbench.commands.check_data import check_data
from ddlbench.commands.claims import claims
from ddlbench.commands.experiment_options import config_at, with_matrix
from ddlbench.commands.interconnect import interconnect, link
from ddlbench.commands.largest_batch import largest_batch_command
from ddlbench.commands.oracle import oracle
from ddlbench.commands.papers import papers
from ddlbench.commands.partition import partition_command
from ddlbench.commands.predict import accuracy, predict
from ddlbench.commands.recommend import recommend
from ddlbench.commands.timeline import timeline
from ddlbench.commands.tune import tune
from ddlbench.experiment.errors import ConfigError, file_fault
from ddlbench.experiment.paths import (
    RESULTS,
    enter_project,
    figures_dir,
    html_report_file,
    result_file,
    tables_dir,
)
from ddlbench.experiment.schema import read_yaml
from ddlbench.experiment.screen import paragraph, say_error
from ddlbench.experiment.site import Site, load_site
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow

if TYPE_CHECKING:
    from ddlbench.cluster.preflight import Finding
    from ddlbench.experiment.cell import Cell


def main() -> None:
    """Run the command; what the user got wrong is one sentence and exit status 2.

    A file that cannot be written or read is one sentence and exit status 1.
    """
    if isinstance(sys.stdout, TextIOWrapper):  # a name of a file may be no text; see write_text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        commands(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "ddlbench"
        say_error(ConfigError(f"{error.format_message().rstrip('.?')}; see {command} --help"))
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        say_error(error)
        sys.exit(2)
    except OSError as error:
        if file_fault(error) is None:  # of no file, so perhaps our own mistake
            raise
        say_error(error)
        sys.exit(1)


_GROUPS = {
    "Measure": ("plan", "check", "status", "report", "forget"),
    "Predict and choose": (
        "predict", "recommend", "tune", "largest-batch", "accuracy", "calibrate", "partition",
        "oracle", "timeline",
    ),
    "Published": ("papers", "claims"),
    "Cluster": ("init", "doctor", "interconnect", "link", "accelerator"),
}  # fmt: skip


class _GroupedCommands(click.Group):
    """Commands under the headings of what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = {name for names in _GROUPS.values() for name in names}
        further = tuple(name for name in self.list_commands(ctx) if name not in grouped)
        for heading, names in (*_GROUPS.items(), ("Further commands", further)):
            rows = [(name, self.commands[name].get_short_help_str(200)) for name in names]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


@click.group(cls=_GroupedCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ddlbench")
def commands() -> None:
    """Measure, predict and choose how to parallelise DNN training on a cluster.

    Start with: ddlbench plan, then snakemake --profile profiles/local
    """


@commands.command()
@with_matrix
@click.option("--list", "every_cell", is_flag=True, help="List the cells to run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def plan(
    experiment: Any, site: Site, rows: list[MatrixRow], every_cell: bool, as_json: bool
) -> None:
    """Say what an experiment will cost before it runs."""
    from ddlbench.commands.plan_display import plan_lines  # noqa: PLC0415
    from ddlbench.own_parts import try_own_parts  # noqa: PLC0415
    from ddlbench.planning.budget import (  # noqa: PLC0415
        cells_to_run,
        estimate,
        finished_rows,
    )

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
    from ddlbench.cluster.preflight import examine_for, is_here  # noqa: PLC0415

    if not is_here():
        click.echo("Not checked: account, partition and limits, as no SLURM is in PATH.")
        return
    findings = [f for f in examine_for(site, cells) if not f.ok or f.doubtful]
    if _show_findings(findings, site):
        sys.exit(1)


def _show_findings(findings: Sequence[Finding], site: Site) -> int:
    """A line a finding; returns how many need a change of the site's file."""
    for finding in findings:
        mark = click.style("ok", fg="green") if finding.ok else click.style("!!", fg="red")
        mark = click.style("??", fg="yellow") if finding.doubtful else mark
        lines = paragraph(f"{finding.what}: {finding.says}", indent="   ")
        click.echo("\n".join([f"{mark} {lines[0].strip()}", *lines[1:]]))
    wrong = sum(not finding.ok for finding in findings)
    if wrong:
        things = "1 thing" if wrong == 1 else f"{wrong} things"
        click.echo(f"{things} to change in config/sites/{site.name}.yaml")
    return wrong


@commands.command()
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
    from ddlbench.report.terminal import advice_lines, summary_lines  # noqa: PLC0415
    from ddlbench.workflow import compare_sites, make_page, make_report  # noqa: PLC0415

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


@commands.command()
@with_matrix
@click.option(
    "--state",
    type=click.Choice([state.value for state in Status]),
    metavar="STATE",
    help="Only cells in this state: " + ", ".join(state.value for state in Status) + ".",
)
@click.option("--all", "every_cell", is_flag=True, help="Name every cell that is not ok.")
@click.option("--paths", is_flag=True, help="Print the cells' result files, one a line.")
def status(
    *,
    experiment: Any,
    site: Site,
    rows: list[MatrixRow],
    state: str | None,
    every_cell: bool,
    paths: bool,
) -> None:
    """Say what runs, what failed, and why.

    To run only the failed ones again: snakemake --profile profiles/slurm $(ddlbench status
    --state failed --paths)
    """
    from ddlbench.commands.plan_display import snakemake_command  # noqa: PLC0415
    from ddlbench.report.cell_states import states, status_lines  # noqa: PLC0415

    cells = states(experiment.name, site.name, rows)
    if state is not None:
        cells = [cell for cell in cells if cell.state == state]
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
        lines.append(f"Next: {snakemake_command(experiment, site)}")
    elif state is None:
        lines[0] += f": {drawn}" if drawn.is_file() else "; draw the figures: ddlbench report"
    click.echo(head + "\n".join(lines))


_DISTURBED = "disturbed"
_OTHER_DATA = "other-data"
_OF_FILES = (Status.INVALID, Status.NEWER)
_FORGOTTEN = (
    *(s.value for s in Status if s.is_result or s in _OF_FILES),
    _DISTURBED,
    _OTHER_DATA,
)


@commands.command()
@with_matrix
@click.option(
    "--state",
    type=click.Choice(_FORGOTTEN),
    metavar="STATE",
    required=True,
    help=f"Which results to delete: {', '.join(_FORGOTTEN)}. Disturbed are cells that something "
    "stopped while they trained; other-data means measured with other data than lies there now.",
)
@click.confirmation_option(prompt="Delete these results, so that the cells are measured again?")
def forget(experiment: Any, site: Site, rows: list[MatrixRow], state: str) -> None:
    """Delete results, so that the next run measures them again."""
    from ddlbench.own_folders import look  # noqa: PLC0415
    from ddlbench.report.cell_states import states  # noqa: PLC0415
    from ddlbench.report.records import records_of  # noqa: PLC0415

    if state == _DISTURBED:  # they are ok, but not to be used
        records = records_of(experiment.name, site.name, rows, stale=False)
        chosen = [str(record["cell_id"]) for record in records if record.get("disturbed")]
    elif state == _OTHER_DATA:
        own = [row.cell for row in rows if row.cell.data_source == "real"]
        chosen = [cell.id for cell in look(site, own).measured_with_others(site, own)]
    else:
        cells = states(experiment.name, site.name, rows)
        chosen = [cell.cell_id for cell in cells if cell.state == state]
    # A cell that the plan itself calls unsupported has none.
    files = [result_file(site.name, cell_id) for cell_id in chosen]
    files = [file for file in files if file.is_file()]
    for file in files:
        file.unlink()
    click.echo(f"{len(files)} results deleted")


@commands.command()
@click.argument("name")
@click.option("--partition", "partition_name", help="Partition; asked for if left out.")
@click.option("--gpu", help="Type of GPU, for example a100; asked for where there are several.")
@click.option("--constraint", help="Feature that the nodes must have; tells kinds of one type.")
@click.option("--account", help="Account to charge; asked for where there are several.")
@click.option("--scratch", help="Node-local folder for generated data.")
@click.option("--interface", help="Network interface between the nodes, for example ib0.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="What workers compute on.")
@click.option("--devices-per-node", type=click.IntRange(1), help="Workers of one node.")
@click.option("--yes", is_flag=True, help="Ask nothing: take what is suggested.")
@click.option("--overwrite", is_flag=True, help="Replace a site file of that name.")
def init(name: str, overwrite: bool, **given: Any) -> None:
    """Write a site file from what SLURM says of this cluster.

    Suggested are whole GPUs, before slices of one, on most nodes that can be used.
    """
    from ddlbench.cluster.init import (  # noqa: PLC0415
        free_site_file,
        interview,
        link_test_remarks,
        write_site,
    )

    free_site_file(name, overwrite)
    answers = interview(name, **given)
    path = write_site(answers, overwrite)
    chosen = answers.selection
    click.echo(f"{path} is written: {chosen.text}, partition {chosen.offer.kind.partition}")
    for remark in (*chosen.remarks, *link_test_remarks(chosen)):
        click.echo("\n".join(paragraph(f"note: {remark}", hanging="  ")))
    click.echo(f"Next: ddlbench doctor --site {name}")


@commands.command()
@click.option("--site", "site_name", help="A file in config/sites/; the experiment's if left out.")
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True, help="Of the job.")
@click.option(
    "--wait-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    help="How long the job may wait for nodes.",
)
def doctor(site_name: str | None, nodes: int, wait_minutes: float) -> None:
    """Check a site inside a small job, and say what to change.

    Exit status 1 if anything is to be changed.
    """
    from ddlbench.cluster.doctor import examine  # noqa: PLC0415

    if site_name is None:
        site_name = str(read_yaml(enter_project()).get("site", "local"))
    site = load_site(site_name)
    findings = examine(
        site,
        min(nodes, site.nodes),
        site_name=site_name,
        patience_s=wait_minutes * 60,
        say=click.echo,
    )
    if _show_findings(findings, site):
        sys.exit(1)


for _command in (
    accelerator,
    check,
    check_data,
    interconnect,
    link,
    partition_command,
    predict,
    recommend,
    tune,
    largest_batch_command,
    accuracy,
    calibrate,
    oracle,
    papers,
    claims,
    timeline,
):
    commands.add_command(_command)


if __name__ == "__main__":
    main()
