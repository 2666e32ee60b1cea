"""``ddlbench recommend --measure``: candidates are measured by the workflow, as any cell is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ddlbench.commands.measuring import by_workflow, case_id, case_of
from ddlbench.experiment.screen import paragraph
from ddlbench.experiment.units import HOURS
from ddlbench.report.labels import strategy_label

if TYPE_CHECKING:
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

    measure = by_workflow(site, lambda cell: cell.strategy)
    device_s = None if device_hours is None else HOURS.size * device_hours
    choice = choose(rank, measure, Limits(cells, device_s), lambda cell: result_of(cell, site.name))
    case = case_of(request)
    path = choice_file(site.name, case_id(request))
    draw_figure("choice", path.with_suffix(".png"), write_choice(choice, site.name, case, path))
    click.echo(f"written: {path}, {path.with_suffix('.png').name}", err=True)
    return choice


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
