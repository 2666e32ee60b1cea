"""Tables of measured iterations: read, checked, turned into questions, and scored against.

Columns ``model``, ``strategy``, ``gpus``, ``seconds_per_iteration`` and, by strategy,
``batch_per_gpu`` (data), ``batch_per_group`` (hybrids, a group is a node) or ``batch_global``.
Optional: ``cell``, ``campaign``, ``dataset``, ``compute_seconds``, ``comm_seconds``,
``reliability`` (rows whose text does not begin with "ok" are left out of every score).

Accuracy of a cell is 1 - |projected - measured| / measured (ParaDL's own measure; below zero where
a projection is more than twice the measurement). A mean is over strategies of the mean over their
cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import nearest
from ddlbench.predict.paradl.configuration import HYBRIDS, STRATEGIES, Configuration, question
from ddlbench.predict.paradl.oracle import VARIANTS, project
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.workload import load_workload

REQUIRED = ("model", "strategy", "gpus", "seconds_per_iteration")
NUMBERS = ("gpus", "seconds_per_iteration", "batch_per_gpu", "batch_per_group", "batch_global",
           "compute_seconds", "comm_seconds")  # fmt: skip
_PUBLISHED = Path(str(files("ddlbench.predict.paradl").joinpath("published")))
PUBLISHED_MEASURED = _PUBLISHED / "measured.csv"


def read_measured(path: Path) -> pd.DataFrame:
    """Read a table; every column of the module's text is there afterwards, empty where unknown.

    Raises:
        ConfigError: unreadable, a column is missing, or a row says something impossible.
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
    """Rows of one campaign that count.

    Raises:
        ConfigError: as :func:`read_measured`, or there is none.
    """
    rows = read_measured(path)
    counts = rows["reliability"].str.lower().str.startswith("ok")
    chosen = rows[(rows["campaign"] == campaign) & counts]
    if chosen.empty:
        known = ", ".join(rows["campaign"].unique())
        raise ConfigError(f"{path}: no reliable row of campaign {campaign!r}; it has: {known}")
    return chosen


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
    """What a row of :func:`read_measured` measured.

    Raises:
        ConfigError: the batch column of its strategy is empty.
    """
    strategy, devices = row["strategy"], int(row["gpus"])
    nodes = max(1, devices // platform.devices_per_node)
    known = {
        "batch_per_gpu": row["batch_per_gpu"] * devices if strategy == "data" else float("nan"),
        "batch_per_group": row["batch_per_group"] * (nodes if strategy in HYBRIDS else 1),
        "batch_global": row["batch_global"],
    }
    if strategy == "data":
        known["batch_per_group"] *= devices
    first = {"data": "batch_per_gpu", **dict.fromkeys(HYBRIDS, "batch_per_group")}
    order = [first.get(strategy, "batch_global"), "batch_global", "batch_per_group"]
    batch = next((known[name] for name in order if known[name] > 0), None)
    if batch is None:
        raise ConfigError(f"{row['cell']}: no batch; fill column {order[0]}")
    return question(strategy, devices, platform.devices_per_node, batch)


def read_published_projections() -> pd.DataFrame:
    """ParaDL's own projections, digitised from its report's figure, by ``cell``."""
    return pd.read_csv(_PUBLISHED / "projected.csv").set_index("cell")


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
