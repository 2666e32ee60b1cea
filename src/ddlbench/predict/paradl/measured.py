"""Tables of measured iterations: read them, and score the oracle's projections against them.

Columns ``model``, ``strategy``, ``gpus``, ``seconds_per_iteration`` and, by strategy,
``batch_per_gpu`` (data), ``batch_per_group`` (hybrids, a group is a node) or ``batch_global``.
Optional: ``cell``, ``campaign``, ``dataset``, ``compute_seconds``, ``comm_seconds``,
``reliability`` (rows whose text does not begin with "ok" are left out of every score).

Accuracy of a cell is 1 - |projected - measured| / measured (ParaDL's own measure). It is negative
if a projection is more than twice the measurement. A mean is over strategies of the mean over their
cells.
"""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.predict.paradl.configuration import (
    HYBRIDS,
    STRATEGIES,
    Configuration,
    configuration_of,
)
from ddlbench.predict.paradl.oracle import VARIANTS, project
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.workload import load_workload

REQUIRED = ("model", "strategy", "gpus", "seconds_per_iteration")
NUMBERS = ("gpus", "seconds_per_iteration", "batch_per_gpu", "batch_per_group", "batch_global",
           "compute_seconds", "comm_seconds")  # fmt: skip
_PUBLISHED = Path(str(files("ddlbench.predict.paradl").joinpath("published")))
PUBLISHED_MEASURED = _PUBLISHED / "measured.csv"


def read_measured(path: Path) -> pd.DataFrame:
    """Read a table and add the optional columns that it lacks.

    Raises:
        ConfigError: the table is unreadable, a column is missing, or a value is invalid.
    """
    try:
        rows = pd.read_csv(path)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a CSV table: {error}") from None
    missing = [name for name in REQUIRED if name not in rows.columns]
    if missing:
        raise ConfigError(
            f"{path}: column {missing[0]!r} is missing; needed: {', '.join(REQUIRED)}"
        )
    for name in NUMBERS:
        if name not in rows.columns:
            rows[name] = float("nan")
        numbers = pd.to_numeric(rows[name], errors="coerce")
        wrong = numbers.isna() & rows[name].notna()
        if wrong.any():
            line = int(wrong.to_numpy().argmax())
            raise ConfigError(
                f"{path} line {line + 2}: {name} {rows[name].iloc[line]!r} is no number"
            )
        rows[name] = numbers
    for name, usual in (("campaign", "report"), ("dataset", ""), ("reliability", "ok")):
        rows[name] = rows[name].fillna(usual) if name in rows.columns else usual
    if "cell" not in rows.columns:
        rows["cell"] = [f"{row.model}/{row.strategy}/p{row.gpus:g}" for row in rows.itertuples()]
    for line, row in enumerate(rows.to_dict("records"), start=2):
        _check(row, f"{path} line {line}")
    return rows


def reliable_rows(path: Path, campaign: str) -> pd.DataFrame:
    """Reliable rows of one campaign.

    Raises:
        ConfigError: as :func:`read_measured`, or there is no such row.
    """
    rows = read_measured(path)
    reliable = rows[(rows["campaign"] == campaign) & _is_reliable(rows)]
    if reliable.empty:
        known = ", ".join(rows["campaign"].unique())
        raise ConfigError(f"{path}: no reliable row of campaign {campaign!r}; it has: {known}")
    return reliable


def _is_reliable(rows: pd.DataFrame) -> pd.Series[bool]:
    return rows["reliability"].str.lower().str.startswith("ok")


