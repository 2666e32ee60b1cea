"""``ddlbench plan``: what an experiment will cost."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.cluster.preflight import examine_for, is_here
from ddlbench.commands.options import snakemake_command, with_matrix
from ddlbench.commands.site import show_findings
from ddlbench.common.quantities import HOURS, counted, duration_text, few, size_text, two_digits
from ddlbench.common.screen import examples, named_lines, paragraph
from ddlbench.common.statistics import grouped
from ddlbench.experiment.cell import short_names
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.paths import CONFIG, RESULTS, links_file, profile_file
from ddlbench.experiment.profile import ProfileKey
from ddlbench.experiment.registry import NETWORKS
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import code_of
from ddlbench.interconnect.time_plan import links_plan, links_shape
from ddlbench.planning.budget import cells_to_run, estimate, finished_rows
from ddlbench.planning.expected_time import START_S
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.registry import faulty_figures
from ddlbench.user_parts import try_user_parts

if TYPE_CHECKING:
    from ddlbench.experiment.cell import Cell
    from ddlbench.planning.budget import Budget


@click.command(epilog=examples("ddlbench plan", "ddlbench plan --configfile mine.yaml --list"))
@with_matrix
@click.option("--list", "every_cell", is_flag=True, help="List the cells to run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def plan(
    experiment: Any, site: Site, rows: list[MatrixRow], every_cell: bool, as_json: bool
) -> None:
    """Say what an experiment will cost before it runs."""
    parts = try_user_parts(site, rows)
    rows = [
        replace(row, unsupported=parts.unsupported.get(row.cell.id, row.unsupported))
        for row in rows
    ]
    finished = finished_rows(rows, site)
    cost = estimate(rows, site, RESULTS, parts, finished)
    if as_json:
        click.echo(json.dumps(asdict(cost), indent=1))
        return
    to_run = cells_to_run(rows, finished)
    lines = plan_lines(cost, experiment, site, rows, to_run, every_cell=every_cell)
    click.echo("\n".join(lines))
    if site.launcher == "slurm" and to_run:
        fabrics = _unmeasured(site, to_run) if experiment.predict else []
        _show_preflight(site, to_run, [links_shape(site, fabric) for fabric in fabrics])


def _show_preflight(site: Site, cells: Sequence[Cell], further: Sequence[tuple[int, int]]) -> None:
    """What is wrong with a cluster's site; exit status 1 if no job could run as it is."""
    if not is_here():
        click.echo("Not checked: account, partition and limits, as no SLURM is in PATH.")
        return
    findings = [f for f in examine_for(site, cells, None, further) if not f.ok or f.doubtful]
    if show_findings(findings, site):
        sys.exit(1)


_REASONS_SHOWN = 4
_UNKNOWN = (
    "its balance reads a table of built-in networks on built-in datasets, without your own ones"
)


def plan_lines(
    cost: Budget,
    experiment: Experiment,
    site: Site,
    rows: Sequence[MatrixRow],
    to_run: Sequence[Cell],
    *,
    every_cell: bool = False,
) -> list[str]:
    """What an experiment costs, what it lacks, and the next command."""
    lines = paragraph(
        f"{experiment.name} on {site.name}: {counted(cost.cells, 'cell')}, {cost.to_run:,} to run, "
        f"{_done(cost)}, {cost.unsupported:,} cannot run"
        + (f", {cost.left:,} left as they are" if cost.left else "")
    )
    pairs = []
    if cost.to_run:
        strategies = Counter(cell.strategy for cell in to_run).most_common()
        pairs = [
            ("time", _time(cost, experiment, site)),
            ("needs", _needs(cost, experiment, site, to_run)),
            *_predictions(cost, experiment, site, to_run),
            ("to run", ", ".join(f"{name} {count:,}" for name, count in strategies)),
        ]
    pairs += [("data", line) for line in cost.data]
    lines += named_lines(pairs)
    lines += _cannot(rows, experiment)
    for warning in (*cost.warnings, *faulty_figures()):
        lines += paragraph(f"Warning: {warning}.", hanging="  ")
    lines += _check_of_own(experiment, to_run)
    if every_cell:
        lines += [f"  {name}" for name in short_names(to_run)]
    elif len(to_run) > 1:
        lines.append("The cells to run: --list.")
    if cost.to_run:
        lines += paragraph(f"Next: {snakemake_command(experiment, site)}", hanging="  ")
    elif not cost.done:
        lines.append("Nothing can run yet.")
    else:
        lines += paragraph("Nothing to run. The tables and figures: ddlbench report", hanging="  ")
    return lines


def _check_of_own(experiment: Experiment, to_run: Sequence[Cell]) -> list[str]:
    """The command that compares strategies with one device, where a network is not built in."""
    if all(cell.network in NETWORKS.built_in for cell in to_run):
        return []
    command = "ddlbench check"
    if Path(experiment.where) != CONFIG:
        command += f" --configfile {shlex.quote(experiment.where)}"
    sentence = "Whether each strategy trains your network as one device does, in a few tiny steps: "
    return paragraph(sentence + command, hanging="  ")


def _done(cost: Budget) -> str:
    failures = {name: count for name, count in cost.done_statuses.items() if name != "ok"}
    listed = ", ".join(f"{count:,} {name}" for name, count in failures.items())
    return f"{cost.done:,} done" + (f" ({listed})" if listed else "")


