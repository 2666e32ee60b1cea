"""``ddlbench predict``, ``recommend`` and ``accuracy``: what files say of time and memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.experiment_options import with_matrix
from ddlbench.experiment.cell import OptionValue, parse_geometry
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import enter_project
from ddlbench.experiment.registry import BASE, known
from ddlbench.experiment.screen import paragraph
from ddlbench.experiment.site import load_site, making_command

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow
    from ddlbench.predict.candidate import Recommendation
    from ddlbench.predict.prediction import Prediction
    from ddlbench.predict.recommend import PredictionRequest


def cell_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what is trained, on how much, with which batch."""
    batch = click.option(
        "--batch-size", type=click.IntRange(1), required=True, help="Samples of one step."
    )
    return case_options(batch(command))


def case_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what is trained, on how much."""
    for option in reversed(
        (
            click.option("--site", "site_name", default="local", show_default=True, help="Site."),
            click.option("--network", required=True, help="Name, or package.module:callable."),
            click.option("--dataset", required=True, help="Name of the dataset."),
            click.option("--geometry", required=True, help="Nodes x devices per node: 2x4."),
            click.option("--fabric", default="default", show_default=True, help="Link condition."),
            click.option("--precision", default="fp32", show_default=True),
            click.option("--threads", type=click.IntRange(1), default=1, help="Of a CPU device."),
            click.option(
                "--option", "options", multiple=True, help="Of a strategy: gpipe.chunks=8."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
        )
    ):
        command = option(command)
    return command


@click.command()
@cell_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--predictor", "names", multiple=True, help="Only this one; may be repeated.")
@click.option("--all", "every_model", is_flag=True, help="Also the papers' models and baselines.")
@click.option("--why", is_flag=True, help="Also what each predictor assumes.")
def predict(
    *,
    site_name: str,
    strategy: str,
    names: tuple[str, ...],
    every_model: bool,
    why: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict one cell: time of a step, its parts, memory."""
    from ddlbench.planning.plan import make_plan  # noqa: PLC0415 - slow to import
    from ddlbench.planning.strategy import strategy_of  # noqa: PLC0415
    from ddlbench.predict.calibration import calibrated  # noqa: PLC0415
    from ddlbench.predict.evaluate import measured_of  # noqa: PLC0415
    from ddlbench.predict.inputs import Inputs  # noqa: PLC0415
    from ddlbench.predict.prediction import ask, predictor_of  # noqa: PLC0415
    from ddlbench.predict.recommend import (  # noqa: PLC0415
        DEFAULT_RECOMMENDER,
        predictor_for,
    )

    enter_project()
    request, site = request_of(options), load_site(site_name)
    cell = request.cell(strategy)
    reason = strategy_of(strategy).supports(cell) or site.supports(cell)
    if reason is not None:
        raise ConfigError(f"{strategy} cannot run this cell: {reason}")
    inputs, plan = Inputs(site.name), make_plan(cell, site.name)
    workload, links = inputs.workload(cell), inputs.links(cell)
    history = measured_of(cell.dataset, cell.network, site.name)
    used = predictor_for(DEFAULT_RECOMMENDER, strategy, site.device) or DEFAULT_RECOMMENDER
    if every_model:
        names = tuple(known("ddlbench.predictors"))
    predictions: list[Prediction] = []
    errors: dict[str, None] = {}
    for name in names or (used,):
        try:
            found = ask(predictor_of(name), workload, links, plan, history)
            predictions.append(calibrated(found, strategy, inputs.calibration))
        except ConfigError as error:
            errors[str(error)] = None
    if not predictions:
        missing = inputs.missing(cell)
        made = f"; make what is missing with: {making_command(site.name, missing)}"
        raise ConfigError("; ".join(errors) + made * bool(missing))
    if as_json:
        records = [prediction_dict(prediction) for prediction in predictions]
        click.echo(json.dumps({"cell_id": cell.id, "predictions": records}, indent=1))
        return
    from ddlbench.commands.predict_display import prediction_lines  # noqa: PLC0415
    from ddlbench.predict.accuracy import errors_at  # noqa: PLC0415

    base = make_plan(request.cell(BASE), site.name)
    lines = prediction_lines(
        request,
        site,
        predictions,
        cell=cell,
        used=used,
        alone=ask(predictor_of(BASE), workload, links, base),
        history=history,
        errors=errors_at(site.name),
        calibrated=bool(inputs.calibration and inputs.calibration.of(strategy)),
        why=why,
    )
    click.echo("\n".join(lines))


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
    site_name: str,
    recommender: str,
    measure: int | None,
    budget_device_hours: float | None,
    allow_stale: bool,
    device_memory_bytes: int | None,
    why: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Rank the strategies for a network on so many devices."""
    from ddlbench.predict.accuracy import errors_at  # noqa: PLC0415 - slow to import
    from ddlbench.predict.evaluate import measured_of  # noqa: PLC0415
    from ddlbench.predict.inputs import Inputs  # noqa: PLC0415 - slow to import
    from ddlbench.predict.recommend import DEFAULT_RECOMMENDER  # noqa: PLC0415
    from ddlbench.predict.recommend import recommend as ranked  # noqa: PLC0415

    enter_project()
    request, site = request_of(options), load_site(site_name)
    inputs, errors = Inputs(site.name), errors_at(site.name)

    def rank() -> Recommendation:
        return ranked(
            request,
            site,
            inputs,
            recommender=recommender,
            allow_stale=allow_stale,
            device_memory_bytes=device_memory_bytes,
            history=measured_of(request.dataset, request.network, site.name),
            errors=errors,
        )

    if budget_device_hours is not None and measure is None:
        raise ConfigError("--budget-device-hours limits what --measure K measures; give K, too")
    if measure is not None and recommender != DEFAULT_RECOMMENDER:
        raise ConfigError(
            f"--measure goes by measurements, --recommender {recommender} does not; leave one out"
        )
    if measure is not None:
        from ddlbench.commands.choose import choose_by_measuring, cost_lines  # noqa: PLC0415

        choice = choose_by_measuring(rank, request, site, measure, budget_device_hours)
        ranking, cost = choice.ranking, cost_lines(choice)
    else:
        ranking, cost = rank(), []
    if as_json:
        click.echo(json.dumps(ranking.to_dict(), indent=1))
        return
    from ddlbench.commands.recommend_display import recommendation_lines  # noqa: PLC0415

    asked = {candidate.cell.strategy for candidate in ranking.ranking}
    lines = recommendation_lines(
        request,
        site,
        ranking,
        errors=errors,
        stale=[name for name in known("ddlbench.strategies") if name not in asked],
        why=why,
    )
    lines += cost
    missing = next((inputs.missing(c.cell) for c in ranking.ranking if c.cell.devices > 1), [])
    if missing:
        lines += paragraph(f"Make what is missing with: {making_command(site.name, missing)}")
    click.echo("\n".join(lines))


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
    from ddlbench.commands.predict_display import accuracy_lines  # noqa: PLC0415 - slow to import
    from ddlbench.workflow import (  # noqa: PLC0415
        draw_predictions,
        make_predictions,
        make_report,
    )

    tables = make_predictions(experiment, site, rows)
    drawn: list[Path] = []
    if figures:
        make_report(experiment, site, rows)  # the footers speak of its tables
        drawn = draw_predictions(experiment, site, rows)
    if as_json:
        by_name = {field.name: records(getattr(tables, field.name)) for field in fields(tables)}
        click.echo(json.dumps(by_name, indent=1))
        return
    lines = accuracy_lines(tables, experiment.name, site.name, every_row=every_row)
    click.echo("\n".join(lines))
    if drawn:
        click.echo(f"Figures: {drawn[0].parent}")


def request_of(values: dict[str, Any]) -> PredictionRequest:
    """The request that the options of :func:`cell_options` make."""
    from ddlbench.predict.recommend import PredictionRequest  # noqa: PLC0415

    nodes, devices_per_node = parse_geometry(values["geometry"], "--geometry")
    request = PredictionRequest(
        network=values["network"],
        dataset=values["dataset"],
        nodes=nodes,
        devices_per_node=devices_per_node,
        batch_size=values["batch_size"],
        settings={
            "fabric": values["fabric"],
            "precision": values["precision"],
            "threads_per_device": values["threads"],
        },
        options=_options(values["options"]),
    )
    request.check_names()
    return request


def _options(texts: Sequence[str]) -> dict[str, dict[str, OptionValue]]:
    """``gpipe.chunks=8`` as strategy -> option -> value."""
    found: dict[str, dict[str, OptionValue]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        strategy, dot, option = name.rpartition(".")
        if not (equals and dot and strategy and option):
            raise ConfigError(f"--option {text!r}: write strategy.option=value, as gpipe.chunks=8")
        try:
            found.setdefault(strategy, {})[option] = json.loads(value)
        except ValueError:
            found.setdefault(strategy, {})[option] = value
    return found


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
