"""``ddlbench predict`` and ``accuracy``: what files say of time and memory."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.accuracy_display import accuracy_lines
from ddlbench.commands.experiment_options import with_matrix
from ddlbench.commands.predict_display import prediction_lines
from ddlbench.commands.questions import cell_options, questions_of
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import show
from ddlbench.experiment.registry import BASE, known
from ddlbench.experiment.site import making_command
from ddlbench.planning.planner import make_plan
from ddlbench.predict.candidate import Candidate, Knowledge, assess, predicted
from ddlbench.predict.ranking import prediction_interval_s, rank
from ddlbench.predict.recommenders import DEFAULT_RECOMMENDER, predictor_for

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow
    from ddlbench.predict.prediction import Prediction


@click.command()
@cell_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--predictor", "names", multiple=True, help="Only this one; may be repeated.")
@click.option("--all", "every_model", is_flag=True, help="Also the papers' models and baselines.")
@click.option("--why", is_flag=True, help="Also what each predictor assumes.")
def predict(
    *,
    strategy: str,
    names: tuple[str, ...],
    every_model: bool,
    why: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict one cell: time of a step, its parts, memory."""
    questions = questions_of(options)
    question, site = questions.one, questions.site
    here = questions.knowledge(allow_stale=True)
    cell = question.cell(strategy)
    alone = assess(question.cell(BASE), here)
    candidate = assess(cell, here).limited(alone)
    among = [candidate] if strategy == BASE else [alone, candidate]
    ranking = rank(among, DEFAULT_RECOMMENDER)
    if candidate.bound is None:
        raise ConfigError(f"{strategy}: {candidate.reason}")
    used = predictor_for(DEFAULT_RECOMMENDER, strategy, site.compute_kind) or DEFAULT_RECOMMENDER
    if every_model:
        names = tuple(known("ddlbench.predictors"))
    predictions = _predictions(candidate, names or (used,), here)
    interval_s = prediction_interval_s(ranking, strategy)
    values = {
        "cell_id": cell.id,
        "bound": candidate.bound,
        "step_s": candidate.predicted_s,
        "interval_s": interval_s,
        "predictions": [prediction_dict(prediction) for prediction in predictions],
    }
    lines = prediction_lines(
        question,
        predictions,
        candidate=candidate,
        alone=alone,
        interval_s=interval_s,
        used=used,
        known=here,
        why=why,
    )
    show(values, lines, as_json=as_json)


def _predictions(candidate: Candidate, names: tuple[str, ...], here: Knowledge) -> list[Prediction]:
    """What the named predictors say of a candidate's cell; those without an answer are left out.

    Raises:
        ConfigError: none has an answer.
    """
    cell = candidate.cell
    plan = make_plan(cell, here.site.name, here.site.accelerator)
    workload = here.inputs.workload(cell)
    found: list[Prediction] = []
    errors: dict[str, None] = {}
    for name in names:
        try:
            found.append(predicted(name, workload, plan, here))
        except ConfigError as error:
            errors[str(error)] = None
    if not found:
        missing = here.inputs.missing(cell)
        sentences = list(errors)
        if missing:
            command = making_command(here.site.name, missing)
            sentences.append(f"make what is missing with: {command}")
        raise ConfigError("; ".join(sentences))
    return found


@click.command()
@with_matrix
@click.option("--figures", is_flag=True, help="Draw the figures too.")
@click.option("--all", "every_row", is_flag=True, help="Every predictor and every case.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def accuracy(
    *,
    experiment: Experiment,
    site: Site,
    rows: list[MatrixRow],
    figures: bool,
    every_row: bool,
    as_json: bool,
) -> None:
    """Compare predictions with measured cells.

    Writes predictions.json and the tables accuracy, table_6_1, table_8_1 and table_8_2.
    """
    from ddlbench.report.products import (  # noqa: PLC0415 - matplotlib takes its time
        draw_predictions,
        make_predictions,
        make_report,
    )

    tables = make_predictions(experiment, site, rows)
    drawn: list[Path] = []
    if figures:
        make_report(experiment, site, rows)  # the footers speak of its tables
        drawn = draw_predictions(experiment, site, rows)
    by_name = {field.name: records(getattr(tables, field.name)) for field in fields(tables)}
    lines = accuracy_lines(tables, experiment.name, site.name, every_row=every_row)
    lines += [f"Figures: {drawn[0].parent}"] if drawn else []
    show(by_name, lines, as_json=as_json)


def prediction_dict(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON values."""
    return {
        "predictor": prediction.predictor,
        "step_s": prediction.step_s,
        "interval_s": list(prediction.interval_s) if prediction.interval_s else None,
        "compute_s": prediction.compute_s,
        "communication_s": prediction.communication_s,
        "exposed_communication_s": prediction.exposed_communication_s,
        "bubble_s": prediction.bubble_s,
        "memory_bytes": list(prediction.memory_bytes),
        "limits": list(prediction.limits),
        "notes": list(prediction.notes),
    }


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON values; an unknown number is None."""
    return [
        {str(name): _json_value(value) for name, value in record.items()}
        for record in frame.to_dict("records")
    ]


def _json_value(value: Any) -> Any:
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain
