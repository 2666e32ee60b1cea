"""``ddlbench oracle figure``, ``anomalies``, ``explain``: the oracle in pictures, as a watch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from ddlbench.commands.oracle_options import JSON, PLATFORM_NAME, with_platform
from ddlbench.experiment.errors import ConfigError
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.predict.paradl.platform import Platform, load_platform

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["anomalies_command", "explain_command", "figure_command"]

CAMPAIGN = click.option(
    "--campaign", default="report", show_default=True, help="Rows of it are shown."
)
OUT = click.option(
    "--out", type=click.Path(path_type=Path), default=Path(), help="Folder; this one if left out."
)


@click.command("figure")
@click.argument("measured", type=click.Path(path_type=Path))
@with_platform
@CAMPAIGN
@OUT
def figure_command(measured: Path, platform: Platform, campaign: str, out: Path) -> None:
    """Draw MEASURED, a CSV table, beside both variants: Figure 1 of ParaDL.

    Writes oracle.png, .pdf and .csv. Of an experiment's own runs, `ddlbench accuracy --figures`
    draws it.
    """
    from ddlbench.report.drawing import draw_figure  # noqa: PLC0415 - matplotlib takes its time

    rows = _reliable(measured, campaign)
    where = f"{measured.name}, campaign {campaign}. {platform.values['description']}."
    made = draw_figure("oracle_published", out / "oracle.png", rows, platform, where)
    click.echo(f"{made}, .pdf and .csv are written")


@click.command("anomalies")
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
    from ddlbench.predict.anomalies import anomalies, from_predictions  # noqa: PLC0415

    if runs.suffix == ".json":
        from ddlbench.predict.accuracy import read_predictions  # noqa: PLC0415

        told = read_predictions(runs)
        if predictor not in set(told["predictor"]):
            known = ", ".join(dict.fromkeys(map(str, told["predictor"])))
            raise ConfigError(f"{runs}: nothing by predictor {predictor!r}; it has: {known}")
        table = from_predictions(told, predictor)
    else:
        table = _projected_runs(_reliable(runs, campaign), load_platform(platform_name))
    judged = anomalies(table, limit)
    if as_json:
        records = judged.astype(object).where(judged.notna(), None).to_dict("records")
        click.echo(json.dumps({"limit": limit, "runs": records}))
    else:
        _show(judged, limit)
    if not (judged["why_unknown"] == "").any():  # silence must not read as "all is well"
        raise ConfigError(f"{runs}: no run could be judged: none was both measured and projected")
    if (judged["departs"] != "").any():
        raise SystemExit(1)


@click.command("explain")
@click.argument("strategies", nargs=-1, type=click.Choice(STRATEGIES))
@OUT
def explain_command(strategies: tuple[str, ...], out: Path) -> None:
    """Draw who holds what of a layer, and what is sent when: one figure a strategy, or all.

    Writes split-STRATEGY.png and .pdf. For schedules of pipelines see `ddlbench timeline
    --schedule`.
    """
    from ddlbench.report.drawing import draw_figure  # noqa: PLC0415 - matplotlib takes its time

    for name in strategies or STRATEGIES:
        made = draw_figure("split", out / f"split-{name.replace('+', '-')}.png", name)
        click.echo(f"{made} and .pdf are written")


def _reliable(path: Path, campaign: str) -> pd.DataFrame:
    from ddlbench.predict.paradl.measured import reliable_rows  # noqa: PLC0415 - pandas is slow

    return reliable_rows(path, campaign)


def _projected_runs(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """Runs as ``predict.anomalies`` reads them, of a table of measured iterations."""
    import pandas as pd  # noqa: PLC0415 - slow to import

    from ddlbench.predict.paradl.score import projected  # noqa: PLC0415

    told = projected(rows, platform, "corrected")
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
            "projected_s": told["iteration"],
            "measured_compute_s": rows["compute_seconds"],
            "projected_compute_s": told["compute"],
            "measured_communication_s": rows["comm_seconds"],
            "projected_communication_s": told["communication"],
        }
    )


def _show(judged: pd.DataFrame, limit: float) -> None:
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    table = Table(title=f"Runs over {limit:.0%} off their projection", title_justify="left")
    for heading in ("run", "measured", "projected", "ratio", "departs", "mostly in"):
        table.add_column(heading, overflow="fold")
    for row in judged[judged["departs"] != ""].to_dict("records"):
        table.add_row(
            row["run"], f"{row['measured_s']:.4g} s", f"{row['projected_s']:.4g} s",
            f"{row['ratio']:.2f}", row["departs"], _part(row),
        )  # fmt: skip
    console.print(table)
    unknown = judged[judged["why_unknown"] != ""]
    for row in unknown.to_dict("records"):
        console.print(f"not judged: {row['run']}: {row['why_unknown']}", soft_wrap=True)
    many = int((judged["departs"] != "").sum())
    console.print(f"{many} of {len(judged) - len(unknown)} runs depart")


def _part(row: dict[Any, Any]) -> str:
    if not row["part"]:
        return "(parts not told apart)"
    measured, projected = row["part_measured_s"], row["part_projected_s"]
    return f"{row['part']}: {measured:.4g} s for {projected:.4g} s"
