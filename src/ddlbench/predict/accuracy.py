"""How far predictions lie from measurements, and which runs depart from a projection.

A row a predictor and strategy. An error is (predicted - measured) / measured of one configuration;
measured is the median over its repeats. Beside it stands how far repeats of one cell lie apart: no
predictor can be held to less.

ParaDL compares every run with its projection to find what the model does not know of: a congested
link, a slow node, a setting. A run departs if at both ends of its own interval it is longer than
projected by more than a limit, or the projection longer than it; where the parts are known, the
part that is off by more seconds is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.document import Document
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, predictions_file

ALL = "all"
PREDICTIONS_VERSION = 1

COLUMNS = (
    "predictor", "strategy", "baseline", "n", "mean_absolute_error", "median_absolute_error",
    "signed_error", "worst_error", "worst_cell", "repeat_spread", "not_predicted",
)  # fmt: skip


class InvalidPredictions(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A predictions file that is missing, truncated or of another version."""


_DOCUMENT = Document("predictions", "predictions file", InvalidPredictions)


def errors(predictions: pd.DataFrame) -> pd.DataFrame:
    """Errors of each predictor by strategy, and over all of its strategies (``all``).

    Columns: n cells with both a prediction and a measurement; mean and median absolute relative
    error; mean signed error; the worst cell and its signed error; the median over cells of
    (longest - shortest) / median of the repeats; measured cells without a prediction.

    Args:
        predictions: the frame that :func:`ddlbench.predict.evaluate.predictions` makes.
    """
    return pd.DataFrame(_rows(predictions), columns=list(COLUMNS))


