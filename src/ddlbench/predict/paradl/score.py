"""Score predictors against measured iterations, campaigns apart.

Accuracy of a cell is 1 - |projected - measured| / measured (ParaDL's own measure; below zero where
a projection is more than twice the measurement). A mean is over strategies of the mean over their
cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import nearest
from ddlbench.predict.paradl.measured import question_of, read_published_projections
from ddlbench.predict.paradl.oracle import VARIANTS, project
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.workload import load_workload

__all__ = ["BASELINES", "MAIN_CAMPAIGN", "PREDICTORS", "mean_accuracy", "projected", "score"]

MAIN_CAMPAIGN = "report"
BASELINES = ("computation-only", "carry-forward", "paradl-projected")
PREDICTORS = (*VARIANTS, *BASELINES)
PARTS = {"iteration": "seconds_per_iteration", "compute": "compute_seconds",
         "communication": "comm_seconds"}  # fmt: skip


def projected(rows: pd.DataFrame, platform: Platform, predictor: str) -> pd.DataFrame:
    """Seconds ``iteration``, ``compute`` and ``communication`` of each row; empty where unknown.

    Raises:
        ConfigError: unknown predictor, or a row without a batch.
    """
    if predictor in VARIANTS:
        return _of_variant(rows, platform, predictor)
    if predictor not in BASELINES:
        raise ConfigError(f"unknown predictor {predictor!r}; {nearest(predictor, PREDICTORS)}")
    made: Mapping[str, Callable[[], pd.DataFrame]] = {
        "computation-only": lambda: _computation_only(rows, platform),
        "carry-forward": lambda: _carry_forward(rows, platform),
        "paradl-projected": lambda: _paradl(rows),
    }
    return made[predictor]()


def _of_variant(rows: pd.DataFrame, platform: Platform, variant: str) -> pd.DataFrame:
    told = []
    for row in rows.to_dict("records"):
        workload = load_workload(str(row["model"]), str(row["dataset"]))
        found = project(variant, workload, platform, question_of(row, platform))
        told.append((found.iteration_s, found.compute_s, found.communication_s))
    return pd.DataFrame(told, columns=list(PARTS), index=rows.index, dtype=float)


def _computation_only(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """The samples' own time shared by all devices; nothing is sent."""
    times = []
    for row in rows.to_dict("records"):
        asked = question_of(row, platform)
        time_s = load_workload(str(row["model"]), str(row["dataset"])).time_s
        times.append(asked.batch * time_s / asked.devices)
    return pd.DataFrame({"iteration": times, "compute": times}, index=rows.index).reindex(
        columns=list(PARTS)
    )


def _carry_forward(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """What the smallest measured size took, at the same batch of a group; not for itself."""
    asked = [question_of(row, platform) for row in rows.to_dict("records")]
    kept = rows.assign(group_batch=[one.group_batch for one in asked])
    parts = []
    for _, group in kept.groupby(["campaign", "model", "dataset", "strategy", "group_batch"]):
        smallest = group.sort_values("gpus").iloc[0]
        larger = group.index[group["gpus"] > smallest["gpus"]]
        carried = {part: smallest[column] for part, column in PARTS.items()}
        parts.append(pd.DataFrame(carried, index=larger, dtype=float))
    return pd.concat(parts).reindex(rows.index)


def _paradl(rows: pd.DataFrame) -> pd.DataFrame:
    given = read_published_projections()
    told = given.reindex(rows["cell"])[list(PARTS.values())].set_axis(list(PARTS), axis=1)
    told.index = rows.index
    told[rows["campaign"] != MAIN_CAMPAIGN] = float("nan")
    return told


def mean_accuracy(rows: pd.DataFrame, told: pd.DataFrame) -> float | None:
    """Mean over strategies of the mean over their cells; None where nothing can be compared."""
    return _mean(rows, _accuracy(rows, told))


def _accuracy(rows: pd.DataFrame, told: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            part: 1 - (told[part] - rows[column]).abs() / rows[column]
            for part, column in PARTS.items()
        }
    )


def _mean(rows: pd.DataFrame, accuracy: pd.DataFrame, part: str = "iteration") -> float | None:
    means = accuracy[part].groupby(rows["strategy"]).mean().dropna()
    return float(means.mean()) if len(means) else None


def score(rows: pd.DataFrame, platform: Platform, predictor: str) -> dict[str, Any]:
    """Everything ``ddlbench oracle score`` prints, as JSON values.

    Raises:
        ConfigError: unknown predictor, or no row that counts.
    """
    reliable = rows["reliability"].str.lower().str.startswith("ok")
    counted = rows[reliable]
    if counted.empty:
        raise ConfigError("no row to score: none has a reliability that begins with 'ok'")
    told = projected(counted, platform, predictor)
    names = list(dict.fromkeys(counted["campaign"]))
    main = MAIN_CAMPAIGN if MAIN_CAMPAIGN in names else names[0]
    campaigns = {
        name: _campaign(counted[counted["campaign"] == name], told, platform) for name in names
    }
    return {
        "predictor": predictor,
        "campaign": main,
        **campaigns[main],
        "campaigns": {name: value for name, value in campaigns.items() if name != main},
        "cells": _cells(counted, told),
        "left_out": [
            {"cell": row["cell"], "why": row["reliability"]}
            for row in rows[~reliable].to_dict("records")
        ],
    }


def _campaign(rows: pd.DataFrame, told: pd.DataFrame, platform: Platform) -> dict[str, Any]:
    told = told.loc[rows.index]
    accuracy = _accuracy(rows, told)
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


def _cells(rows: pd.DataFrame, told: pd.DataFrame) -> list[dict[str, Any]]:
    accuracy = _accuracy(rows, told)["iteration"]
    return [
        {
            "cell": row["cell"],
            "campaign": row["campaign"],
            "measured_s": _number(row["seconds_per_iteration"]),
            "projected_s": _number(told.at[index, "iteration"]),
            "projected_compute_s": _number(told.at[index, "compute"]),
            "projected_communication_s": _number(told.at[index, "communication"]),
            "accuracy": _number(accuracy.at[index]),
        }
        for index, row in zip(rows.index, rows.to_dict("records"), strict=True)
    ]


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)
