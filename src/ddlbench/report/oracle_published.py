"""ParaDL's Figure 1 of a table of measured iterations, such as the published ones."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from ddlbench.predict.anomalies import LIMIT
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED, reliable_rows
from ddlbench.predict.paradl.oracle import VARIANTS
from ddlbench.predict.paradl.platform import Platform, load_platform
from ddlbench.predict.paradl.score import projected
from ddlbench.report.labels import network_label
from ddlbench.report.oracle_bars import COLUMNS, MEASURED, SOURCES, draw_bars
from ddlbench.report.tables import table_text

__all__ = ["bars_of", "draw", "published_table"]


def draw(rows: pd.DataFrame, platform: Platform, said: str) -> tuple[Figure, pd.DataFrame]:
    """A row a network, a column a strategy, a group a number of devices.

    Args:
        rows: of :func:`ddlbench.predict.paradl.measured.read_measured`, one campaign.
        platform: what the projections are of.
        said: where rows and platform come from, for the footer.
    """
    bars = bars_of(rows, platform)
    below = [f"{said} Means of the accuracies: ddlbench oracle score."]
    title = "ParaDL's oracle: projected and measured iteration"
    return draw_bars(title, bars, "Devices", below, LIMIT), bars


def bars_of(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """One row a bar: what was measured, and both variants."""
    keys = rows[["model", "strategy", "gpus"]].copy()
    batches = rows["batch_per_group"].fillna(rows["batch_global"]).fillna(rows["batch_per_gpu"])
    several = batches.groupby([keys["model"], keys["strategy"]]).transform("nunique") > 1
    place = pd.DataFrame(
        {
            "row": keys["model"].map(network_label),
            "strategy": keys["strategy"],
            "place": [
                f"{gpus:g}\nb={batch:g}" if more else f"{gpus:g}"
                for gpus, batch, more in zip(keys["gpus"], batches, several, strict=True)
            ],
            "order": keys["gpus"] * 1e6 + batches.fillna(0),
            "mark": "",
        }
    )
    measured_s = rows["seconds_per_iteration"]
    low_s, high_s = (_end(rows, column) for column in ("s_per_it_min", "s_per_it_max"))
    parts = [
        place.assign(
            source=MEASURED,
            compute_s=rows["compute_seconds"],
            communication_s=rows["comm_seconds"],
            step_s=measured_s,
            accuracy=math.nan,
            departs=False,
        )
    ]
    for variant in VARIANTS:
        told = projected(rows, platform, variant)
        parts.append(
            place.assign(
                source=variant,
                compute_s=told["compute"],
                communication_s=told["communication"],
                step_s=told["iteration"],
                accuracy=1 - (told["iteration"] - measured_s).abs() / measured_s,
                departs=(low_s > told["iteration"] * (1 + LIMIT))
                | (high_s < told["iteration"] / (1 + LIMIT)),
            )
        )
    bars = pd.concat(parts)[COLUMNS]
    orders = {"strategy": list(STRATEGIES), "source": list(SOURCES)}
    return bars.sort_values(
        ["row", "strategy", "order", "source"],
        key=lambda column: (
            column.map(orders[column.name].index) if column.name in orders else column
        ),
    ).reset_index(drop=True)


def _end(rows: pd.DataFrame, column: str) -> pd.Series:
    """An end of what was measured; the measurement itself where the table has none."""
    measured_s = rows["seconds_per_iteration"]
    if column not in rows.columns:
        return measured_s
    return pd.to_numeric(rows[column], errors="coerce").fillna(measured_s)


def published_table() -> str:
    """The CSV beside the figure of the published campaign, docs/oracle/oracle.csv."""
    return table_text(bars_of(reliable_rows(PUBLISHED_MEASURED, "report"), load_platform("abci")))
