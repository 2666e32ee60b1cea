"""``ddlbench calibrate``: constants of predictions, learnt from cells or tables of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.options import JSON, matrix_at, written
from ddlbench.common.document import records
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import duration_text
from ddlbench.common.screen import WholeNumber, examples, named_lines, paragraph, show, table
from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.paths import CONFIG, result_file
from ddlbench.predict import calibration, collective_points, horovod_scaling
from ddlbench.predict.collective_times import COLLECTIVES, Library
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.hardware import Accelerators, DeviceSheet, Fabric, Platform, Software
from ddlbench.predict.paradl import measured as iterations
from ddlbench.predict.prediction import DEFAULT_PREDICTOR
from ddlbench.predict.run_tables import CNN, ScoreQuestion, kind_of, read_table, refuse_options
from ddlbench.predict.transformer import runs as gpt_runs
from ddlbench.predict.transformer.decoder_fit import FEW_ROWS, proposals
from ddlbench.predict.transformer.run_scores import calibrated, fitted_errors
from ddlbench.predict.transformer.training_runs import gpts, read_runs, without_repeats

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.calibration import Calibration, CalibrationCell
    from ddlbench.predict.constants import Fit, WithConstants

_PATH = click.Path(path_type=Path)
_OF_CELLS = ("choose", "configfile", "site_name", "scale")
_OF_CNNS = ("campaign", "hold_out")
_OF_RUNS = ("software", "hardware", "fabric", "platform", *_OF_CNNS, "output")


@click.command(
    epilog=examples(
        "ddlbench calibrate --choose 6",
        "ddlbench calibrate --configfile mine.yaml",
        "ddlbench calibrate runs.csv --hardware h100-sxm --output mine.yaml",
        "ddlbench calibrate iterations.csv --platform abci --hold-out network",
    )
)
@click.argument("runs", type=_PATH, nargs=-1)
@click.option("--configfile", type=_PATH, default=CONFIG, show_default=True, help="The experiment.")
@click.option("--site", "site_name", help="Another site than the file names.")
@click.option("--scale", help="Of a published figure: full or laptop.")
@click.option("--choose", type=WholeNumber(1), help="Only name the N cells that tell most.")
@click.option("--software", help="Of RUNS: its name in config/software, or a file.")
@click.option("--hardware", help="Of RUNS: a name in config/hardware, or a file.")
@click.option("--fabric", help="Of RUNS: a name in config/fabrics, or a file.")
@click.option(
    "--platform",
    help="Of RUNS of CNNs (config/platforms) or GPTs (config/transformers): a name or a file.",
)
@click.option(
    "--campaign",
    default=iterations.MAIN_CAMPAIGN,
    show_default=True,
    help="Of RUNS of CNNs: its rows are read.",
)
@click.option(
    "--hold-out",
    type=click.Choice(iterations.HOLD_OUTS),
    help="Of RUNS of CNNs: also fit without each network in turn, or up to 16 devices only, and "
    "score the rest.",
)
@click.option("--output", type=_PATH, help="Of RUNS: write the file with the constants here.")
@click.option("--geometry", help="Propose which runs of a decoder to measure on NODESxDEVICES.")
@JSON
@click.pass_context
def calibrate(
    context: click.Context,
    *,
    runs: tuple[Path, ...],
    geometry: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Learn constants of predictions from measured cells or runs.

    Without RUNS from the experiment's cells: writes results/SITE/calibration.json, which predict
    and recommend then use.

    RUNS are CSV tables of one kind, which their columns tell (docs/oracle.md), and fit a platform,
    a software or a library of collectives. Up to ten runs of decoders fit three constants of a
    device: share of the peak, host's time a layer, latency of a node.
    """
    other, what = (_OF_CELLS, "cells") if runs or geometry else (_OF_RUNS, "RUNS")
    if wrong := written(context, other):
        raise ConfigError(f"calibrate: {', '.join(wrong)}: only for {what}; leave it out")
    of_cnns = written(context, _OF_CNNS)
    if of_cnns and any(kind_of(path).name != CNN for path in runs):
        raise ConfigError(
            f"calibrate: {', '.join(of_cnns)}: only for a table of iterations of CNNs; leave it out"
        )
    if geometry:
        _propose(geometry, as_json=as_json)
    if runs:
        _of_runs(runs, as_json=as_json, **{name: options[name] for name in _OF_RUNS})
    elif not geometry:
        _of_cells(as_json=as_json, **{name: options[name] for name in _OF_CELLS})


