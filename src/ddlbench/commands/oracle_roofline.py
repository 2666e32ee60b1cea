"""``ddlbench oracle roofline``: how right block times by data sheets are, and fit them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ddlbench.common.screen import examples, paragraph, table
from ddlbench.common.statistics import MS
from ddlbench.predict.platforms import read_table
from ddlbench.predict.roofline_score import (
    RUN_COLUMNS,
    RUNS,
    calibrated,
    eager_runs,
    node_runs,
    profiled_networks,
    scored,
    write,
)


@click.command(
    "roofline",
    short_help="Score block times by data sheets.",
    epilog=examples(
        "ddlbench oracle roofline",
        "ddlbench oracle roofline runs.csv --json",
    ),
)
@click.argument("runs", type=click.Path(path_type=Path), default=RUNS)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Fit on all rows and write the constants."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def roofline_command(runs: Path, output: Path | None, as_json: bool) -> None:
    """Score block times by data sheets on networks and devices that are held out.

    RUNS is a table of MLPerf's runs of ResNet-50, of which those on one node count; the project's
    if left out.
    """
    rows = node_runs(read_table(runs, RUN_COLUMNS), str(runs))
    values = scored(profiled_networks(), rows, eager_runs())
    lines = roofline_lines(values)
    if output is not None:
        write(calibrated(rows, runs.name), output)
        lines.append(f"written: {output}")
    click.echo(json.dumps(values) if as_json else "\n".join(lines))


def roofline_lines(values: dict[str, Any]) -> list[str]:
    """Errors by network, by device, and by step of this project."""
    lines = paragraph(
        "PipeDream's profiles (single precision, one V100), each network held out: mean error "
        f"{values['networks_mean_absolute_error']:.1%} of a whole pass"
    )
    lines += table(
        "network | > samples | > measured | > predicted | > error | > of blocks",
        [
            (
                row["network"],
                str(row["samples"]),
                MS.text(row["measured_s"], ".0f"),
                MS.text(row["predicted_s"], ".0f"),
                f"{row['ratio'] - 1:+.0%}",
                f"{row['blocks_error']:.0%}",
            )
            for row in values["networks"]
        ],
    )
    lines += paragraph(
        f"MLPerf's {values['rows']} runs of ResNet-50 on one node (half precision), each "
        "generation of devices held out: mean error "
        f"{values['devices_mean_absolute_error']:.1%} of a device's median"
    )
    lines += table(
        "device | > runs | > error of the median | > mean error",
        [
            (
                row["device"],
                str(row["rows"]),
                f"{row['ratio'] - 1:+.1%}",
                f"{row['mean_absolute_error']:.1%}",
            )
            for row in values["devices"]
        ],
    )
    lines += paragraph(
        "This project's steps on an H100 (docs/validation/gpu), all H100s held out: mean error "
        f"{values['eager_mean_absolute_error']:.1%}; beside it with the device known and the "
        "network held out"
    )
    lines += table(
        "network | precision | > samples | > measured | > predicted | > error | > device known",
        [
            (
                row["network"],
                row["precision"],
                str(row["samples"]),
                MS.text(row["measured_s"], ".1f"),
                MS.text(row["predicted_s"], ".1f"),
                f"{row['ratio'] - 1:+.0%}",
                f"{row['ratio_device_known'] - 1:+.0%}",
            )
            for row in values["eager"]
        ],
    )
    for row in values["cpu_ratios"]:
        lines += paragraph(
            f"Shares of {row['network']}'s blocks on the GPU: off by {row['shares_error']:.0%} in "
            f"all by a CPU core's profile, {row['roofline_shares_error']:.0%} by the roofline."
        )
    return lines
