"""``ddlbench tune``: the best options of a strategy, with as few cells as possible."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.measuring import by_workflow, case_id
from ddlbench.commands.questions import cell_options, questions_of
from ddlbench.commands.tune_display import cost_lines, tuning_lines
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import show
from ddlbench.common.units import HOURS
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.budget import Budget, estimate
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.choose import Limits, result_of, short_cell
from ddlbench.predict.configurations import configurations, varied
from ddlbench.predict.tuning import Tuning, tuning_file, write_tuning
from ddlbench.predict.tuning import tune as search
from ddlbench.report.drawing import draw_figure

if TYPE_CHECKING:
    from ddlbench.experiment.cell import Cell, OptionValue
    from ddlbench.experiment.site import Site
    from ddlbench.predict.prediction import History

_TRIALS = 6


@click.command()
@cell_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option(
    "--vary",
    "varied_texts",
    multiple=True,
    help="An option or batch_size, and its values: chunks=2,4,8. By default the options that "
    "decide a step's time.",
)
@click.option(
    "--trials", type=click.IntRange(1), default=_TRIALS, show_default=True, help="Most cells."
)
@click.option(
    "--budget-device-hours", type=click.FloatRange(0, min_open=True), help="Of what is measured."
)
@click.option(
    "--device-memory-bytes", type=click.IntRange(1), help="Limit of one device; else its memory."
)
@click.option(
    "--sampler",
    type=click.Choice(["predictor", "tpe", "random"]),
    default="predictor",
    show_default=True,
    help="Who asks for the next cell; tpe and random know no prediction.",
)
@click.option("--dry-run", is_flag=True, help="Say what it would measure, and what that costs.")
@click.option("--all", "every_row", is_flag=True, help="A line for every configuration.")
def tune(
    *,
    strategy: str,
    varied_texts: tuple[str, ...],
    trials: int,
    budget_device_hours: float | None,
    device_memory_bytes: int | None,
    sampler: str,
    dry_run: bool,
    every_row: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Search a strategy's options for the most samples a second."""
    questions = questions_of(options)
    question, site = questions.one, questions.site
    here = questions.knowledge(device_memory_bytes=device_memory_bytes, allow_stale=True)
    values = varied(strategy, _varied(varied_texts), question.written_options(strategy))
    found = configurations(question, strategy, values, here)
    beyond = next((one.candidate.beyond for one in found if one.candidate.beyond), "")
    if beyond and not dry_run:
        raise ConfigError(f"{beyond}; --dry-run predicts it")

    def history() -> History:
        return questions.knowledge().history

    choices = {name: [*each] for name, each in values.items()}
    case = {**question.to_dict(), "strategy": strategy, "varied": choices}
    if dry_run:
        tuning = Tuning(found, history(), stopped="a dry run")
        cells = [one.cell for one, _ in tuning.beliefs()]
        cost = _cost(cells, trials, site) if cells and not beyond else None
    else:
        limits = Limits(trials, budget_device_hours and HOURS.size * budget_device_hours)
        labels = {short_cell(one.cell).id: one.label for one in found}
        measure = by_workflow(questions, lambda cell: labels.get(cell.id, cell.id))
        tuning = search(
            found,
            history,
            measure,
            limits,
            lambda cell: result_of(cell, site.name),
            sampler=sampler,
        )
        path = tuning_file(site.name, f"{strategy}/{case_id(question)}")
        content = write_tuning(tuning, site.name, case, path)
        draw_figure("tuning", path.with_suffix(".png"), content)
        click.echo(f"written: {path}, {path.with_suffix('.png').name}", err=True)
        cost = None
    lines = tuning_lines(question, site, strategy, tuning, every_row=every_row)
    lines += cost_lines(tuning, cost, trials)
    show(tuning.to_dict(site.name, case), lines, as_json=as_json)


def _cost(cells: Sequence[Cell], trials: int, site: Site) -> tuple[Budget, Budget]:
    """What the first ``trials`` short cells would cost, and all of them."""
    rows = [MatrixRow(short_cell(cell), None, None) for cell in cells]
    return estimate(rows[:trials], site, RESULTS), estimate(rows, site, RESULTS)


def _varied(texts: Sequence[str]) -> Mapping[str, tuple[OptionValue, ...]]:
    """``chunks=2,4`` as name -> values; numbers and booleans as in JSON."""
    found: dict[str, tuple[OptionValue, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(",")]
        if not (equals and name and all(parts)):
            raise ConfigError(f"--vary {text!r}: write a name and its values, as chunks=2,4,8")
        if name in found:
            raise ConfigError(f"--vary {name} is given twice; write all its values once")
        found[name] = tuple(map(_value, parts))
    return found


def _value(text: str) -> OptionValue:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
