"""Errors of predictions, and runs that depart from a projection.

An error is (predicted - measured) / measured of one configuration; measured is the median over its
repeats. Each row of errors also has the spread of the repeats of a cell: no predictor can be more
precise than that.

ParaDL compares every run with its projection to find what the model does not know: a congested
link, a slow node, a setting. A run departs if both ends of its own interval are longer than the
projection by more than a limit, or shorter by more than it. If the parts are known, the part with
the larger difference in seconds is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ddlbench.common.document import Document, records
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, predictions_file
from ddlbench.predict.documents import VERSION, PredictedCell, PredictionsFile

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"

COLUMNS = (
    "predictor", "strategy", "baseline", "n", "mean_absolute_error", "median_absolute_error",
    "signed_error", "worst_error", "worst_cell", "repeat_spread", "noise_floor", "not_predicted",
)  # fmt: skip

# Expected range of n draws of a normal distribution, in standard deviations (Tippett 1925).
_EXPECTED_RANGE = {
    2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847, 9: 2.970, 10: 3.078,
}  # fmt: skip


def _frame(records: Any, columns: Any = None) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - slow to import, and `recommend` needs no frame

    return pd.DataFrame(records, columns=columns)


_DOCUMENT = Document(
    PredictionsFile,
    VERSION,
    "predictions file",
    ConfigError,
    instead="make it anew: ddlbench predict accuracy",
)


def errors(predictions: pd.DataFrame) -> pd.DataFrame:
    """Errors of each predictor by strategy, and over all of its strategies (``all``).

    ``n`` counts cells with both a prediction and a measurement, ``not_predicted`` measured cells
    without a prediction. ``worst_error`` is the signed error of the worst cell, ``repeat_spread``
    the median over cells of (longest - shortest) / median of the repeats. ``noise_floor`` is the
    mean absolute error that a perfect model would have; NaN where no cell has repeats.
    """
    return _frame(_rows(predictions), columns=list(COLUMNS))


def _rows(predictions: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for predictor, rows in predictions.groupby("predictor", sort=False):
        groups = [(str(name), group) for name, group in rows.groupby("strategy", sort=False)]
        if len(groups) > 1:
            groups.append((ALL, rows))
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
                "noise_floor": noise_floor(scored),
                "not_predicted": len(measured) - len(scored),
            }


def noise_floor(scored: pd.DataFrame) -> float:
    """Mean absolute error of a perfect model, as profile and cells are measured with noise.

    ::

        sigma = range of the repeats / (expected range of n normal draws)
        floor = mean over cells of  sqrt(2 / pi) sigma sqrt(1 / runs of the profile + 1 / n)

    Runs of the profile are taken to differ as runs of the cell do.

    Args:
        scored: rows with ``repeats`` (n), ``repeat_spread`` (range over median), ``profile_runs``.
    """
    runs_of = scored["profile_runs"].fillna(1)
    floors = [
        math.sqrt(2 / math.pi) * spread / _EXPECTED_RANGE[min(n, 10)]
        * math.sqrt(1 / runs + 1 / n)
        for n, spread, runs in zip(
            scored["repeats"], scored["repeat_spread"], runs_of, strict=True
        )
        if n > 1 and math.isfinite(spread)
    ]  # fmt: skip
    return sum(floors) / len(floors) if floors else math.nan


def write_predictions(
    predictions: pd.DataFrame, site: str, experiment: str, results_root: Path = RESULTS
) -> Path:
    """Write the frame as ``predictions.json`` in the experiment's folder, and return its path."""
    path = results_root / predictions_file(site, experiment).relative_to(RESULTS)
    content = {
        "schema_version": VERSION,
        "site": site,
        "experiment": experiment,
        "predictions": records(predictions),
    }
    _DOCUMENT.write(path, cast("PredictionsFile", content))
    return path


def read_predictions(path: Path) -> pd.DataFrame:
    """Read back the frame that :func:`write_predictions` wrote.

    Raises:
        ConfigError: the file is missing, or is not of its form.
    """
    return _frame(_read(path))


def _read(path: Path) -> list[PredictedCell]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; make it with `ddlbench predict accuracy`")
    return _DOCUMENT.read(path)["predictions"]


SignedErrors = Mapping[tuple[str, str], Sequence[float]]
"""(predictor, strategy) -> (predicted - measured) / measured of every cell measured at a site."""


