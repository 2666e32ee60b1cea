"""``ddlbench recommend --measure``: candidates are measured by the workflow, as any cell is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import project_root, result_file
from ddlbench.experiment.screen import paragraph
from ddlbench.experiment.units import HOURS
from ddlbench.report.labels import strategy_label

if TYPE_CHECKING:
    from ddlbench.experiment.result import Glance
    from ddlbench.experiment.site import Site
    from ddlbench.predict.candidate import Recommendation
    from ddlbench.predict.choose import Choice
    from ddlbench.predict.recommend import PredictionRequest


def choose_by_measuring(
    rank: Callable[[], Recommendation],
    request: PredictionRequest,
    site: Site,
    cells: int,
    device_hours: float | None,
) -> Choice:
    """Choose, write choice.json and its figure; the error stream says what is being measured."""
    from ddlbench.predict.choose import (  # noqa: PLC0415 - slow to import
        Limits,
        choice_file,
        choose,
        result_of,
        write_choice,
    )
    from ddlbench.report.drawing import draw_figure  # noqa: PLC0415

    def measure(cell: Cell) -> Glance:
        path = result_file(site.name, cell.id)
        click.echo(f"measuring {cell.strategy} ...", err=True)
        command = [sys.executable, "-m", "snakemake", str(path)]
        command += ["--profile", f"profiles/{site.launcher}", "--config", f"site={site.name}"]
        ended = subprocess.run(command, cwd=project_root(), check=False, stdout=sys.stderr)
        found = result_of(cell, site.name)
        if found is None:
            raise ConfigError(
                f"{path} was not measured: snakemake ended with {ended.returncode}, and says why "
                "above; the same command goes on from here"
            )
        return found

    device_s = None if device_hours is None else HOURS.size * device_hours
    choice = choose(rank, measure, Limits(cells, device_s), lambda cell: result_of(cell, site.name))
    case = asdict(request)
    path = choice_file(site.name, _case_id(request))
    draw_figure("choice", path.with_suffix(".png"), write_choice(choice, site.name, case, path))
    click.echo(f"written: {path}, {path.with_suffix('.png').name}", err=True)
    return choice


def _case_id(request: PredictionRequest) -> str:
    """The case as a path: what differs from the defaults of a cell is in its last part."""
    defaults = {field.name: field.default for field in fields(Cell)}
    parts = [f"batch_size={request.batch_size}"]
    parts += [f"{key}={v}" for key, v in sorted(request.settings.items()) if v != defaults[key]]
    parts += [
        f"{strategy}.{key}={value}"
        for strategy, options in sorted(request.options.items())
        for key, value in sorted(options.items())
    ]
    geometry = f"{request.nodes}x{request.devices_per_node}"
    network = request.network.replace(":", "@")
    return f"{request.dataset}/{network}/{geometry}/{'+'.join(parts)}"


def cost_lines(choice: Choice) -> list[str]:
    """What was measured for a choice, and what it saved."""
    if not choice.trials:
        return paragraph(f"Nothing was measured: {choice.stopped}.")
    told = [
        strategy_label(trial.strategy) + ("" if trial.step_s else f" ({trial.status})")
        for trial in choice.trials
    ]
    every = choice.device_s_all()
    whole = f"; all candidates would take {HOURS.of(every):.2g}" if every else ""
    return paragraph(
        f"Measured for this choice: {', '.join(told)}, {HOURS.of(choice.device_s):.2g} "
        f"device-hours{whole}. Stopped: {choice.stopped}."
    )