def _of_cells(
    *,
    configfile: Path,
    site_name: str | None,
    scale: str | None,
    choose: int | None,
    as_json: bool,
) -> None:
    experiment, site, rows = matrix_at(configfile, site_name, scale)
    frame = predictions(rows, site, names=(DEFAULT_PREDICTOR,))
    cells = calibration.cells_of(frame, DEFAULT_PREDICTOR)
    if choose is not None:
        chosen = calibration.choose(cells, choose)
        paths = [str(result_file(site.name, cell.cell_id)) for cell in chosen]
        show(paths, _chosen_lines(chosen), as_json=as_json)
        return
    measured = [cell for cell in cells if cell.measured_s is not None]
    learnt = calibration.calibrate(site.name, measured)
    if not learnt.strategies:
        raise ConfigError(
            f"{experiment.where}: no strategy has three measured configurations at site "
            f"{site.name}, which calibration needs; measure more (--choose 6 names those that "
            "tell most), or add networks or geometries to the matrix"
        )
    path = calibration.write_calibration(learnt)
    scores = calibration.scores(measured)
    values = {**learnt.to_dict(), "scores": records(scores)}
    show(values, _score_lines(learnt, scores, path), as_json=as_json)


@dataclass(frozen=True)
class _Calibrated:
    """A model that was fitted.

    Args:
        model: with fitted constants.
        fits: of them.
        values, lines: what else is known of it.
    """

    model: WithConstants
    fits: Sequence[Fit]
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()


def _of_runs(
    runs: Sequence[Path],
    *,
    platform: str | None,
    campaign: str,
    hold_out: str | None,
    output: Path | None,
    as_json: bool,
    **names: str | None,
) -> None:
    kinds = {kind_of(path).name for path in runs}
    if len(kinds) > 1:
        raise ConfigError(f"tables of different kinds, {', '.join(sorted(kinds))}; give one kind")
    (kind,) = kinds
    where = ", ".join(path.name for path in runs)
    if kind == CNN or platform is not None:
        refuse_options(names, "runs that a platform describes")
    if kind == CNN:
        fitted = _cnn_platform(runs, platform, campaign, hold_out)
    elif platform is not None:
        fitted = _gpt_platform(runs, platform, where)
    elif kind in _FITS:
        fitted = _FITS[kind](_question(names), runs, where)
    else:
        fitted = _decoder_software(_question(names), runs, where)
    values = {
        "rows": sum(fit.rows for fit in fitted.fits),
        "constants": {
            name: {**fitted.model.constants[name].to_dict(), **fit.of(name)}
            for fit in fitted.fits
            for name in fit.constants
        },
        **fitted.values,
    }
    lines = [*_constant_lines(fitted), *fitted.lines]
    if output:
        fitted.model.write(output)
        values["written"] = str(output)
        option = _OPTIONS.get(fitted.model.folder)
        lines.append(f"written: {output}{f'; use it: {option} {output}' if option else ''}")
    show(values, lines, as_json=as_json)


def _question(names: Mapping[str, str | None]) -> ScoreQuestion:
    return ScoreQuestion(
        software=names["software"], device=names["hardware"], fabric=names["fabric"]
    )


def _cnn_platform(
    runs: Sequence[Path], platform: str | None, campaign: str, hold_out: str | None
) -> _Calibrated:
    if len(runs) > 1:
        raise ConfigError("several tables of iterations; give one, with column campaign")
    given = Platform.load(platform or iterations.PLATFORM)
    rows = iterations.reliable_rows(runs[0], campaign)
    fit = iterations.calibrate(rows, given)
    fitted = given.fitted_to(fit)
    projections = iterations.projected(rows, fitted, iterations.FITTED)
    values: dict[str, Any] = {"mean_accuracy": iterations.mean_accuracy(rows, projections)}
    lines = [f"mean accuracy on the same rows: {values['mean_accuracy']:.1%}"]
    if hold_out:
        held = _held_out(*iterations.hold_out(rows, given, hold_out))
        values["hold_out"] = held
        parts = ", ".join(f"{name} {share:.1%}" for name, share in held["strategies"].items())
        lines += paragraph(
            f"held out by {hold_out}, {held['cells']} cells: {held['mean_accuracy']:.1%} ({parts})",
            hanging="  ",
        )
    return _Calibrated(fitted, [fit], values, lines)


def _held_out(rows: pd.DataFrame, projections: pd.DataFrame) -> dict[str, Any]:
    """Accuracy of rows that were held out."""
    groups = rows.groupby("strategy")
    return {
        "mean_accuracy": iterations.mean_accuracy(rows, projections),
        "cells": len(rows),
        "strategies": {
            str(name): iterations.mean_accuracy(group, projections) for name, group in groups
        },
    }


