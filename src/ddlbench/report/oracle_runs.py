"""ParaDL's Figure 1 of our own runs: both variants of its oracle beside every measured cell."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddlbench.predict.anomalies import LIMIT, departs
from ddlbench.report.footer import Context, footer
from ddlbench.report.labels import dataset_label, network_label
from ddlbench.report.nothing import nothing_to_show
from ddlbench.report.oracle_bars import COLUMNS, MEASURED, draw_bars
from ddlbench.report.predicted import NOT_PREDICTED, Predicted, shown_cells
from ddlbench.report.tables import rows_of

__all__ = ["VARIANTS", "bars_of", "draw"]

VARIANTS = {"paradl-published": "as-published", "paradl-corrected": "corrected"}


def draw(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
    """A row a network and dataset, a column a strategy, a group a geometry."""
    frame = predicted.predictions
    shown = frame[frame["predictor"].isin(VARIANTS)]
    title = "ParaDL's oracle: projected and measured step"
    if shown.empty:
        below = footer(shown_cells(predicted, shown), context, [])
        why = "No prediction by the oracle yet."
        return nothing_to_show(title, why, below), pd.DataFrame(columns=COLUMNS)
    bars = bars_of(shown)
    sentences = [
        "Measured communication is the time that the mean rank waits for others: it holds their "
        "lateness too, and a pipeline's bubble, which projections count as computation. Strategies "
        "that cannot tell it have a plain bar.",
    ]
    below = footer(shown_cells(predicted, shown), context, sentences)
    return draw_bars(title, bars, "Nodes x devices", below, LIMIT), bars


def bars_of(predictions: pd.DataFrame) -> pd.DataFrame:
    """One row a bar: each prediction, and once a configuration what was measured."""
    bars: list[dict[str, Any]] = []
    seen = set()
    for row in rows_of(predictions):
        strategy = f"{row.strategy}, {row.variant}" if row.variant else str(row.strategy)
        place = {
            "row": f"{network_label(str(row.network))}, {dataset_label(str(row.dataset))}",
            "strategy": strategy,
            "place": str(row.geometry),
            "order": row.workers + row.nodes / 1000,
        }
        if row.cell_id not in seen:
            seen.add(row.cell_id)
            bars.append(place | _measured(row))
        bars.append(place | _projected(row))
    return pd.DataFrame(bars, columns=COLUMNS)


def _measured(row: Any) -> dict[str, Any]:
    # The mean wait of a step may exceed the median step, where one step was very long.
    wait_s = min(float(getattr(row, "measured_wait_s", math.nan)), float(row.measured_step_s))
    return {
        "source": MEASURED,
        "compute_s": row.measured_step_s - wait_s,
        "communication_s": wait_s,
        "step_s": row.measured_step_s,
        "accuracy": math.nan,
        "departs": False,
        "mark": "" if math.isfinite(row.measured_step_s) else str(row.mark or row.status),
    }


def _projected(row: Any) -> dict[str, Any]:
    known = math.isfinite(row.predicted_step_s)
    off = known and math.isfinite(row.measured_step_s) and bool(
        departs(
            row.measured_step_s, row.measured_low_s, row.measured_high_s, row.predicted_step_s,
            LIMIT,
        )
    )  # fmt: skip
    return {
        "source": VARIANTS[row.predictor],
        "compute_s": row.compute_s + row.bubble_s,
        "communication_s": row.communication_s,
        "step_s": row.predicted_step_s,
        "accuracy": 1 - abs(row.signed_error),
        "departs": off,
        "mark": "" if known else NOT_PREDICTED,
    }
