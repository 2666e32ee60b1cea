"""Cells that a command measures: through the workflow, as any cell is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ddlbench.common.project import project_root
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import CONFIG, result_file
from ddlbench.planning.finished import finished_of, put_aside_invalid
from ddlbench.predict.choose import NotMeasured, result_of, short_cell

if TYPE_CHECKING:
    from ddlbench.commands.questions import Questions
    from ddlbench.experiment.result import Glance
    from ddlbench.predict.question import Question


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
