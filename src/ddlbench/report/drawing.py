"""Draws figures from their inputs, and saves each with the plotted numbers.

The figures of predictions have predictions, joined with the tables of their cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import Paper
from ddlbench.experiment.links import Links
from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.experiment.registry import BASE
from ddlbench.planning.labels import dataset_label, in_dataset_order, strategy_label
from ddlbench.planning.strategy import workers_of
from ddlbench.predict.accuracy import read_predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, predictor_of
from ddlbench.report.footer import Context, is_set, without_signs
from ddlbench.report.labels import status_mark, variant_labels, workers_label
from ddlbench.report.registry import FIGURES, FigureEntry, names_of, prediction_figure
from ddlbench.report.tables import read_tables, rows_of, write_table


def draw_figure(figure: str | FigureEntry, png: Path, *inputs: Any) -> Path:
    """Draw a figure into ``png``, and beside it a PDF and a CSV with the plotted numbers.

    Args:
        figure: an entry of :data:`FIGURES`, or its name.
        png: the path that is returned.
        inputs: those of the figure's kind; see :class:`FigureEntry`.
    """
    # Here, as commands import this module that mostly print.
    from ddlbench.report.style import save_figure, style  # noqa: PLC0415 - matplotlib takes its time

    entry = FIGURES[figure] if isinstance(figure, str) else figure
    with style():
        drawn = entry.function()(*inputs)
        picture, plotted = drawn if isinstance(drawn, tuple) else (drawn, None)
        if plotted is not None:
            write_table(png.with_suffix(".csv"), plotted)
        save_figure(picture, png)
    return png


def make_figure(
    name: str,
    tables_dir: Path,
    out_png: Path,
    site_description: str = "",
    paper: Paper | None = None,
) -> None:
    """Draw a figure of an experiment from its tables.

    Args:
        name: of the figure.
        tables_dir: the tables' folder.
        out_png: the picture.
        site_description: of the site file.
        paper: the published figure that the experiment is of; its values stand beside ours.

    Raises:
        ConfigError: there is no such figure.
    """
    names = names_of("experiment")
    if name not in names:
        raise ConfigError(f"unknown figure {name!r}; known: {', '.join(names)}")
    context = Context(site_description, paper=paper)
    draw_figure(name, out_png, read_tables(tables_dir), context)


def make_prediction_figures(
    names: Iterable[str],
    predictions_json: Path,
    tables_dir: Path,
    out_dir: Path,
    *,
    site_description: str = "",
    results: Path = RESULTS,
    paper: Paper | None = None,
) -> list[Path]:
    """Draw the figures of predictions that ``prediction_figures_for`` names.

    Raises:
        ConfigError: there is no such figure, or a file is missing or wrong.
    """
    predicted = read_predicted(predictions_json, tables_dir, results)
    strategies = list(dict.fromkeys(map(str, predicted.predictions["strategy"])))
    made = []
    for name in names:
        figure = prediction_figure(name, strategies)
        inputs = (predicted, Context(site_description, paper=paper))
        of_strategy = (figure.strategy,) if figure.strategy else ()
        made.append(draw_figure(figure.entry, out_dir / f"{name}.png", *inputs, *of_strategy))
    return made


def make_links_figures(links: Links, folder: Path) -> list[Path]:
    """Draw links.png (heat maps of pairs), sweeps.png and others of links into ``folder``."""
    return [draw_figure(name, folder / f"{name}.png", links) for name in names_of("links")]


NOT_PREDICTED = "no prediction"
SPANS_FILE = "partitions.csv"


@dataclass(frozen=True)
class Predicted:
    """Inputs of every figure of predictions.

    Args:
        predictions: a row for each predictor and configuration (``predictions.json``), with the
            further columns of :func:`with_conditions`.
        summary: ``summary.csv``.
        spans: all rows of ``partitions.csv`` of the cells that have one, with ``configuration``.
    """

    predictions: pd.DataFrame
    summary: pd.DataFrame
    spans: pd.DataFrame


def read_predicted(predictions_json: Path, tables_dir: Path, results: Path = RESULTS) -> Predicted:
    """Read the files of one experiment.

    Raises:
        InvalidPredictions: the predictions are missing or wrong.
    """
    summary = read_tables(tables_dir).summary
    frame = with_conditions(read_predictions(predictions_json), summary)
    cells = frame.drop_duplicates("cell_id")
    site = str(summary["site"].iloc[0])
    return Predicted(frame, summary, _spans(cells["cell_id"], site, results))


def with_conditions(predictions: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Add ``configuration``, ``geometry``, ``workers``, ``variant``, ``mark`` and the flags."""
    frame = predictions.reset_index(drop=True)
    numbers = [c for c in frame.columns if c.endswith(("_s", "_bytes", "_error", "_spread"))]
    frame = frame.astype(dict.fromkeys(numbers, float))
    cells = frame.drop_duplicates("cell_id").copy()
    cells["configuration"] = [str(cell_id).removesuffix("/rep0") for cell_id in cells["cell_id"]]
    cells["geometry"] = [f"{row.nodes}x{row.devices_per_node}" for row in rows_of(cells)]
    cells["workers"] = [workers_of(Cell.from_id(str(cell_id))) for cell_id in cells["cell_id"]]
    cells = cells.join(
        summary.set_index("configuration")[["stale", "noisy", "unsteady", "ran_as"]],
        on="configuration",
    )
    cells["ran_as"] = cells["ran_as"].fillna("")
    cells["variant"] = variant_labels(cells)
    for name in ("stale", "noisy", "unsteady"):
        cells[name] = cells[name].map(is_set).astype(bool)
    added = ["configuration", "geometry", "workers", "variant", "stale", "noisy", "unsteady"]
    frame = frame.merge(cells[["cell_id", *added]], on="cell_id", how="left")
    frame["mark"] = [
        status_mark(row.status) or (NOT_PREDICTED if pd.isna(row.signed_error) else "")
        for row in rows_of(frame)
    ]
    return frame


