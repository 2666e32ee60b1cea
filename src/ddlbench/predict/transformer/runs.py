"""Tables of measured transformer runs: read them, and score the oracle's steps against them.

Columns are those of :mod:`ddlbench.predict.transformer.configurations`, and ``step_s``. Error of a
row is |predicted - measured| / measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.transformer.accelerators import Accelerators
from ddlbench.predict.transformer.configurations import (
    Array,
    Configurations,
    configurations,
)
from ddlbench.predict.transformer.step import steps

PUBLISHED = Path(str(files("ddlbench.predict.transformer").joinpath("published")))
ONE_NODE = PUBLISHED / "one_node.csv"
MANY_NODES = PUBLISHED / "many_nodes.csv"
MEGATRON = PUBLISHED / "megatron_table1.csv"
BY = ("hidden_size", "devices", "tensor", "data", "pipeline", "micro_batch")
WORST = 10


@dataclass(frozen=True)
class Runs:
    """Measured steps.

    Args:
        asked: their configurations.
        measured_s: seconds of a step.
    """

    asked: Configurations
    measured_s: Array

    def __len__(self) -> int:
        return len(self.asked)

    def take(self, chosen: Any) -> Runs:
        """Some of them: a mask, or their places."""
        return Runs(self.asked.take(chosen), self.measured_s[chosen])

    def column(self, name: str) -> Array:
        """A column of numbers, ``devices`` among them."""
        return self.asked.devices if name == "devices" else self.asked[name]


def read_runs(*paths: Path) -> Runs:
    """Read tables as one.

    Raises:
        ConfigError: a table is unreadable, a column is missing, or a value is wrong.
    """
    tables, measured = [], []
    for path in paths:
        table = _read(path)
        tables.append(configurations(table, str(path)).rows)
        measured.append(_measured_s(table, path))
    rows = pd.concat(tables, ignore_index=True)
    return Runs(Configurations(rows), np.concatenate(measured))


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a CSV table: {error}") from None


def _measured_s(table: pd.DataFrame, path: Path) -> Array:
    if "step_s" not in table.columns:
        raise ConfigError(f"{path}: column 'step_s' is missing; add the measured seconds of a step")
    seconds = pd.to_numeric(table["step_s"], errors="coerce")
    wrong = ~(np.isfinite(seconds) & (seconds > 0))
    if wrong.any():
        line = int(wrong.to_numpy().argmax()) + 2
        value = table["step_s"][wrong].iloc[0]
        raise ConfigError(f"{path} line {line}: step_s is {value!r}; write seconds above 0")
    return seconds.to_numpy(dtype=float)


def score(runs: Runs, platform: Accelerators) -> dict[str, Any]:
    """The output of ``ddlbench oracle score --workload transformer``, as JSON values."""
    return scored(runs, steps(runs.asked, platform).seconds)


def scored(runs: Runs, predicted_s: Array) -> dict[str, Any]:
    """Errors of predictions: mean, median, by parts of the cut, and the worst rows."""
    errors = np.abs(predicted_s / runs.measured_s - 1)
    ratios = runs.measured_s / predicted_s
    worst = np.argsort(-errors)[:WORST]
    return {
        "mean_absolute_error": float(errors.mean()),
        "median_absolute_error": float(np.median(errors)),
        "rows": len(runs),
        "mean_error": float(np.mean(predicted_s / runs.measured_s - 1)),
        "measured_over_predicted": {
            "low": float(np.quantile(ratios, 0.05)),
            "high": float(np.quantile(ratios, 0.95)),
        },
        "by": {name: _by(runs.column(name), errors) for name in BY},
        "worst": [_row(runs, predicted_s, int(place)) for place in worst],
    }


def _by(values: Array, errors: Array) -> dict[str, dict[str, float]]:
    return {
        f"{value:g}": {
            "mean_absolute_error": float(errors[values == value].mean()),
            "median_absolute_error": float(np.median(errors[values == value])),
            "rows": int((values == value).sum()),
        }
        for value in np.unique(values)
    }


def _row(runs: Runs, predicted_s: Array, place: int) -> dict[str, Any]:
    row = runs.asked.rows.iloc[place]
    names = ("hidden_size", "layers", "tensor", "data", "pipeline", "micro_batch", "global_batch")
    return {
        "devices": int(runs.asked.devices[place]),
        **{name: int(row[name]) for name in names},
        "measured_s": float(runs.measured_s[place]),
        "predicted_s": float(predicted_s[place]),
        "error": float(predicted_s[place] / runs.measured_s[place] - 1),
    }


GROUP = ("hidden_size", "layers", "sequence_length", "devices", "global_batch")
"""Runs of one group train the same model with the same batch on as many devices."""


def choices(runs: Runs, predicted_s: Array) -> Mapping[str, Any]:
    """How good the configuration is that the predictions would choose, in every group of runs.

    Regret is the measured step of the chosen run over the shortest measured one, less 1. Groups of
    one run say nothing and are left out.
    """
    table = pd.DataFrame({name: runs.column(name) for name in GROUP})
    table = table.assign(measured_s=runs.measured_s, predicted_s=predicted_s)
    regrets, hits, sizes = [], [], []
    for _, group in table.groupby(list(GROUP)):
        if len(group) > 1:
            chosen = group["measured_s"].iloc[int(group["predicted_s"].argmin())]
            regrets.append(chosen / group["measured_s"].min() - 1)
            hits.append(chosen == group["measured_s"].min())
            sizes.append(len(group))
    if not regrets:
        return {"groups": 0}
    return {
        "groups": len(regrets),
        "runs": int(np.sum(sizes)),
        "best_chosen": float(np.mean(hits)),
        "mean_regret": float(np.mean(regrets)),
        "largest_regret": float(np.max(regrets)),
    }