def _time(cost: Budget, experiment: Experiment, site: Site) -> str:
    """The expected time first, and what it is known from; the time-outs bound it."""
    alone = site.launcher != "slurm"
    upper = _hours(cost.device_s_upper) if not alone else duration_text(cost.run_s_upper)
    bound = f"at most {upper} (time-outs)"
    known = cost.to_run - cost.cells_unknown
    if cost.run_s_expected is None or cost.device_s_expected is None:
        return (
            f"unknown, {bound}: no step was measured here. For an estimate, run first (about "
            f"{_profile_time(experiment)} per network): "
            f"{snakemake_command(experiment, site, 'profiles')}"
        )
    about = duration_text(cost.run_s_expected) if alone else _hours(cost.device_s_expected)
    each = duration_text(cost.run_s_expected / known)
    sources = [
        (cost.cells_known_by_strategy, "as measured"),
        (cost.cells_known_by_network, "as measured with another strategy"),
        (cost.cells_known_by_steps, "from measured steps"),
        (cost.cells_known_by_profile, "from profiles"),
        (cost.cells_known_by_operations, "from operations, roughly"),
        (cost.cells_unknown, "unknown and not counted"),
    ]
    parts = [(count, name) for count, name in sources if count]
    alike = len(parts) == 1
    listed = ", ".join(name if alike else f"{count:,} {name}" for count, name in parts)
    return f"about {about}, {each} a cell ({listed}); {bound}"


def _predictions(
    cost: Budget, experiment: Experiment, site: Site, to_run: Sequence[Cell]
) -> list[tuple[str, str]]:
    keys = {ProfileKey.of(cell).id for cell in to_run}
    missing = sum(not profile_file(site.name, key).is_file() for key in keys)
    links = _links(site, to_run)
    if not (experiment.predict and (missing or links)) or cost.measured_first:
        return []
    parts = []
    if missing:
        parts.append(f"{counted(missing, 'profile')} too, about {_profile_time(experiment)} each")
    return [("predict", ", and ".join([*parts, *links]))]


def _unmeasured(site: Site, cells: Iterable[Cell]) -> list[str]:
    """The fabrics of cells whose links are not measured yet."""
    fabrics = sorted({cell.fabric for cell in cells})
    return [fabric for fabric in fabrics if not links_file(site.name, fabric).is_file()]


def _links(site: Site, cells: Iterable[Cell]) -> list[str]:
    """The links that are not measured yet, with their time; empty if there are none."""
    times_s = [links_plan(site, fabric).expected_s for fabric in _unmeasured(site, cells)]
    if not times_s:
        return []
    each = f"about {duration_text(sum(times_s) / len(times_s))}"
    return [
        f"links, {each}" if len(times_s) == 1 else f"links of {len(times_s)} fabrics, {each} each"
    ]


def _needs(cost: Budget, experiment: Experiment, site: Site, to_run: Sequence[Cell]) -> str:
    disk = (
        f"{size_text(cost.node_disk_bytes)} of disk a node" if cost.node_disk_bytes else "no disk"
    )
    jobs = f"{counted(cost.slurm_jobs, 'SLURM job')}" if cost.slurm_jobs else "no SLURM jobs"
    first = ""
    if cost.measured_first:
        first = f", {counted(cost.measured_first, 'profile or links file')} measured first"
        times = [f"{_profile_time(experiment)} a profile", *_links(site, to_run)]
        first += f" (about {', '.join(times)})"
    return (
        f"{disk}, no download, {jobs}{first}; "
        f"largest cell {counted(cost.largest_nodes, 'node')}, "
        f"{counted(cost.largest_devices, 'device')}"
    )


def _profile_time(experiment: Experiment) -> str:
    profile = experiment.profile
    return duration_text(profile.runs * (profile.budget_s + START_S))


def _hours(device_s: float) -> str:
    hours = HOURS.of(device_s)
    return f"{two_digits(hours)} device-hours"


def _cannot(rows: Sequence[MatrixRow], experiment: Experiment) -> list[str]:
    groups = grouped(
        (_UNKNOWN if _blocks_unknown(row) else str(row.unsupported), row)
        for row in rows
        if row.unsupported is not None
    )
    pairs = []
    for reason, members in list(groups.items())[:_REASONS_SHOWN]:
        what = ", ".join(dict.fromkeys(row.cell.strategy for row in members))
        networks = dict.fromkeys(row.cell.network for row in members)
        if len(networks) < len({row.cell.network for row in rows}):
            what += f" with {few(networks, 4)}"
        pairs.append(("cannot run", f"{what}, {counted(len(members), 'cell')}: {reason}"))
    if len(groups) > _REASONS_SHOWN:
        more = counted(len(groups) - _REASONS_SHOWN, "more reason")
        pairs.append(("", f"{more}: ddlbench status --all"))
    return named_lines(pairs) + _missing_balance(rows, experiment)


def _missing_balance(rows: Sequence[MatrixRow], experiment: Experiment) -> list[str]:
    unknown = dict.fromkeys(row.cell.strategy for row in rows if _blocks_unknown(row))
    if not unknown:
        return []
    lines = paragraph(f"Write into {experiment.where}:", "            ")
    lines.append("              strategies:")
    return lines + [f"                {name}: {{balance: profile}}" for name in unknown]


def _blocks_unknown(row: MatrixRow) -> bool:
    return code_of(row.unsupported) == "unknown_blocks"