def own_predictors(frame: pd.DataFrame, strategy: str) -> list[str]:
    """``ddlbench``, then the predictors made for this strategy, in the registry's order.

    Others that model all strategies are left out, and so is a predictor without any prediction,
    unless none has one.
    """
    rows = frame[frame["strategy"] == strategy]
    names = [name for name in dict.fromkeys(map(str, rows["predictor"])) if _is_own(name)]
    names.sort(key=lambda name: name != DEFAULT_PREDICTOR)
    predicting = set(rows.loc[rows["predicted_step_s"].notna(), "predictor"])
    return [name for name in names if name in predicting] or names


def condition_label(strategy: str, workers: Any, geometry: str, variant: str) -> str:
    """The heading of a section: workers, geometry and variant."""
    if strategy == BASE and not variant:
        return ""
    return ", ".join(filter(None, [f"{workers_label(int(workers))} ({geometry})", variant]))


def condition_sections(rows: pd.DataFrame, strategy: str) -> list[tuple[str, pd.DataFrame]]:
    """Headings and rows of the sections of one strategy: by dataset, workers, geometry, variant."""
    sections = []
    for dataset in in_dataset_order(rows["dataset"]):
        of_dataset = rows[rows["dataset"] == dataset]
        groups = of_dataset.groupby(["workers", "geometry", "variant"], sort=False)
        for (workers, geometry, variant), part in groups:
            condition = condition_label(strategy, workers, str(geometry), str(variant))
            sections.append((", ".join(filter(None, [dataset_label(dataset), condition])), part))
    return sections


def shown_cells(predicted: Predicted, frame: pd.DataFrame, marked: bool = False) -> pd.DataFrame:
    """Rows of the summary for the footer of a figure that shows the predictions ``frame``.

    The footer explains no sign of older weights, and without ``marked`` no sign at all.
    """
    chosen = predicted.summary["configuration"].isin(set(frame["configuration"]))
    shown = predicted.summary[chosen] if chosen.any() else predicted.summary
    return shown.assign(update_semantics="") if marked else without_signs(shown)


def title_of(strategy: str) -> str:
    """Name a strategy within a title."""
    return "sequential training" if strategy == BASE else strategy_label(strategy)


def _is_own(name: str) -> bool:
    try:
        return name == DEFAULT_PREDICTOR or predictor_of(name).strategies is not None
    except ConfigError:  # of another package that is not here
        return True


def _spans(cell_ids: Iterable[str], site: str, results: Path) -> pd.DataFrame:
    parts = []
    for cell_id in cell_ids:
        path = results / cell_dir(site, cell_id).relative_to(RESULTS) / SPANS_FILE
        if path.is_file():
            spans = pd.read_csv(path)
            parts.append(spans.assign(configuration=cell_id.removesuffix("/rep0")))
    columns = ["configuration", "partition", "kind", "micro_batch", "start_s", "end_s"]
    return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)
