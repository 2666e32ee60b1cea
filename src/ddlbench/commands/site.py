"""``ddlbench site``: the file of a cluster, written and checked, and devices to emulate.

``site accelerator`` makes a device that sites can emulate, from its measured times.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ddlbench.cluster.doctor import examine
from ddlbench.cluster.init import free_site_file, interview, link_test_remarks, write_site
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.quantities import MB, counted, duration_text
from ddlbench.common.schema import read_yaml
from ddlbench.common.screen import Number, WholeNumber, examples, paragraph, table
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import enter_project, profile_file
from ddlbench.experiment.site import Site, is_emulated, load_site
from ddlbench.planning.device_folder import (
    DESCRIPTION,
    Device,
    Precision,
    check_network,
    device_folder,
    device_of_profiles,
    made_faster,
    measured_profiles,
    read_device,
    tables_of_profiles,
    write_device,
    write_tables,
)
from ddlbench.planning.graph_table import LACKS, table_of_graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddlbench.cluster.preflight import Finding
    from ddlbench.planning.device_table import DeviceTable

    Tables = Mapping[tuple[str, str], DeviceTable]


@click.command(
    "accelerator",
    short_help="Make a device that sites can emulate.",
    epilog=examples(
        "ddlbench site accelerator h100 --site mycluster",
        "ddlbench site accelerator faster --site mycluster --faster 10",
    ),
)
@click.argument("name")
@click.option("--site", "site_name", help="Take the profiles that were measured at this site.")
@click.option(
    "--graph",
    "graphs",
    multiple=True,
    metavar="DATASET/NETWORK=FILE",
    help="Take PipeDream's graph.txt of a network; may be given again.",
)
@click.option("--network", "networks", multiple=True, help="Only this network; may be given again.")
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="fp32",
    show_default=True,
    help="Of the profiles.",
)
@click.option(
    "--faster",
    type=Number(min=0, min_open=True),
    default=1.0,
    metavar="FACTOR",
    help="Divide every time by this: a device that does not exist, so many times as fast.",
)
@click.option("--description", help="The device in words.")
@click.option("--source", help="Who measured it, and how.")
@click.option("--licence", help="Under which the numbers are given.")
@click.option("--overwrite", is_flag=True, help="Replace tables that are there.")
def accelerator(
    *,
    name: str,
    site_name: str | None,
    graphs: tuple[str, ...],
    networks: tuple[str, ...],
    precision: Precision,
    faster: float,
    description: str | None,
    source: str | None,
    licence: str | None,
    overwrite: bool,
) -> None:
    """Make a device that sites can emulate, from its measured times.

    Writes config/accelerators/NAME: device.yaml, and a table per network. A site file names the
    folder: accelerator: {profiles: config/accelerators/NAME}.
    """
    if (site_name is None) == (not graphs):
        raise ConfigError(
            "write either --site SITE, whose profiles are taken, or --graph DATASET/NETWORK=FILE"
        )
    files = [_graph_file(graph) for graph in graphs]
    enter_project()
    folder = device_folder(name)
    tables: Tables
    if site_name is not None:
        device, tables = _of_site(load_site(site_name).name, precision, networks)
    else:
        device, tables = _of_graphs(files, precision, networks)
    if faster != 1:
        tables = {pair: made.faster(faster) for pair, made in tables.items()}
        device = made_faster(device, faster)
    device = replace(
        device,
        description=description or device.description,
        source=source or device.source,
        licence=licence or device.licence,
    )
    described = (folder / DESCRIPTION).is_file()
    if described and (given := read_device(folder).precision) != precision:
        raise ConfigError(
            f"{folder / DESCRIPTION}: its times are of {given}; add those of {precision} to "
            "another device"
        )
    write_tables(folder, tables, overwrite=overwrite)
    if overwrite or not described:
        write_device(folder, device)
    click.echo("\n".join(_lines(tables)))
    shown_at = f"config/accelerators/{name}"
    kept = " (kept as it was)" if described and not overwrite else ""
    click.echo(f"written: {shown_at}, described in {DESCRIPTION}{kept}")
    click.echo(f"Next: a site file with accelerator: {{profiles: {shown_at}}}")


def _graph_file(graph: str) -> tuple[str, str, Path]:
    """Dataset, network and file of ``imagenet/vgg16=graph.txt``."""
    pair, equals, file = graph.partition("=")
    dataset, slash, network = pair.partition("/")
    if not (equals and slash and dataset and network and file):
        raise ConfigError(
            f"--graph {shown(graph)}: write dataset/network=file, as imagenet/vgg16=graph.txt"
        )
    return dataset, network, Path(file).absolute()


def _of_site(site: str, precision: str, networks: tuple[str, ...]) -> tuple[Device, Tables]:
    measured = measured_profiles(site, precision)
    profiles = {pair: profile for pair, profile in measured.items() if pair[0] in DATASETS}
    left_out = sorted({dataset for dataset, _ in measured.keys() - profiles.keys()})
    if left_out:
        click.echo(f"left out: profiles of {', '.join(left_out)}, data of an experiment", err=True)
    chosen = {
        pair: profile for pair, profile in profiles.items() if not networks or pair[1] in networks
    }
    lacking = [name for name in networks if name not in {network for _, network in chosen}]
    if lacking or not chosen:
        what = f" of {lacking[0]}" if lacking else ""
        raise ConfigError(
            f"site {site} has no profile{what} in {precision} of one thread below "
            f"{profile_file(site, '').parent}; measure it there: snakemake --profile "
            f"profiles/local profiles --config site={site}"
        )
    for (dataset, network), (path, profile) in chosen.items():
        check_network(dataset, network, str(path))
        if is_emulated(profile.provenance.get("cpu_model")):
            raise ConfigError(
                f"{path}: its device was itself emulated; take profiles of a real device"
            )
    device = device_of_profiles([profile for _, profile in chosen.values()])
    return device, tables_of_profiles(chosen)


def _of_graphs(
    files: list[tuple[str, str, Path]], precision: Precision, networks: tuple[str, ...]
) -> tuple[Device, Tables]:
    if networks:
        raise ConfigError("--network chooses among the profiles of --site; --graph names its own")
    tables: dict[tuple[str, str], DeviceTable] = {}
    for dataset, network, path in files:
        check_network(dataset, network, "--graph")
        if (dataset, network) in tables:
            raise ConfigError(f"--graph: {dataset}/{network} is there twice; leave one out")
        tables[dataset, network] = table_of_graph(path, network, DATASETS[dataset])
    device = Device(
        description="a GPU that PipeDream's profiler timed",
        precision=precision,
        source="graph.txt files of PipeDream's profiler",
        lacks=LACKS,
    )
    return device, tables


def _lines(tables: Tables) -> list[str]:
    headings = (
        "dataset | network | > blocks | > tensors | > parameters | > batch sizes | > forward "
        "| > backward"
    )
    rows = []
    for (dataset, network), made in tables.items():
        times = made.pass_s(made.batch_sizes[-1])
        rows.append(
            (
                dataset,
                network,
                str(len(made.blocks)),
                str(made.tensors),
                MB.text(made.parameter_bytes, ".1f"),
                ", ".join(map(str, made.batch_sizes)),
                *map(duration_text, times),
            )
        )
    return [*table(headings, rows), *paragraph("Times are of the largest batch size.")]


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
@click.option("--devices-per-node", type=WholeNumber(1), help="Workers of one node.")
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
    written = f"{path} is written: {chosen.text}, partition {chosen.offer.kind.partition}"
    notes = (f"note: {remark}" for remark in (*chosen.remarks, *link_test_remarks(chosen)))
    for text in (written, *notes):
        click.echo("\n".join(paragraph(text, hanging="  ")))
    click.echo(f"Next: ddlbench site doctor --site {name}")


@site.command(
    epilog=examples(
        "ddlbench site doctor --site mycluster", "ddlbench site doctor --site mycluster --nodes 4"
    )
)
@click.option("--site", "site_name", help="A file in config/sites/; the experiment's if left out.")
@click.option("--nodes", type=WholeNumber(1), default=2, show_default=True, help="Of the job.")
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
    """A line a finding; returns how many keep jobs from running."""
    for finding in findings:
        mark = click.style("ok", fg="green") if finding.ok else click.style("!!", fg="red")
        mark = click.style("??", fg="yellow") if finding.doubtful else mark
        lines = paragraph(f"{finding.what}: {finding.says}", indent="   ")
        click.echo("\n".join([f"{mark} {lines[0].strip()}", *lines[1:]]))
    wrong = [finding for finding in findings if not finding.ok]
    in_file = sum(finding.in_file for finding in wrong)
    if in_file:
        click.echo(f"{counted(in_file, 'thing')} to change in config/sites/{described.name}.yaml")
    return len(wrong)