def _rows(predictions: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for predictor, asked in predictions.groupby("predictor", sort=False):
        groups = [(str(name), group) for name, group in asked.groupby("strategy", sort=False)]
        if len(groups) > 1:
            groups.append((ALL, asked))
        for strategy, group in groups:
            measured = group[group["measured_step_s"].notna()]
            scored = measured[measured["signed_error"].notna()]
            size = scored["signed_error"].abs()
            worst = scored.iloc[int(size.to_numpy().argmax())] if len(scored) else None
            yield {
                "predictor": predictor,
                "strategy": strategy,
                "baseline": bool(group["baseline"].iloc[0]),
                "n": len(scored),
                "mean_absolute_error": size.mean(),
                "median_absolute_error": size.median(),
                "signed_error": scored["signed_error"].mean(),
                "worst_error": worst["signed_error"] if worst is not None else float("nan"),
                "worst_cell": worst["cell_id"] if worst is not None else "",
                "repeat_spread": scored["repeat_spread"].median(),
                "not_predicted": len(measured) - len(scored),
            }


def write_predictions(
    predictions: pd.DataFrame, site: str, experiment: str, results_root: Path = RESULTS
) -> Path:
    """Write the frame as ``predictions.json`` in the experiment's folder, and return its path."""
    path = results_root / predictions_file(site, experiment).relative_to(RESULTS)
    # Through object, as a column of numbers would turn None back into NaN, which JSON has not.
    plain = predictions.astype(object).where(predictions.notna(), None)
    _DOCUMENT.write(
        path,
        {
            "schema_version": PREDICTIONS_VERSION,
            "site": site,
            "experiment": experiment,
            "predictions": [
                {str(key): _plain(value) for key, value in record.items()}
                for record in plain.to_dict("records")
            ],
        },
    )
    return path


def read_predictions(path: Path) -> pd.DataFrame:
    """Read back the frame that :func:`write_predictions` wrote.

    Raises:
        InvalidPredictions: there is none, or it is not what the schema says.
    """
    if not path.is_file():
        raise InvalidPredictions(f"{path}: no such file; make it with `ddlbench accuracy`")
    return pd.DataFrame(_DOCUMENT.read(path)["predictions"])


def _plain(value: Any) -> Any:
    """A JSON value of what a frame holds."""
    return value.item() if hasattr(value, "item") else value


LIMIT = 0.25
"""Share by which the longer of run and projection may exceed the other, unless the user says so."""

DEPARTURE_COLUMNS = [
    "run", "measured_s", "projected_s", "ratio", "departs", "part", "part_measured_s",
    "part_projected_s", "why_unknown",
]  # fmt: skip
_PARTS = {"computation": "compute", "communication": "communication"}


def departs(
    measured_s: float, low_s: float, high_s: float, projected_s: float, limit: float
) -> str:
    """``longer`` or ``shorter`` than projected; empty if it is neither.

    Longer is above ``1 + limit`` times the projection, shorter below the ``1 + limit``-th part. The
    measured seconds come with the ends of their interval, NaN where there is none; the
    projected ones are above 0.
    """
    nearest_low = low_s if math.isfinite(low_s) else measured_s
    nearest_high = high_s if math.isfinite(high_s) else measured_s
    if nearest_low > projected_s * (1 + limit):
        return "longer"
    if nearest_high < projected_s / (1 + limit):
        return "shorter"
    return ""


def anomalies(runs: pd.DataFrame, limit: float = LIMIT) -> pd.DataFrame:
    """Judge every run; see :data:`DEPARTURE_COLUMNS`.

    Args:
        runs: ``run`` (its name), ``measured_s``, ``low_s``, ``high_s``, ``projected_s``, and of
            the parts ``measured_compute_s``, ``projected_compute_s``,
            ``measured_communication_s``, ``projected_communication_s``; NaN where unknown. Runs
            without a measurement are left out.
        limit: see :func:`departs`.
    """
    told = []
    for row in runs[runs["measured_s"].notna()].to_dict("records"):
        record = {
            "run": row["run"], "measured_s": row["measured_s"], "projected_s": row["projected_s"],
            "ratio": math.nan, "departs": "", "part": "", "part_measured_s": math.nan,
            "part_projected_s": math.nan, "why_unknown": "",
        }  # fmt: skip
        if not row["projected_s"] > 0:
            record["why_unknown"] = row.get("why") or "there is no projection"
        else:
            record["ratio"] = row["measured_s"] / row["projected_s"]
            record["departs"] = departs(
                row["measured_s"], row["low_s"], row["high_s"], row["projected_s"], limit
            )
            record |= _part(row)
        told.append(record)
    return pd.DataFrame(told, columns=DEPARTURE_COLUMNS)


def _part(row: dict[Any, Any]) -> dict[str, Any]:
    """The part that is off by more seconds."""
    gaps = {}
    for name, column in _PARTS.items():
        gap = row[f"measured_{column}_s"] - row[f"projected_{column}_s"]
        if math.isfinite(gap):
            gaps[name] = abs(gap)
    if len(gaps) < len(_PARTS):
        return {}
    name = max(gaps, key=lambda part: gaps[part])
    column = _PARTS[name]
    return {
        "part": name,
        "part_measured_s": row[f"measured_{column}_s"],
        "part_projected_s": row[f"projected_{column}_s"],
    }


def from_predictions(predictions: pd.DataFrame, predictor: str) -> pd.DataFrame:
    """Runs of :func:`anomalies` from an experiment's predictions by one predictor.

    A run tells how long it waits for others, messages and bubble together; so the parts are work
    and what a step waits for. ParaDL counts the bubble of a pipeline as work.
    """
    own = predictions[predictions["predictor"] == predictor].copy()
    numbers = own.reindex(
        columns=["measured_step_s", "measured_low_s", "measured_high_s", "predicted_step_s",
                 "measured_wait_s", "communication_s", "exposed_communication_s", "compute_s",
                 "bubble_s"]
    ).astype(float)  # fmt: skip
    exposed_s = numbers["exposed_communication_s"].fillna(numbers["communication_s"])
    return pd.DataFrame(
        {
            "run": own["cell_id"].str.removesuffix("/rep0"),
            "measured_s": numbers["measured_step_s"],
            "low_s": numbers["measured_low_s"],
            "high_s": numbers["measured_high_s"],
            "projected_s": numbers["predicted_step_s"],
            "measured_compute_s": numbers["measured_step_s"] - numbers["measured_wait_s"],
            "projected_compute_s": numbers["compute_s"],
            "measured_communication_s": numbers["measured_wait_s"],
            "projected_communication_s": exposed_s + numbers["bubble_s"].fillna(0),
            "why": own["notes"],
        }
    ).reset_index(drop=True)