def _check(row: dict[Any, Any], where: str) -> None:
    if row["strategy"] not in STRATEGIES:
        remark = nearest(row["strategy"], STRATEGIES)
        raise ConfigError(f"{where}: unknown strategy {row['strategy']!r}; {remark}")
    for name in ("gpus", "seconds_per_iteration"):
        if not row[name] > 0:
            raise ConfigError(f"{where}: {name} is {row[name]}; write a number above 0")
    try:
        load_workload(str(row["model"]), str(row["dataset"]))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def question_of(row: dict[Any, Any], platform: Platform) -> Configuration:
    """The configuration that a row of :func:`read_measured` measured.

    Raises:
        ConfigError: the batch column of its strategy is empty.
    """
    strategy, devices = row["strategy"], int(row["gpus"])
    nodes = max(1, devices // platform.devices_per_node)
    column, groups = "batch_global", 1
    if strategy == "data":
        column, groups = "batch_per_gpu", devices
    elif strategy in HYBRIDS:
        column, groups = "batch_per_group", nodes
    batches = [
        row[column] * groups,
        row["batch_global"],
        row["batch_per_group"] * groups,
    ]
    batch = next((batch for batch in batches if batch > 0), None)
    if batch is None:
        raise ConfigError(f"{row['cell']}: no batch; fill column {column}")
    return configuration_of(strategy, devices, platform.devices_per_node, batch)


def read_published_projections() -> pd.DataFrame:
    """ParaDL's own projections by ``cell``, digitised from the figure of its report."""
    return pd.read_csv(_PUBLISHED / "projected.csv").set_index("cell")


MAIN_CAMPAIGN = "report"
BASELINES = ("computation-only", "carry-forward", "paradl-projected")
PREDICTORS = (*VARIANTS, *BASELINES)
PARTS = {"iteration": "seconds_per_iteration", "compute": "compute_seconds",
         "communication": "comm_seconds"}  # fmt: skip


def projected(rows: pd.DataFrame, platform: Platform, predictor: str) -> pd.DataFrame:
    """Projected seconds ``iteration``, ``compute`` and ``communication`` of each row, or NaN.

    Raises:
        ConfigError: unknown predictor, or a row without a batch.
    """
    if predictor in VARIANTS:
        return _of_variant(rows, platform, predictor)
    if predictor == "computation-only":
        return _computation_only(rows, platform)
    if predictor == "carry-forward":
        return _carry_forward(rows, platform)
    if predictor == "paradl-projected":
        return _published_projections(rows)
    raise ConfigError(f"unknown predictor {predictor!r}; {nearest(predictor, PREDICTORS)}")


def _of_variant(rows: pd.DataFrame, platform: Platform, variant: str) -> pd.DataFrame:
    seconds = []
    for row in rows.to_dict("records"):
        if row["strategy"] not in VARIANTS[variant].terms:
            seconds.append((math.nan,) * len(PARTS))
            continue
        workload = load_workload(str(row["model"]), str(row["dataset"]))
        projection = project(variant, workload, platform, question_of(row, platform))
        seconds.append((projection.iteration_s, projection.compute_s, projection.communication_s))
    return pd.DataFrame(seconds, columns=list(PARTS), index=rows.index, dtype=float)


def _computation_only(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """The time of the samples divided by the number of devices; no communication."""
    times = []
    for row in rows.to_dict("records"):
        config = question_of(row, platform)
        time_s = load_workload(str(row["model"]), str(row["dataset"])).time_s
        times.append(config.batch * time_s / config.devices)
    return pd.DataFrame({"iteration": times, "compute": times}, index=rows.index).reindex(
        columns=list(PARTS)
    )


def _carry_forward(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """The time of the smallest measured size with the same batch of a group; NaN for itself."""
    configs = [question_of(row, platform) for row in rows.to_dict("records")]
    with_batch = rows.assign(group_batch=[config.group_batch for config in configs])
    parts = []
    for _, group in with_batch.groupby(["campaign", "model", "dataset", "strategy", "group_batch"]):
        smallest = group.sort_values("gpus").iloc[0]
        larger = group.index[group["gpus"] > smallest["gpus"]]
        carried = {part: smallest[column] for part, column in PARTS.items()}
        parts.append(pd.DataFrame(carried, index=larger, dtype=float))
    return pd.concat(parts).reindex(rows.index)


def _published_projections(rows: pd.DataFrame) -> pd.DataFrame:
    published = read_published_projections().reindex(rows["cell"])[list(PARTS.values())]
    published = published.set_axis(list(PARTS), axis=1).set_axis(rows.index, axis=0)
    published[rows["campaign"] != MAIN_CAMPAIGN] = float("nan")
    return published


def mean_accuracy(rows: pd.DataFrame, projections: pd.DataFrame) -> float | None:
    """Mean over strategies of the mean over their cells; None if no cell can be compared."""
    return _mean(rows, _accuracy(rows, projections))


def _accuracy(rows: pd.DataFrame, projections: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            part: 1 - (projections[part] - rows[column]).abs() / rows[column]
            for part, column in PARTS.items()
        }
    )


def _mean(rows: pd.DataFrame, accuracy: pd.DataFrame, part: str = "iteration") -> float | None:
    means = accuracy[part].groupby(rows["strategy"]).mean().dropna()
    return float(means.mean()) if len(means) else None


def score(rows: pd.DataFrame, platform: Platform, predictor: str) -> dict[str, Any]:
    """The output of ``ddlbench oracle score``, as JSON values.

    Raises:
        ConfigError: the predictor is unknown, or no row is reliable.
    """
    reliable = _is_reliable(rows)
    counted = rows[reliable]
    if counted.empty:
        raise ConfigError("no row to score: none has a reliability that begins with 'ok'")
    projections = projected(counted, platform, predictor)
    names = list(dict.fromkeys(counted["campaign"]))
    main = MAIN_CAMPAIGN if MAIN_CAMPAIGN in names else names[0]
    campaigns = {
        name: _campaign(counted[counted["campaign"] == name], projections, platform)
        for name in names
    }
    return {
        "predictor": predictor,
        "campaign": main,
        **campaigns[main],
        "campaigns": {name: value for name, value in campaigns.items() if name != main},
        "cells": _cells(counted, projections),
        "left_out": [
            {"cell": row["cell"], "why": row["reliability"]}
            for row in rows[~reliable].to_dict("records")
        ],
    }


def _campaign(rows: pd.DataFrame, projections: pd.DataFrame, platform: Platform) -> dict[str, Any]:
    projections = projections.loc[rows.index]
    accuracy = _accuracy(rows, projections)
    return {
        "mean_accuracy": _mean(rows, accuracy),
        "cells_scored": int(accuracy["iteration"].notna().sum()),
        "compute_accuracy": _mean(rows, accuracy, "compute"),
        "communication_accuracy": _mean(rows, accuracy, "communication"),
        "strategies": _groups(rows, accuracy, "strategy"),
        "networks": _groups(rows, accuracy, "model"),
        "baselines": {
            name: mean_accuracy(rows, projected(rows, platform, name)) for name in BASELINES
        },
    }


def _groups(rows: pd.DataFrame, accuracy: pd.DataFrame, column: str) -> dict[str, Any]:
    groups = {}
    for name, group in rows.groupby(column, sort=False):
        part = accuracy.loc[group.index]
        groups[str(name)] = {
            "accuracy": _mean(group, part),
            "compute_accuracy": _mean(group, part, "compute"),
            "communication_accuracy": _mean(group, part, "communication"),
            "worst_cell_accuracy": _number(part["iteration"].min()),
            "cells": int(part["iteration"].notna().sum()),
        }
    return groups


def _cells(rows: pd.DataFrame, projections: pd.DataFrame) -> list[dict[str, Any]]:
    accuracy = _accuracy(rows, projections)["iteration"]
    return [
        {
            "cell": row["cell"],
            "campaign": row["campaign"],
            "measured_s": _number(row["seconds_per_iteration"]),
            "projected_s": _number(projections.at[index, "iteration"]),
            "projected_compute_s": _number(projections.at[index, "compute"]),
            "projected_communication_s": _number(projections.at[index, "communication"]),
            "accuracy": _number(accuracy.at[index]),
        }
        for index, row in zip(rows.index, rows.to_dict("records"), strict=True)
    ]


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)
