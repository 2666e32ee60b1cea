"""What an experiment's results come to: tables, figures, predictions, advice and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.paths import (
    RESULTS,
    advice_file,
    figures_dir,
    prediction_figures_dir,
    predictions_file,
    tables_dir,
)
from ddlbench.experiment.site import Site
from ddlbench.planning.matrix import MatrixRow, matrix_of
from ddlbench.predict.accuracy import errors, write_predictions
from ddlbench.predict.advice import answers
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.recommend import answers_dict, write_choice
from ddlbench.predict.recommender_score import published_cases, table_8_1, table_8_2, with_choices
from ddlbench.report.choice_tables import beside_printed, write_choices
from ddlbench.report.drawing import (
    LeftOut,
    draw_each,
    draw_figure,
    make_figure,
    make_prediction_figures,
)
from ddlbench.report.figures.conditions import table_6_1
from ddlbench.report.footer import Context
from ddlbench.report.html_report import make_html_report
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import faulty_figures, figures_for, prediction_figures_for
from ddlbench.report.tables import write_table

if TYPE_CHECKING:
    import pandas as pd


def make_report(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> list[Path]:
    """Tables, figures and HTML report of the results that are there; returns the figures.

    Raises:
        LeftOut: some figures could not be drawn; all else is made.
    """
    tables = tables_dir(site.name, experiment.name)
    make_tables(experiment.name, site.name, rows, RESULTS, tables)
    folder = figures_dir(site.name, experiment.name)
    pictures = {name: folder / f"{name}.png" for name in figures_for(rows)}
    faults = faulty_figures()
    try:
        made = draw_each(
            pictures,
            lambda name: make_figure(
                name, tables, pictures[name], site.description, experiment.paper
            ),
        )
    except LeftOut as error:
        made = error.made
        faults += str(error).splitlines()
    faults += _predicted_anew(experiment, site, rows)
    make_page(experiment, site, rows)
    if faults:
        raise LeftOut(faults, made)
    return made


def _predicted_anew(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> list[str]:
    """Bring the predictions that are there up to date with the results; returns what failed."""
    if not predictions_file(site.name, experiment.name).is_file():
        return []
    try:
        make_predictions(experiment, site, rows)
        if prediction_figures_dir(site.name, experiment.name).is_dir():
            draw_predictions(experiment, site, rows)
    except LeftOut as error:
        return str(error).splitlines()
    except ConfigError as error:
        return [f"the predictions are of earlier results: {error}"]
    return []


def make_advice(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> Path:
    """What to train with in each case of the experiment: advice.json, and its figure."""
    content = answers_dict(site.name, answers(experiment, rows, site))
    path = advice_file(site.name, experiment.name)
    write_choice(content, path)
    if content["answers"]:
        draw_figure("choice", figures_dir(site.name, experiment.name) / "choice.png", content)
    return path


def make_page(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> Path:
    """The advice, and the HTML report of the tables and figures that are there."""
    make_advice(experiment, site, rows)
    return make_html_report(experiment.name, site, rows, RESULTS)


@dataclass(frozen=True)
class PredictionTables:
    """What predictions come to; see docs/prediction.md."""

    accuracy: pd.DataFrame
    table_6_1: pd.DataFrame
    table_8_1: pd.DataFrame
    table_8_2: pd.DataFrame
    table_8_1_published: pd.DataFrame
    table_8_2_published: pd.DataFrame


def make_predictions(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> PredictionTables:
    """Ask every predictor about every cell, and write predictions.json and its tables.

    Raises:
        ConfigError: nothing could be predicted; the message says why.
    """
    frame = predictions(rows, site)
    cases = table_8_1(frame, site.compute_kind)
    rates = table_8_2(cases)
    scored, columns = with_choices(errors(frame), rates), table_6_1(frame)
    as_published = published_cases(frame, site.compute_kind)
    tables = PredictionTables(scored, columns, cases, rates, *as_published)
    folder = tables_dir(site.name, experiment.name)
    for field in fields(tables):
        table = getattr(tables, field.name)
        shown = beside_printed(table) if field.name.startswith("table_8") else table
        write_table(folder / f"{field.name}.csv", shown)
    write_choices(cases, rates, as_published, folder)
    write_predictions(frame, site.name, experiment.name)
    return tables


def draw_predictions(
    experiment: Experiment, site: Site, rows: list[MatrixRow], names: Sequence[str] | None = None
) -> list[Path]:
    """Draw figures of the predictions that are there: all that suit the matrix, or those named.

    Raises:
        LeftOut: some could not be drawn; the others are made.
    """
    return make_prediction_figures(
        names or prediction_figures_for(rows),
        predictions_file(site.name, experiment.name),
        tables_dir(site.name, experiment.name),
        prediction_figures_dir(site.name, experiment.name),
        site_description=site.description,
        paper=experiment.paper,
    )


def compare_sites(config: Mapping[str, Any], sites: Sequence[str], where: str) -> Path:
    """Tables of an experiment on several sites, and the figure that compares them.

    The first site's folder gets the figure. ``where`` names the configuration in messages.
    """
    tables, contexts = {}, {}
    for name in sites:
        experiment, site, rows = matrix_of({**config, "site": name}, where)
        folder = tables_dir(site.name, experiment.name)
        tables[site.name] = make_tables(experiment.name, site.name, rows, RESULTS, folder)
        contexts[site.name] = Context(site.description, paper=experiment.paper)
    path = figures_dir(next(iter(tables)), experiment.name) / "sites.png"
    return draw_figure("sites", path, tables, contexts)
