"""``ddlbench largest-batch``: the largest batch of a strategy that a device's memory holds.

Cells that a command measures: through the workflow, as any cell is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.questions import case_options, questions_of
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import paragraph, show
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import CONFIG, project_root, result_file
from ddlbench.planning.expected_time import finished_of, put_aside_invalid
from ddlbench.planning.memory import capacity_bytes
from ddlbench.predict.candidate import assess
from ddlbench.predict.largest_batch import MemoryOfBatches, lines, smallest_batch
from ddlbench.predict.largest_batch import largest_batch as search
from ddlbench.predict.recommend import NotMeasured, result_of, short_cell

if TYPE_CHECKING:
    from ddlbench.commands.questions import Questions
    from ddlbench.experiment.result import Glance
    from ddlbench.predict.ranking import Question


def by_workflow(
    questions: Questions, named: Callable[[Cell], str]
) -> Callable[[Cell], Glance | None]:
    """A function that measures a cell with the site's profile of Snakemake.

    It returns None where the cell failed, and raises NotMeasured where the workflow did not begin
    it; the error stream says why.

    Args:
        questions: where, and of which experiment.
        named: what the error stream says is being measured.
    """
    site = questions.site

    def measure(cell: Cell) -> Glance | None:
        path = result_file(site.name, cell.id)
        click.echo(f"measuring {named(cell)} ...", err=True)
        for remark in put_aside_invalid(finished_of([cell.id], site.name), site.name):
            click.echo(remark, err=True)
        command = [sys.executable, "-m", "snakemake", str(path)]
        command += ["--profile", f"profiles/{site.launcher}"]
        command += ["--configfile", str(questions.configfile or CONFIG)]
        command += ["--config", f"site={site.name}"]
        if questions.configfile is None:  # the cell belongs to no experiment
            command.append("experiment=single-cells")
        ended = subprocess.run(command, cwd=project_root(), check=False, stdout=sys.stderr)
        found = result_of(cell, site.name)
        if found is None:
            click.echo(
                f"{path} was not measured: snakemake ended with {ended.returncode}, see above",
                err=True,
            )
            if not (path.parent / "log.txt").is_file():
                raise NotMeasured("the workflow could not begin a cell; it says why above")
        return found

    return measure


def measured_cell(questions: Questions) -> Callable[[Cell], Cell]:
    """What is measured for a cell: a short one, or the cell of the experiment itself."""
    return short_cell if questions.configfile is None else lambda cell: cell


def case_id(question: Question) -> str:
    """The case as a path: what differs from the defaults of a cell is in its last part."""
    parts = [f"batch_size={question.batch_size}"]
    parts += [f"{name}={value}" for name, value in sorted(question.all_settings().items())]
    parts += [
        f"{strategy}.{key}={value}"
        for strategy, options in sorted(question.all_options().items())
        for key, value in sorted(options.items())
    ]
    network = question.network.replace(":", "@")
    return f"{question.dataset}/{network}/{question.geometry}/{'+'.join(parts)}"


if TYPE_CHECKING:
    pass


@click.command("largest-batch")
@case_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--dry-run", is_flag=True, help="Only predict; measure no cell.")
@click.option("--trials", type=click.IntRange(1), default=3, show_default=True, help="Most cells.")
@click.option(
    "--device-memory-bytes",
    type=click.IntRange(1),
    help="Memory of one device, where profile and site do not say it.",
)
def largest_batch(
    *,
    strategy: str,
    dry_run: bool,
    trials: int,
    device_memory_bytes: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the largest batch that fits, and confirm it by a cell."""
    questions = questions_of(options, batch_size=1)
    site, here = questions.site, questions.knowledge()
    # The options of a cell follow its batch: take those of a large one, for servers among them too.
    devices = questions.one.devices
    large = questions.one.with_batch(64 * devices * max(1, devices - 1))
    cell = large.cell(strategy).with_(batch_size=1)
    smallest = smallest_batch(cell, site.accelerator)
    candidate = assess(cell.with_(batch_size=smallest), here)
    if candidate.bound is None:
        raise ConfigError(f"{strategy}: {candidate.reason}")
    if candidate.beyond and not dry_run:
        raise ConfigError(f"{candidate.beyond}; --dry-run predicts it")
    workload = here.inputs.workload(cell)
    capacity = device_memory_bytes or capacity_bytes(workload.device_memory_bytes, site)
    if capacity is None:
        raise ConfigError(
            f"the memory of a device of site {site.name} is unknown; give --device-memory-bytes, "
            "or memory_per_device_mb in the site file"
        )
    memory = MemoryOfBatches(cell, site, workload, capacity)
    measure = by_workflow(questions, lambda one: f"{one.strategy} with {one.batch_size} samples")
    found = search(
        memory, None if dry_run else measure, lambda one: result_of(one, site.name), trials
    )
    told = [part for line in lines(found, memory) for part in paragraph(line)]
    show(asdict(found), told, as_json=as_json)
