"""``ddlbench calibrate``: what measured cells teach the predictor of a site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddlbench.commands.options import with_matrix
from ddlbench.commands.predict import records
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import duration_text, examples, paragraph, show, table
from ddlbench.experiment.paths import result_file
from ddlbench.predict import calibration
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow
    from ddlbench.predict.calibration import Calibration, CalibrationCell


@click.command(
    epilog=examples("ddlbench calibrate --choose 6", "ddlbench calibrate --configfile mine.yaml")
)
@with_matrix
@click.option(
    "--choose", type=click.IntRange(1), default=None, help="Only name the N cells that tell most."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def calibrate(
    *,
    experiment: Experiment,
    site: Site,
    rows: list[MatrixRow],
    choose: int | None,
    as_json: bool,
) -> None:
    """Learn a site's constants from measured cells.

    Writes results/SITE/calibration.json, which predict and recommend then use.
    """
    frame = predictions(rows, site, names=(DEFAULT_PREDICTOR,))
    cells = calibration.cells_of(frame, DEFAULT_PREDICTOR)
    if choose is not None:
        chosen = calibration.choose(cells, choose)
        paths = [str(result_file(site.name, cell.cell_id)) for cell in chosen]
        show(paths, _chosen_lines(chosen), as_json=as_json)
        return
    measured = [cell for cell in cells if cell.measured_s is not None]
    calibrated = calibration.calibrate(site.name, measured)
    if not calibrated.strategies:
        raise ConfigError(
            f"{experiment.where}: no strategy has three measured cells at site {site.name}, which "
            "calibration needs; `ddlbench calibrate --choose 6` names those that tell most"
        )
    path = calibration.write_calibration(calibrated)
    scores = calibration.scores(measured)
    values = {**calibrated.to_dict(), "scores": records(scores)}
    show(values, _score_lines(calibrated, scores, path), as_json=as_json)


def _chosen_lines(cells: Sequence[CalibrationCell]) -> list[str]:
    headings = " | strategy | network | devices | > predicted | "
    rows = [
        (
            str(place),
            cell.strategy,
            cell.network,
            cell.geometry,
            duration_text(cell.predicted_s),
            "measured" if cell.measured_s is not None else "",
        )
        for place, cell in enumerate(cells, start=1)
    ]
    return [
        *table(headings, rows),
        *paragraph("--json prints their result files, which snakemake takes as targets."),
    ]


def _score_lines(calibrated: Calibration, scores: pd.DataFrame, path: Path) -> list[str]:
    headings = (
        "strategy | > n | > before | > networks | > geometries | > covered | > work"
        " | > messages | > step"
    )
    rows = []
    for score in scores.to_dict("records"):
        constants = calibrated.of(str(score["strategy"]))
        learnt = ("too few", "", "")
        if constants is not None and not constants.teaches:
            learnt = ("no gain", "", "")
        elif constants is not None:
            sign = "-" if constants.step_s < 0 else "+"
            learnt = (
                f"{constants.work:+.0%}",
                f"{constants.communication:+.0%}",
                sign + duration_text(abs(constants.step_s)),
            )
        shares = (
            score[name]
            for name in ("as_predicted", "networks_held_out", "geometries_held_out", "covered")
        )
        texts = ("" if math.isnan(share) else f"{share:.1%}" for share in shares)
        rows.append((str(score["strategy"]), str(score["n"]), *texts, *learnt))
    return [
        *table(headings, rows),
        *paragraph(
            "Errors: mean of |predicted / measured - 1|, before calibration, and with constants "
            "that learnt from other networks, or other geometries, only. covered: share of cells "
            "within the 90 % interval that other networks gave. Then the constants: further share "
            "of computation, of messages, and seconds a step. no gain: constants help no held-out "
            "cell of the family, so none are used."
        ),
        *paragraph(f"Written: {path}; predict and recommend use it."),
    ]
