"""The ``ddlbench`` command: what a person asks beside the workflow. Thin on purpose."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from ddlbench import __version__
from ddlbench.commands.interconnect import interconnect, link
from ddlbench.commands.oracle import oracle
from ddlbench.commands.partition import partition_command
from ddlbench.commands.predict import accuracy, predict, recommend
from ddlbench.commands.timeline import timeline
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, figures_dir, result_file, tables_dir
from ddlbench.experiment.schema import read_yaml
from ddlbench.experiment.site import Site, load_site
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow

Selected = tuple[Any, Site, list[MatrixRow]]


def main() -> None:
    """Run the command; what the user got wrong is one sentence and exit status 2."""
    try:
        commands(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        print(f"ddlbench: {error}", file=sys.stderr)
        sys.exit(2)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ddlbench")
def commands() -> None:
    """Measure, predict and choose how to parallelise DNN training on a cluster."""


def _with_matrix(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which experiment, and hand its matrix to the command."""

    @click.option(
        "--configfile",
        type=click.Path(path_type=Path),
        default=Path("config/config.yaml"),
        show_default=True,
        help="The experiment.",
    )
    @click.option("--site", "site_name", default=None, help="Another site than the file names.")
    @wraps(command)
    def wrapped(configfile: Path, site_name: str | None, **options: Any) -> None:
        command(*_matrix(configfile, site_name), **options)

    return wrapped


def _matrix(configfile: Path, site_name: str | None) -> Selected:
    from ddlbench.workflow import matrix_of  # noqa: PLC0415 - pandas takes its time

    config = read_yaml(configfile)
    if site_name is not None:
        config["site"] = site_name
    return matrix_of(config, where=str(configfile))


@commands.command()
@_with_matrix
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def plan(experiment: Any, site: Site, rows: list[MatrixRow], as_json: bool) -> None:
    """Say what an experiment will cost, before anything is submitted."""
    from ddlbench.planning.cost import estimate, render  # noqa: PLC0415

    cost = estimate(rows, site, RESULTS)
    if as_json:
        click.echo(json.dumps(cost.to_dict(), indent=1))
    else:
        Console().print(render(cost))


@commands.command()
@_with_matrix
@click.option("--show", is_flag=True, help="Only print the summary of the tables that are there.")
@click.option("--also-site", multiple=True, help="Compare with this site; may be given again.")
def report(
    experiment: Any, site: Site, rows: list[MatrixRow], show: bool, also_site: tuple[str, ...]
) -> None:
    """Make tables and figures of the results that are there, however many are missing."""
    from ddlbench.report.terminal import summary_table  # noqa: PLC0415
    from ddlbench.workflow import compare_sites, make_report  # noqa: PLC0415

    tables = tables_dir(site.name, experiment.name)
    if not show or not (tables / "summary.csv").is_file():
        make_report(experiment, site, rows)
    console = Console()
    console.print(summary_table(tables))
    console.print(f"tables:  {tables}/measurements.csv")
    console.print(f"figures: {figures_dir(site.name, experiment.name)}/speedup.png")
    if also_site:
        context = click.get_current_context()
        configfile = context.params["configfile"]
        names = [context.params["site_name"] or experiment.site, *also_site]
        figure = compare_sites(read_yaml(configfile), names, str(configfile))
        console.print(f"sites:   {figure}")


@commands.command()
@_with_matrix
@click.option(
    "--state",
    type=click.Choice([state.value for state in Status]),
    help="Only cells in this state.",
)
@click.option("--paths", is_flag=True, help="Print the cells' result files, one a line.")
def status(
    experiment: Any, site: Site, rows: list[MatrixRow], state: str | None, paths: bool
) -> None:
    """List cells by state, with the reason of those that have no measurement.

    To run only the failed ones again: snakemake --profile profiles/slurm $(ddlbench status
    --state failed --paths)
    """
    from ddlbench.report.terminal import states, states_table  # noqa: PLC0415

    found = states(experiment.name, site.name, rows)
    if state is not None:
        found = [cell for cell in found if cell.state == state]
    if paths:
        for cell in found:
            click.echo(result_file(site.name, cell.cell_id))
    else:
        Console().print(states_table(found))


@commands.command()
@_with_matrix
@click.option(
    "--state",
    type=click.Choice([s.value for s in Status if s.is_result or s is Status.INVALID]),
    required=True,
    help="Which results to delete.",
)
@click.confirmation_option(prompt="Delete these results, so that the cells are measured again?")
def forget(experiment: Any, site: Site, rows: list[MatrixRow], state: str) -> None:
    """Delete the results of cells in a state, so that the next run measures them again."""
    from ddlbench.report.terminal import states  # noqa: PLC0415

    chosen = [c for c in states(experiment.name, site.name, rows) if c.state == state]
    # A cell that the plan itself calls unsupported has none.
    files = [result_file(site.name, cell.cell_id) for cell in chosen]
    files = [file for file in files if file.is_file()]
    for file in files:
        file.unlink()
    click.echo(f"{len(files)} results deleted")


@commands.command()
@click.argument("name")
@click.option("--partition", "partition_name", help="Partition; asked for if left out.")
@click.option("--account", help="Account to charge; asked for where there are several.")
@click.option("--scratch", help="Node-local folder for generated data.")
@click.option("--interface", help="Network interface between the nodes, for example ib0.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="What workers compute on.")
@click.option("--devices-per-node", type=click.IntRange(1), help="Workers of one node.")
@click.option("--yes", is_flag=True, help="Ask nothing: take the first of everything.")
@click.option("--overwrite", is_flag=True, help="Replace a site file of that name.")
def init(name: str, overwrite: bool, **given: Any) -> None:
    """Write a site file for this cluster: SLURM is asked first, then you."""
    from ddlbench.cluster.init import interview, write_site  # noqa: PLC0415

    path = write_site(interview(name, **given), overwrite)
    click.echo(f"{path} is written. Next: ddlbench doctor --site {name}")


@commands.command()
@click.option("--site", "site_name", required=True, help="A file in config/sites/.")
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True, help="Of the job.")
@click.option(
    "--wait-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    help="How long the job may wait for nodes.",
)
def doctor(site_name: str, nodes: int, wait_minutes: float) -> None:
    """Check a site inside a small job, and say what to change. Exit status 1 if anything is."""
    from ddlbench.cluster.doctor import examine  # noqa: PLC0415

    site = load_site(site_name)
    console, wrong = Console(), 0
    found = examine(
        site,
        min(nodes, site.nodes),
        site_name=site_name,
        patience_s=wait_minutes * 60,
        say=click.echo,
    )
    for finding in found:
        mark = "[green]ok[/green]" if finding.ok else "[red]!![/red]"
        mark = "[yellow]??[/yellow]" if finding.doubtful else mark
        # Texts of others, such as ``gpu[1-4]``, are no markup.
        console.print(mark, escape(f"{finding.what}: {finding.says}"), soft_wrap=True)
        wrong += not finding.ok
    if wrong:
        console.print(f"{wrong} thing(s) to change in config/sites/{site.name}.yaml")
        sys.exit(1)


for _command in (
    interconnect,
    link,
    partition_command,
    predict,
    recommend,
    accuracy,
    oracle,
    timeline,
):
    commands.add_command(_command)


if __name__ == "__main__":
    main()
