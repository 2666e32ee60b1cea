"""``ddlbench oracle``: what ParaDL's model says of ways to cut a network, and how right it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import pandas as pd

from ddlbench.commands import oracle_display as display
from ddlbench.commands.oracle_transformer import ByWorkload, rows_command
from ddlbench.common.errors import ConfigError
from ddlbench.predict.accuracy import anomalies, from_predictions, read_predictions
from ddlbench.predict.paradl import advise
from ddlbench.predict.paradl import calibrate as fitting
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.predict.paradl.measured import (
    mean_accuracy,
    projected,
    read_measured,
    reliable_rows,
    score,
)
from ddlbench.predict.paradl.oracle import VARIANTS
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.workload import Workload, load_workload
from ddlbench.report.drawing import draw_figure

PLATFORM = "abci"
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
PLATFORM_NAME = click.option(
    "--platform",
    "platform_name",
    default=PLATFORM,
    show_default=True,
    help="Its name in config/platforms, or a file.",
)


def with_platform(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--platform`` and hand the platform to the command."""

    @PLATFORM_NAME
    @wraps(command)
    def wrapped(platform_name: str, **options: Any) -> None:
        command(platform=Platform.load(platform_name), **options)

    return wrapped


@click.group(cls=ByWorkload)
def oracle() -> None:
    """Project and choose ways to cut a network.

    CNNs with ParaDL's model; GPTs over tensor x data x pipeline with --workload transformer, which
    best, limits, target, score, calibrate, rows and figure take (add --help for its options).
    """


oracle.add_command(rows_command)


def _of_workload(command: Callable[..., None]) -> Callable[..., None]:
    """Add NETWORK, the variant, ``--platform`` and ``--json``."""

    @click.argument("network")
    @click.option(
        "--variant", type=click.Choice(list(VARIANTS)), default="corrected", show_default=True
    )
    @JSON
    @with_platform
    @wraps(command)
    def wrapped(network: str, **options: Any) -> None:
        command(workload=load_workload(network), **options)

    return wrapped


@oracle.command("score", short_help="Score projections against measured iterations.")
@click.argument("measured", type=click.Path(path_type=Path))
@with_platform
@click.option(
    "--predictor",
    default="corrected",
    show_default=True,
    help="authors-code, printed-table, corrected, or a baseline: computation-only, carry-forward, "
    "paradl-projected.",
)
@JSON
def score_command(measured: Path, platform: Platform, predictor: str, as_json: bool) -> None:
    """Score projections against the measured iterations of MEASURED, a CSV table."""
    found = score(read_measured(measured), platform, predictor)
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(display.score_lines(found, platform)))


@oracle.command("calibrate", short_help="Fit the platform's constants to measurements.")
@click.argument("measured", type=click.Path(path_type=Path))
@with_platform
@click.option("--campaign", default="report", show_default=True, help="Rows of it are fitted.")
@click.option(
    "--hold-out",
    type=click.Choice(["network", "size"]),
    help="Also fit without each network in turn, or up to 16 devices only, and score the rest.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the platform file here.")