def errors_at(site: str, results_root: Path = RESULTS) -> SignedErrors:
    """Errors of all predictions that experiments of a site have been compared with."""
    errors: dict[tuple[str, str], dict[str, float]] = {}
    for path in sorted((results_root / site).glob("*/predictions.json")):
        try:
            rows = _read(path)
        except ConfigError:  # of another version: `ddlbench predict accuracy` writes it anew
            continue
        for row in rows:
            if (error := row["signed_error"]) is not None:
                errors.setdefault((row["predictor"], row["strategy"]), {})[row["cell_id"]] = error
    return {pair: list(by_cell.values()) for pair, by_cell in errors.items()}


LIMIT = 0.25
"""Default share by which the longer of run and projection may exceed the other."""

DEPARTURE_COLUMNS = [
    "run", "measured_s", "projected_s", "ratio", "departs", "part", "part_measured_s",
    "part_projected_s", "why_unknown",
]  # fmt: skip
_PARTS = {"computation": "compute", "communication": "communication"}


def departs(
    measured_s: float, low_s: float, high_s: float, projected_s: float, limit: float
) -> str:
    """``longer`` or ``shorter`` than projected; empty if it is neither.

    Args:
        measured_s: seconds of the run.
        low_s: lower end of their interval; NaN if there is none.
        high_s: upper end.
        projected_s: above 0.
        limit: a run of more than ``1 + limit`` times the projection is longer, one of less than
            the projection over ``1 + limit`` is shorter.
    """
    if (low_s if math.isfinite(low_s) else measured_s) > projected_s * (1 + limit):
        return "longer"
    if (high_s if math.isfinite(high_s) else measured_s) < projected_s / (1 + limit):
        return "shorter"
    return ""


def anomalies(runs: pd.DataFrame, limit: float = LIMIT) -> pd.DataFrame:
    """Compare every measured run with its projection; see :data:`DEPARTURE_COLUMNS`.

    Args:
        runs: ``run`` (its name), ``measured_s``, ``low_s``, ``high_s``, ``projected_s``, and of
            the parts ``measured_compute_s``, ``projected_compute_s``,
            ``measured_communication_s``, ``projected_communication_s``; NaN where unknown.
            Optionally ``why``: the reason if there is no projection.
        limit: see :func:`departs`.
    """
    records = []
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
            record |= _departing_part(row)
        records.append(record)
    return _frame(records, columns=DEPARTURE_COLUMNS)


def _departing_part(row: dict[Any, Any]) -> dict[str, Any]:
    parts = {
        name: (row[f"measured_{column}_s"], row[f"projected_{column}_s"])
        for name, column in _PARTS.items()
    }
    gaps = {
        name: abs(measured_s - projected_s) for name, (measured_s, projected_s) in parts.items()
    }
    if not all(map(math.isfinite, gaps.values())):
        return {}
    name = max(gaps, key=lambda part: gaps[part])
    measured_s, projected_s = parts[name]
    return {"part": name, "part_measured_s": measured_s, "part_projected_s": projected_s}


def from_predictions(predictions: pd.DataFrame, predictor: str) -> pd.DataFrame:
    """Runs for :func:`anomalies` from an experiment's predictions by one predictor.

    A run measures only how long it waits for others, which is communication and bubble together.
    So the parts are work and waiting. ParaDL counts the bubble of a pipeline as work.
    """
    of_predictor = predictions[predictions["predictor"] == predictor].copy()
    numbers = of_predictor.reindex(
        columns=["measured_step_s", "measured_low_s", "measured_high_s", "predicted_step_s",
                 "measured_wait_s", "communication_s", "exposed_communication_s", "compute_s",
                 "bubble_s"]
    ).astype(float)  # fmt: skip
    exposed_s = numbers["exposed_communication_s"].fillna(numbers["communication_s"])
    return _frame(
        {
            "run": of_predictor["cell_id"].str.removesuffix("/rep0"),
            "measured_s": numbers["measured_step_s"],
            "low_s": numbers["measured_low_s"],
            "high_s": numbers["measured_high_s"],
            "projected_s": numbers["predicted_step_s"],
            "measured_compute_s": numbers["measured_step_s"] - numbers["measured_wait_s"],
            "projected_compute_s": numbers["compute_s"],
            "measured_communication_s": numbers["measured_wait_s"],
            "projected_communication_s": exposed_s + numbers["bubble_s"].fillna(0),
            "why": of_predictor["notes"],
        }
    ).reset_index(drop=True)
