"""How far predictions lie from measurements: a row a predictor and strategy.

An error is (predicted - measured) / measured of one configuration; measured is the median over its
repeats. Beside it stands how far repeats of one cell lie apart: no predictor can be held to less.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.document import Document
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, predictions_file

__all__ = ["ALL", "InvalidPredictions", "errors", "read_predictions", "write_predictions"]

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