@JSON
def calibrate_command(
    *,
    measured: Path,
    platform: Platform,
    campaign: str,
    hold_out: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Fit the platform's few constants to MEASURED, and say each of them."""
    rows = reliable_rows(measured, campaign)
    found = fitting.calibrate(rows, platform)
    fitted = platform.with_constants(found.constants)
    value: dict[str, Any] = {
        "rows": found.rows,
        "constants": display.constants(platform, found),
        "mean_accuracy": mean_accuracy(rows, projected(rows, fitted, fitting.VARIANT)),
    }
    if hold_out:
        tried, held_out = fitting.hold_out(rows, platform, hold_out)
        value["hold_out"] = {"by": hold_out, **display.accuracy_by_strategy(tried, held_out)}
    if output is not None:
        fitted.write(output)
        value["written"] = str(output)
    if as_json:
        click.echo(json.dumps(value))
    else:
        click.echo("\n".join(display.calibration_lines(value, platform)))


@oracle.command("best", short_help="Rank the strategies on so many devices.")
@_of_workload
@click.option("--devices", type=int, required=True)
@click.option("--batch-size", type=float, required=True, help="Samples over all devices.")
def best_command(
    *,
    workload: Workload,
    platform: Platform,
    variant: str,
    devices: int,
    batch_size: float,
    as_json: bool,
) -> None:
    """Rank the strategies for NETWORK on so many devices at one global batch."""
    found = advise.best(workload, platform, devices, batch_size, variant)
    if as_json:
        ranking = [display.candidate(one) for one in found]
        chosen = next((one["strategy"] for one in ranking if one["runs"]), None)
        click.echo(json.dumps({"best": chosen, "ranking": ranking}))
    else:
        click.echo("\n".join(display.best_lines(found, _network(), platform, devices, batch_size)))


@oracle.command("limits", short_help="Say how far each strategy scales, and why no further.")
@_of_workload
@click.option(
    "--batch-size",
    type=float,
    required=True,
    help="Samples of a device (data), of a node (hybrids), of all devices (the others).",
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    metavar="NAME",
    multiple=True,
    help=f"Only this one of {', '.join(STRATEGIES)}; may be repeated.",
)
@click.option("--max-devices", type=int, help="Look no further; the platform's end if left out.")
def limits_command(
    *,
    workload: Workload,
    platform: Platform,
    variant: str,
    batch_size: float,
    strategy: tuple[str, ...],
    max_devices: int | None,
    as_json: bool,
) -> None:
    """Say how far each strategy scales, what bounds an iteration from where on, what ends it."""
    _above_zero(batch_size)
    found = [
        advise.reach(workload, platform, batch_size, name, variant=variant, most=max_devices)
        for name in strategy or STRATEGIES
    ]
    if as_json:
        click.echo(json.dumps([display.reach(one) for one in found]))
    else:
        click.echo("\n".join(display.limits_lines(found, _network(), platform)))


@oracle.command("target", short_help="Say which devices end an epoch in a given time.")
@_of_workload
@click.option(
    "--batch-size",
    type=float,
    required=True,
    help="Samples of a device (data), of a node (hybrids), of all devices (the others).",
)
@click.option("--epoch-s", type=float, required=True, help="Seconds that an epoch may take.")
@click.option("--max-devices", type=int, help="Look no further; the platform's end if left out.")
def target_command(
    *,
    workload: Workload,
    platform: Platform,
    variant: str,
    batch_size: float,
    epoch_s: float,
    max_devices: int | None,
    as_json: bool,
) -> None:
    """Say with how many devices each strategy ends an epoch of NETWORK in time."""
    _above_zero(batch_size)
    found = advise.target(
        workload, platform, batch_size, epoch_s, variant=variant, most=max_devices
    )
    if as_json:
        candidates = {name: display.candidate(one) if one else None for name, one in found}
        click.echo(json.dumps({"epoch_s": epoch_s, "strategies": candidates}))
    else:
        click.echo("\n".join(display.target_lines(found, _network(), platform, epoch_s)))


def _network() -> str:
    """NETWORK as the user wrote it."""
    return str(click.get_current_context().params["network"])


def _above_zero(batch_size: float) -> None:
    if batch_size <= 0:
        raise ConfigError(f"--batch-size {batch_size:g}: write a number above 0")


CAMPAIGN = click.option(
    "--campaign", default="report", show_default=True, help="Rows of it are shown."
)
OUT = click.option(
    "--out", type=click.Path(path_type=Path), default=Path(), help="Folder; this one if left out."
)


@oracle.command("figure", short_help="Draw measurements beside projections.")
@click.argument("measured", type=click.Path(path_type=Path))
@with_platform
@CAMPAIGN
@OUT
def figure_command(measured: Path, platform: Platform, campaign: str, out: Path) -> None:
    """Draw MEASURED, a CSV table, beside both variants: Figure 1 of ParaDL.

    Writes oracle.png, .pdf and .csv. Of an experiment's own runs, `ddlbench accuracy --figures`
    draws it.
    """
    rows = _reliable(measured, campaign)
    where = f"{measured.name}, campaign {campaign}. {platform.values['description']}."
    made = draw_figure("oracle_published", out / "oracle.png", rows, platform, where)
    click.echo(f"{made}, .pdf and .csv are written")


@oracle.command("anomalies", short_help="Flag runs that depart from their projection.")
@click.argument("runs", type=click.Path(path_type=Path))
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=0.25,
    show_default=True,
    help="Share by which a run may be longer than its projection, or the projection than the run.",
)
@click.option(
    "--predictor",
    default="paradl-corrected",
    show_default=True,
    help="Of predictions.json: any predictor.",
)
@PLATFORM_NAME
@CAMPAIGN
@JSON
def anomalies_command(
    *, runs: Path, limit: float, predictor: str, platform_name: str, campaign: str, as_json: bool
) -> None:
    """Flag measured RUNS that depart from their projection; ends with 1 if any does, else 0.

    Ends with 2 if there is no run that was both measured and projected.

    RUNS is an experiment's predictions.json (`ddlbench accuracy` writes it), or a CSV table as
    for `score`, which the corrected oracle projects on --platform.
    """
    if runs.suffix == ".json":
        predictions = read_predictions(runs)
        if predictor not in set(predictions["predictor"]):
            known = ", ".join(dict.fromkeys(map(str, predictions["predictor"])))
            raise ConfigError(f"{runs}: nothing by predictor {predictor!r}; it has: {known}")
        table = from_predictions(predictions, predictor)
        said = f"{predictor}, of this site's own profile and links"
    else:
        platform = Platform.load(platform_name)
        table = _projected_runs(_reliable(runs, campaign), platform)
        said = f"the corrected oracle for {platform.values['description']}"
    judged = anomalies(table, limit)
    if as_json:
        records = judged.astype(object).where(judged.notna(), None).to_dict("records")
        click.echo(json.dumps({"limit": limit, "runs": records}))
    else:
        click.echo("\n".join(display.departure_lines(judged, limit, said)))
    if not (judged["why_unknown"] == "").any():  # silence must not read as "all is well"
        raise ConfigError(f"{runs}: no run could be judged: none was both measured and projected")
    if (judged["departs"] != "").any():
        raise SystemExit(1)