def _gpt_platform(runs: Sequence[Path], platform: str, where: str) -> _Calibrated:
    """Its interval comes from the same rows, each hidden size held out in turn."""
    given, steps = Accelerators.load(platform), without_repeats(gpts(runs))
    fit = gpt_runs.calibrate(steps, given)
    fitted = gpt_runs.calibrated(given, fit, steps, where)
    errors = abs(gpt_runs.predicted_s(steps, fitted) / steps.step_s - 1)
    error = float(errors[steps.timed].mean())
    values = {"mean_absolute_error": error, "interval": fitted.interval.to_dict()}
    return _Calibrated(fitted, [fit], values, [f"mean error on the same runs: {error:.1%}"])


def _decoder_software(question: ScoreQuestion, runs: Sequence[Path], where: str) -> _Calibrated:
    steps = read_runs(runs, question)
    given = Software.load(question.software or steps.origin.software)
    fitted, fits = calibrated(steps, given, where)
    values: dict[str, Any] = {
        "intervals": {name: each.to_dict() for name, each in fitted.intervals.items()}
    }
    lines = [f"up to {FEW_ROWS} rows fit three constants"] if fits[0].rows <= FEW_ROWS else []
    errors = fitted_errors(steps, fitted)
    if len(errors):
        values["mean_absolute_error"] = float(errors.mean())
        lines.append(f"mean error on the same runs: {errors.mean():.1%}")
    return _Calibrated(fitted, fits, values, lines)


# Options that take a written file, by the folder of such files.
_OPTIONS = {
    "software": "--software",
    "collectives": "--collectives",
    "platforms": "--platform",
    "transformers": "--platform",
}


def _scaling(question: ScoreQuestion, runs: Sequence[Path], where: str) -> _Calibrated:
    given = Software.load(question.software or horovod_scaling.SOFTWARE)
    fabric = Fabric.load(question.fabric) if question.fabric else None
    tables = [horovod_scaling.scalings(read_table(path, ()), str(path), fabric) for path in runs]
    known = horovod_scaling.together(tables)
    known.check_any()
    fit = horovod_scaling.fit_scaling(known, given)
    fitted = replace(given.fitted_to(fit), fitted_on=f"{fit.rows} steps of {where}")
    return _Calibrated(fitted, [fit])


def _collectives(question: ScoreQuestion, runs: Sequence[Path], where: str) -> _Calibrated:
    given = Library.load(question.software or COLLECTIVES)
    fabric = Fabric.load(question.fabric) if question.fabric else None
    device = DeviceSheet.named(question.device) if question.device else None
    if len(runs) > 1:
        raise ConfigError("several tables of collectives; give one")
    points = collective_points.read_points(read_table(runs[0], ()), where, fabric, device)
    name = Path(question.fabric).stem if question.fabric else ""
    fitted, fit = collective_points.calibrated(points, given, where, name)
    intervals = {name: each.to_dict() for name, each in fitted.intervals.items()}
    return _Calibrated(fitted, [fit], {"intervals": intervals})


_FITS = {"mlperf": _scaling, "nccl": _collectives}


def _propose(geometry: str, *, as_json: bool) -> None:
    nodes, devices_per_node = parse_geometry(geometry, where="--geometry")
    proposed = proposals(devices_per_node, nodes)
    lines = table(
        "tells | > tensor | > data | > pipeline | > micro-batch",
        [(entry.bound_by, *map(str, entry.layout.values())) for entry in proposed],
    )
    values = {"proposed": [{"tells": entry.bound_by, **entry.layout} for entry in proposed]}
    show(values, lines, as_json=as_json)


_LOOSE = 0.5
_FEW_MEANINGS = 5


def _constant_lines(fitted: _Calibrated) -> list[str]:
    """Every fitted constant with its interval."""
    parts = [f"{fit.rows:,} rows fit {len(fit.constants)} constants" for fit in fitted.fits]
    rows, meanings, loose = [], [], []
    unknown = [name for fit in fitted.fits for name in fit.unknown]
    for fit in fitted.fits:
        for name, value in fit.constants.items():
            (low, high), constant = fit.intervals[name], fitted.model.constants[name]
            ends = "unknown" if name in fit.unknown else f"{low:.2g} to {high:.2g}"
            rows.append((name, f"{value:.3g}", ends, f"{constant.prior:.3g}", constant.unit))
            meanings.append((name, constant.meaning))
            if fit.relative_errors[name] > _LOOSE and name not in unknown:
                loose.append(name)
    lines = paragraph(f"{fitted.model.description}; {', '.join(parts)}")
    lines += table("constant | > fitted | > 90 % | > prior | unit /1", rows)
    if loose:
        lines += paragraph(
            f"Hardly known from these rows, over {_LOOSE:.0%} uncertain: {', '.join(loose)}.",
            hanging="  ",
        )
    if unknown:
        lines += paragraph(
            f"Unknown, as no row depends on it, and left as before the fit: {', '.join(unknown)}.",
            hanging="  ",
        )
    return lines + (named_lines(meanings) if len(meanings) <= _FEW_MEANINGS else [])


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
