"""``ddlbench site``: the file of a cluster, written and checked, and devices to emulate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ddlbench.cluster.doctor import examine
from ddlbench.cluster.init import free_site_file, interview, link_test_remarks, write_site
from ddlbench.commands.accelerator import accelerator
from ddlbench.common.schema import read_yaml
from ddlbench.common.screen import Number, counted, examples, paragraph
from ddlbench.experiment.paths import enter_project
from ddlbench.experiment.site import Site, load_site

if TYPE_CHECKING:
    from ddlbench.cluster.preflight import Finding


@click.group()
def site() -> None:
    """Describe a cluster, check it, or make a device to emulate."""


site.add_command(accelerator)


@site.command(
    epilog=examples(
        "ddlbench site init mycluster",
        "ddlbench site init mycluster --partition gpu --gpu a100 --yes",
    )
)
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
    free_site_file(name, overwrite)
    answers = interview(name, **given)
    path = write_site(answers, overwrite)
    chosen = answers.selection
    click.echo(f"{path} is written: {chosen.text}, partition {chosen.offer.kind.partition}")
    for remark in (*chosen.remarks, *link_test_remarks(chosen)):
        click.echo("\n".join(paragraph(f"note: {remark}", hanging="  ")))
    click.echo(f"Next: ddlbench site doctor --site {name}")


@site.command(
    epilog=examples(
        "ddlbench site doctor --site mycluster", "ddlbench site doctor --site mycluster --nodes 4"
    )
)
@click.option("--site", "site_name", help="A file in config/sites/; the experiment's if left out.")
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True, help="Of the job.")
@click.option(
    "--wait-minutes",
    type=Number(min=0, min_open=True),
    default=10,
    show_default=True,
    help="How long the job may wait for nodes.",
)
def doctor(site_name: str | None, nodes: int, wait_minutes: float) -> None:
    """Check a site inside a small job, and say what to change.

    Exit status 1 if anything is to be changed.
    """
    if site_name is None:
        site_name = str(read_yaml(enter_project()).get("site", "local"))
    described = load_site(site_name)
    findings = examine(
        described,
        min(nodes, described.nodes),
        site_name=site_name,
        patience_s=wait_minutes * 60,
        say=click.echo,
    )
    if show_findings(findings, described):
        sys.exit(1)


def show_findings(findings: Sequence[Finding], described: Site) -> int:
    """A line a finding; returns how many need a change of the site's file."""
    for finding in findings:
        mark = click.style("ok", fg="green") if finding.ok else click.style("!!", fg="red")
        mark = click.style("??", fg="yellow") if finding.doubtful else mark
        lines = paragraph(f"{finding.what}: {finding.says}", indent="   ")
        click.echo("\n".join([f"{mark} {lines[0].strip()}", *lines[1:]]))
    wrong = sum(not finding.ok for finding in findings)
    if wrong:
        click.echo(f"{counted(wrong, 'thing')} to change in config/sites/{described.name}.yaml")
    return wrong
