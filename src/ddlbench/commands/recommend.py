"""``ddlbench recommend``: what to train with, on one geometry or on several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.measuring import by_workflow, case_id, measured_cell
from ddlbench.commands.questions import Questions, cell_options, questions_of
from ddlbench.commands.recommend_display import cost_lines, recommendation_lines
from ddlbench.commands.sizes_display import sizes_lines
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import paragraph, show
from ddlbench.common.units import HOURS
from ddlbench.experiment.site import making_command
from ddlbench.predict.advice import Advice, advise, answer_dict
from ddlbench.predict.choose import Choice, Limits, choice_file, choose, result_of, write_choice
from ddlbench.predict.recommend import recommend as ranked
from ddlbench.predict.recommenders import DEFAULT_RECOMMENDER
from ddlbench.predict.sizes import Size, sizes_dict

if TYPE_CHECKING:
    from ddlbench.predict.question import Question


@click.command()
@cell_options
@click.option(
    "--recommender",
    default="ddlbench",
    show_default=True,
    help="A predictor that covers every strategy, or a set: measured-links (by device: CPUs hide "
    "no communication), overlap, thesis, ddlbench-2020 (the paper's equations), or a rule: "
    "horovod-unless-oom.",
)
@click.option("--measure", type=click.IntRange(1), help="Measure up to so many candidates first.")
@click.option(
    "--budget-device-hours", type=click.FloatRange(0, min_open=True), help="Of what is measured."
)
@click.option("--allow-stale", is_flag=True, help="Also strategies that update with old weights.")
@click.option(
    "--device-memory-bytes",
    type=click.IntRange(1),
    help="Memory of one device, where profile and site do not say it.",
)
@click.option("--why", is_flag=True, help="Also the parts of a step, and every reason in full.")
def recommend(
    *,
    recommender: str,
    measure: int | None,
    budget_device_hours: float | None,
    allow_stale: bool,
    device_memory_bytes: int | None,
    why: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Rank the strategies for a network on so many devices.

    Several geometries, as 1x2,1x4,2x4, are compared with each other.
    """
    if budget_device_hours is not None and measure is None:
        raise ConfigError("--budget-device-hours limits what --measure K measures; give K, too")
    if measure is not None and recommender != DEFAULT_RECOMMENDER:
        raise ConfigError(
            f"--measure goes by measurements, --recommender {recommender} does not; leave one out"
        )
    questions = questions_of(options)
    fixed = {
        "recommender": recommender,
        "allow_stale": allow_stale,
        "device_memory_bytes": device_memory_bytes,
    }
    if len(questions.each) > 1:
        if measure is not None:
            raise ConfigError("--measure takes one geometry; write one of them")
        _compare_sizes(questions, fixed, as_json=as_json)
        return
    _answer(questions, fixed, measure, budget_device_hours, as_json=as_json, why=why)


def _answer(
    questions: Questions,
    fixed: dict[str, Any],
    measure: int | None,
    device_hours: float | None,
    *,
    as_json: bool,
    why: bool,
) -> None:
    """Answer one question, after measuring if that is wanted."""
    question = questions.one
    cost: list[str] = []
    if measure is None:
        here = questions.knowledge(**fixed)
        ranking = ranked(question, here)
        advice = advise(question, ranking, here)
    else:
        choice, advice = _measured(questions, fixed, measure, device_hours)
        here, ranking, cost = questions.knowledge(**fixed), choice.ranking, cost_lines(choice)
    lines = recommendation_lines(question, ranking, advice, here, why=why) + cost
    cells = [c.cell for c in ranking.candidates if c.cell.devices > 1]
    if missing := here.inputs.missing(cells[0]) if cells else ():
        command = making_command(questions.site.name, missing)
        lines += paragraph(f"Make what is missing with: {command}")
    show(answer_dict(question, ranking, advice), lines, as_json=as_json)


def _measured(
    questions: Questions, fixed: dict[str, Any], cells: int, device_hours: float | None
) -> tuple[Choice, Advice]:
    """Choose by measuring; write choice.json and its figure."""
    question, site = questions.one, questions.site
    choice = choose(
        lambda: ranked(question, questions.knowledge(**fixed)),
        by_workflow(questions, lambda cell: cell.strategy),
        Limits(cells, None if device_hours is None else HOURS.size * device_hours),
        lambda cell: result_of(cell, site.name),
        measured_cell(questions),
    )
    advice = advise(question, choice.ranking, questions.knowledge(**fixed))
    content = choice.to_dict(site.name, answer_dict(question, choice.ranking, advice))
    path = choice_file(site.name, case_id(question))
    write_choice(content, path)
    _draw("choice", path.with_suffix(".png"), content)
    click.echo(f"written: {path}, {path.with_suffix('.png').name}", err=True)
    return choice, advice


def _compare_sizes(questions: Questions, fixed: dict[str, Any], *, as_json: bool) -> None:
    """Answer for each geometry, and say after which one more devices do not pay."""
    here = questions.knowledge(**fixed)

    def answered(question: Question) -> Size:
        ranking = ranked(question, here)
        return Size(question, ranking, advise(question, ranking, here))

    sizes = [answered(q) for q in sorted(questions.each, key=lambda q: (q.devices, q.nodes))]
    values = sizes_dict(sizes)
    path = choice_file(questions.site.name, case_id(sizes[-1].question)).with_name("sizes.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    _draw("sizes", path, values)
    show(values, [*sizes_lines(sizes, here), f"figure: {path}"], as_json=as_json)


def _draw(figure: str, path: Path, content: Any) -> None:
    from ddlbench.report.drawing import draw_figure  # noqa: PLC0415 - most answers draw nothing

    draw_figure(figure, path, content)