@oracle.command("explain", short_help="Draw who holds what of a layer, and what is sent.")
@click.argument("strategies", nargs=-1, type=click.Choice(STRATEGIES), metavar="[STRATEGY]...")
@OUT
def explain_command(strategies: tuple[str, ...], out: Path) -> None:
    """Draw who holds what of a layer, and what is sent when: one figure a strategy, or all.

    STRATEGY is serial, data, spatial, filter, channel, data+filter, data+spatial or pipeline.
    Writes split-STRATEGY.png and .pdf. For schedules of pipelines see `ddlbench timeline
    --schedule`.
    """
    for name in strategies or STRATEGIES:
        made = draw_figure("split", out / f"split-{name.replace('+', '-')}.png", name)
        click.echo(f"{made} and .pdf are written")


def _reliable(path: Path, campaign: str) -> pd.DataFrame:
    return reliable_rows(path, campaign)


def _projected_runs(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """Runs as ``predict.accuracy`` reads them, of a table of measured iterations."""
    projections = projected(rows, platform, "corrected")
    interval = {
        end: pd.to_numeric(rows[column], errors="coerce")
        if column in rows.columns
        else float("nan")
        for end, column in (("low_s", "s_per_it_min"), ("high_s", "s_per_it_max"))
    }
    return pd.DataFrame(
        {
            "run": rows["cell"],
            "measured_s": rows["seconds_per_iteration"],
            **interval,
            "projected_s": projections["iteration"],
            "measured_compute_s": rows["compute_seconds"],
            "projected_compute_s": projections["compute"],
            "measured_communication_s": rows["comm_seconds"],
            "projected_communication_s": projections["communication"],
        }
    )
