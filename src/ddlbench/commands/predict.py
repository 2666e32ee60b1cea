"""``ddlbench predict``, ``recommend`` and ``accuracy``: what files say of time and memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from ddlbench.experiment.cell import OptionValue, parse_geometry
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import predictions_file, tables_dir
from ddlbench.experiment.registry import known
from ddlbench.experiment.schema import read_yaml
from ddlbench.experiment.site import load_site
from ddlbench.experiment.units import GB, SECONDS

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.prediction import Prediction
    from ddlbench.predict.recommend import PredictionRequest, Recommendation


def _cell_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what is trained, on how much."""
    for option in reversed(
        (
            click.option("--site", "site_name", default="local", show_default=True, help="Site."),
            click.option("--network", required=True, help="Name, or package.module:callable."),
            click.option("--dataset", required=True, help="Name of the dataset."),
            click.option("--geometry", required=True, help="Nodes x devices per node: 2x4."),
            click.option(
                "--batch-size", type=click.IntRange(1), required=True, help="Samples of one step."
            ),
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
@_cell_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--predictor", "names", multiple=True, help="Only this one; may be repeated.")
def predict(
    site_name: str, strategy: str, names: tuple[str, ...], as_json: bool, **asked: Any
) -> None:
    """Predict one cell: time of a step, its parts, memory of each device."""
    from ddlbench.planning.plan import make_plan  # noqa: PLC0415 - slow to import
    from ddlbench.planning.strategy import strategy_of  # noqa: PLC0415
    from ddlbench.predict.evaluate import measured_of  # noqa: PLC0415
    from ddlbench.predict.inputs import Inputs  # noqa: PLC0415
    from ddlbench.predict.prediction import ask, predictor_of  # noqa: PLC0415

    cell, site = _question(asked).cell(strategy), load_site(site_name)
    reason = strategy_of(strategy).supports(cell) or site.supports(cell)
    if reason is not None:
        raise ConfigError(f"{strategy} cannot run this cell: {reason}")
    inputs, plan = Inputs(site.name), make_plan(cell, site.name)
    workload, links = inputs.workload(cell), inputs.links(cell)
    history = measured_of(cell.dataset, cell.network, site.name)
    told: list[Prediction] = []
    silent: dict[str, str] = {}
    for name in names or known("ddlbench.predictors"):
        try:
            told.append(ask(predictor_of(name), workload, links, plan, history))
        except ConfigError as error:
            silent[name] = str(error)
    if not told:
        raise ConfigError("; ".join(dict.fromkeys(silent.values())))
    if as_json:
        predictions = [prediction_dict(prediction) for prediction in told]
        click.echo(json.dumps({"cell_id": cell.id, "predictions": predictions}, indent=1))
        return
    show_predictions(cell.id, told)


@click.command()
@_cell_options
@click.option(
    "--recommender",
    default="measured-links",
    show_default=True,
    help="measured-links (by device: CPUs hide no communication), overlap, thesis, ddlbench, or a "
    "predictor that speaks of every strategy.",
)
@click.option("--allow-stale", is_flag=True, help="Also strategies that update with old weights.")
@click.option(
    "--device-memory-bytes",
    type=click.IntRange(1),
    help="Memory of one device, where profile and site do not say it.",
)
def recommend(
    site_name: str,
    recommender: str,
    allow_stale: bool,
    device_memory_bytes: int | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Rank the strategies for a network, a dataset and so many devices."""
    from ddlbench.predict.evaluate import measured_of  # noqa: PLC0415
    from ddlbench.predict.inputs import Inputs  # noqa: PLC0415 - slow to import
    from ddlbench.predict.recommend import recommend as ranked  # noqa: PLC0415

    question, site = _question(asked), load_site(site_name)
    found = ranked(
        question,
        site,
        Inputs(site.name),
        recommender=recommender,
        allow_stale=allow_stale,
        device_memory_bytes=device_memory_bytes,
        history=measured_of(question.dataset, question.network, site.name),
    )
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        show_recommendation(found)


@click.command()
@click.option(
    "--configfile",
    type=click.Path(path_type=Path),
    default=Path("config/config.yaml"),
    show_default=True,
    help="The experiment.",
)
@click.option("--site", "site_name", default=None, help="Another site than the file names.")
@click.option("--figures", is_flag=True, help="Draw the figures too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def accuracy(configfile: Path, site_name: str | None, figures: bool, as_json: bool) -> None:
    """Compare every predictor and baseline with what an experiment measured.

    Writes predictions.json and the tables accuracy, table_6_1, table_8_1 and table_8_2.
    """
    from ddlbench.report.choice_tables import (  # noqa: PLC0415 - slow to import
        choices_by_case,
        rates_by_recommender,
    )
    from ddlbench.workflow import (  # noqa: PLC0415
        draw_predictions,
        make_predictions,
        make_report,
        matrix_of,
    )

    config = read_yaml(configfile)
    if site_name is not None:
        config["site"] = site_name
    experiment, site, rows = matrix_of(config, where=str(configfile))
    told = make_predictions(experiment, site, rows)
    drawn: list[Path] = []
    if figures:
        make_report(experiment, site, rows)  # the footers speak of its tables
        drawn = draw_predictions(experiment, site, rows)
    if as_json:
        tables = {field.name: records(getattr(told, field.name)) for field in fields(told)}
        click.echo(json.dumps(tables, indent=1))
        return
    console = Console()
    console.print(frame_table(told.accuracy, "Prediction errors"))
    if told.table_8_1.empty:
        console.print("no case with two measured strategies: nothing to recommend")
    else:
        console.print(frame_table(choices_by_case(told.table_8_1), "Recommendations (Table 8.1)"))
        console.print(frame_table(rates_by_recommender(told.table_8_2), "Right (Table 8.2)"))
    path = predictions_file(site.name, experiment.name)
    console.print(f"predictions: {path}", soft_wrap=True)
    console.print(f"tables:      {tables_dir(site.name, experiment.name)}", soft_wrap=True)
    if drawn:
        console.print(f"figures:     {drawn[0].parent}", soft_wrap=True)


def _question(asked: dict[str, Any]) -> PredictionRequest:
    """What the options of :func:`_cell_options` ask."""
    from ddlbench.predict.recommend import PredictionRequest  # noqa: PLC0415

    nodes, devices_per_node = parse_geometry(asked["geometry"], "--geometry")
    question = PredictionRequest(
        network=asked["network"],
        dataset=asked["dataset"],
        nodes=nodes,
        devices_per_node=devices_per_node,
        batch_size=asked["batch_size"],
        settings={
            "fabric": asked["fabric"],
            "precision": asked["precision"],
            "threads_per_device": asked["threads"],
        },
        options=_options(asked["options"]),
    )
    question.check_names()
    return question


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


def show_predictions(cell_id: str, told: Sequence[Prediction]) -> None:
    """Print what several predictors say of one cell."""
    table = Table(title=cell_id, title_justify="left")
    for heading in (
        "predictor",
        "step",
        "compute",
        "exposed comm.",
        "all comm.",
        "bubble",
        "memory, fullest device",
    ):
        table.add_column(heading, justify="left" if heading == "predictor" else "right")
    for prediction in told:
        table.add_row(
            prediction.predictor,
            *(
                _seconds(value)
                for value in (
                    prediction.step_s,
                    prediction.compute_s,
                    prediction.exposed_communication_s,
                    prediction.communication_s,
                    prediction.bubble_s,
                )
            ),
            _gigabytes(max(prediction.memory_bytes, default=None)),
        )
    console = Console()
    console.print(table)
    for prediction in told:
        for remark in (*prediction.notes, *prediction.limits):
            console.print(f"{prediction.predictor}: {remark}", soft_wrap=True)


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


def show_recommendation(found: Recommendation) -> None:
    """Print a ranking, best first."""
    table = Table()
    for heading in ("", "strategy", "step", "samples/s", "memory", "fits", "why"):
        table.add_column(heading, justify="right" if heading in ("step", "samples/s") else "left")
    for place, candidate in enumerate(found.ranking, start=1):
        told = candidate.prediction
        fit = {True: "yes", False: "no", None: "?"}[candidate.fits]
        table.add_row(
            str(place) if told and candidate.fits is not False else "-",
            candidate.label + ("" if candidate.synchronous else " (stale)"),
            _seconds(told.step_s) if told else "",
            f"{candidate.cell.batch_size / told.step_s:.4g}" if told else "",
            _gigabytes(candidate.memory_bytes),
            fit if told else "",
            candidate.why,
        )
    console = Console()
    console.print(table)
    best = found.best
    if best is None:
        console.print("nothing that can run is predicted to fit")
        return
    console.print(f"recommended: {best.label} (predicted by {found.recommender})")
    if best.prediction is not None:
        for remark in (*best.prediction.notes, *best.prediction.limits):
            console.print(f"  {remark}", soft_wrap=True)


def frame_table(frame: pd.DataFrame, title: str) -> Table:
    """A frame as a terminal table; shares and errors in percent."""
    table = Table(title=title, title_justify="left")
    percent = ("_error", "regret", "spread", "top1", "share", "noise")
    for name in frame.columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for record in records(frame):
        cells = []
        for name, value in record.items():
            if value is None:
                cells.append("")
            elif isinstance(value, float):
                cells.append(f"{value:+.1%}" if any(p in name for p in percent) else f"{value:.4g}")
            else:
                cells.append(str(value))
        table.add_row(*cells)
    return table


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON values; an unknown number is None."""
    return [
        {str(name): _json_value(value) for name, value in record.items()}
        for record in frame.to_dict("records")
    ]


def _json_value(value: Any) -> Any:
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain


def _seconds(value: float) -> str:
    return SECONDS.text(value, ".4g")


def _gigabytes(value: float | None) -> str:
    return "" if value is None else GB.text(value)
