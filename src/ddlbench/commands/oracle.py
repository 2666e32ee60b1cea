"""``ddlbench oracle``: what ParaDL's model says of ways to cut a network, and how right it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ddlbench.commands import oracle_display as display
from ddlbench.commands.oracle_figures import anomalies_command, explain_command, figure_command
from ddlbench.commands.oracle_options import JSON, with_platform
from ddlbench.experiment.errors import ConfigError
from ddlbench.predict.paradl import advise
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.predict.paradl.oracle import VARIANTS
from ddlbench.predict.paradl.platform import Platform, write_platform
from ddlbench.predict.paradl.workload import Workload, load_workload

__all__ = ["oracle"]


@click.group()
def oracle() -> None:
    """Project, choose and check ways to cut a network with ParaDL's model."""


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


@oracle.command("score")
@click.argument("measured", type=click.Path(path_type=Path))
@with_platform
@click.option(
    "--predictor",
    default="corrected",
    show_default=True,
    help="as-published, corrected, or a baseline: computation-only, carry-forward, "
    "paradl-projected.",
)
@JSON
def score_command(measured: Path, platform: Platform, predictor: str, as_json: bool) -> None:
    """Score projections against the measured iterations of MEASURED, a CSV table."""
    from ddlbench.predict.paradl.measured import read_measured  # noqa: PLC0415 - pandas is slow
    from ddlbench.predict.paradl.score import score  # noqa: PLC0415

    found = score(read_measured(measured), platform, predictor)
    if as_json:
        click.echo(json.dumps(found))
    else:
        display.show_score(Console(), found)


@oracle.command("calibrate")
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
    from ddlbench.predict.paradl import calibrate as fitting  # noqa: PLC0415 - scipy is slow
    from ddlbench.predict.paradl.measured import reliable_rows  # noqa: PLC0415
    from ddlbench.predict.paradl.score import mean_accuracy, projected  # noqa: PLC0415

    rows = reliable_rows(measured, campaign)
    found = fitting.calibrate(rows, platform)
    fitted = platform.with_constants(found.constants)
    value: dict[str, Any] = {
        "rows": found.rows,
        "constants": display.constants(platform, found),
        "mean_accuracy": mean_accuracy(rows, projected(rows, fitted, fitting.VARIANT)),
    }
    if hold_out:
        tried, told = fitting.hold_out(rows, platform, hold_out)
        value["hold_out"] = {"by": hold_out, **display.accuracy_by_strategy(tried, told)}
    if output is not None:
        write_platform(output, fitted)
        value["written"] = str(output)
    if as_json:
        click.echo(json.dumps(value))
    else:
        display.show_calibration(Console(), value)


@oracle.command("best")
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
        display.show_best(Console(), found)


@oracle.command("limits")
@_of_workload
@click.option(
    "--batch-size",
    type=float,
    required=True,
    help="Samples of a device (data), of a node (hybrids), of all devices (the others).",
)
@click.option("--strategy", type=click.Choice(STRATEGIES), multiple=True, help="All if left out.")
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
        display.show_limits(Console(), found)


@oracle.command("target")
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
        told = {name: display.candidate(one) if one else None for name, one in found}
        click.echo(json.dumps({"epoch_s": epoch_s, "strategies": told}))
    else:
        display.show_target(Console(), found, epoch_s)


def _above_zero(batch_size: float) -> None:
    if batch_size <= 0:
        raise ConfigError(f"--batch-size {batch_size:g}: write a number above 0")


for _command in (figure_command, anomalies_command, explain_command):
    oracle.add_command(_command)
