"""Tables of measured iterations: read them, score the oracle's projections, fit its constants.

Columns ``model``, ``strategy``, ``gpus``, ``seconds_per_iteration`` and, by strategy,
``batch_per_gpu`` (data), ``batch_per_group`` (hybrids, a group is a node) or ``batch_global``.
Optional: ``cell``, ``campaign``, ``dataset``, ``compute_seconds``, ``comm_seconds``, ends of the
measured interval ``s_per_it_min`` and ``s_per_it_max``, ``reliability`` (rows whose text does not
begin with "ok" are left out of every score).

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
from ddlbench.predict.constants import Fit, fit
from ddlbench.predict.hardware import Platform
from ddlbench.predict.paradl.configuration import (
    HYBRIDS,
    STRATEGIES,
    Configuration,
    configuration_of,
    groups_of,
)
from ddlbench.predict.paradl.oracle import VARIANTS, terms_of
from ddlbench.predict.paradl.workload import Workload, load_workload
from ddlbench.predict.run_tables import (
    ScoreQuestion,
    check_columns,
    numbers_of,
    read_table,
    refuse,
    whole_numbers,
)

REQUIRED = ("model", "strategy", "gpus", "seconds_per_iteration")
NUMBERS = ("seconds_per_iteration", "batch_per_gpu", "batch_per_group", "batch_global",
           "compute_seconds", "comm_seconds", "s_per_it_min", "s_per_it_max")  # fmt: skip
_PUBLISHED = Path(str(files("ddlbench.predict.paradl").joinpath("published")))
PUBLISHED_MEASURED = _PUBLISHED / "measured.csv"


PLATFORM = "abci"
"""That ParaDL measured."""


def measured_rows(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Check a table, and add the optional columns that it lacks.

    Raises:
        ConfigError: a column is missing, or a value is invalid.
    """
    check_columns(table, REQUIRED, where)
    if table.empty:
        raise ConfigError(f"{where} has no row; write at least one iteration")
    rows = table.copy()
    rows["gpus"] = whole_numbers(rows["gpus"], where)
    for name in NUMBERS:
        given = rows[name] if name in rows.columns else pd.Series(math.nan, rows.index, name=name)
        if name in REQUIRED:
            rows[name] = numbers_of(given, where, "a number above 0", lambda n: n > 0)
        else:
            write = "a number of 0 or more, or nothing"
            rows[name] = numbers_of(given, where, write, lambda n: n >= 0, may_lack=True)
    names = rows["strategy"]
    refuse(~names.isin(STRATEGIES), names, where, "unknown strategy {!r}; {}", STRATEGIES)
    for name, usual in (("campaign", "report"), ("dataset", ""), ("reliability", "ok")):
        rows[name] = rows[name].fillna(usual) if name in rows.columns else usual
    if "cell" not in rows.columns:
        rows["cell"] = [f"{row.model}/{row.strategy}/p{row.gpus:g}" for row in rows.itertuples()]
    for line, row in enumerate(rows.to_dict("records"), start=2):
        try:
            _workload(row)
        except ConfigError as error:
            raise ConfigError(f"{where} line {line}: {error}") from None
    return rows


def reliable_rows(path: Path, campaign: str) -> pd.DataFrame:
    """Reliable rows of one campaign.

    Raises:
        ConfigError: as :func:`measured_rows`, or there is no such row.
    """
    rows = measured_rows(read_table(path, REQUIRED), str(path))
    reliable = rows[(rows["campaign"] == campaign) & _is_reliable(rows)]
    if reliable.empty:
        known = ", ".join(rows["campaign"].unique())
        raise ConfigError(f"{path}: no reliable row of campaign {campaign!r}; it has: {known}")
    return reliable


def _is_reliable(rows: pd.DataFrame) -> pd.Series[bool]:
    return rows["reliability"].str.lower().str.startswith("ok")


def _workload(row: dict[Any, Any]) -> Workload:
    return load_workload(str(row["model"]), str(row["dataset"]))


def question_of(row: dict[Any, Any], platform: Platform) -> Configuration:
    """The configuration that a row of :func:`measured_rows` measured.

    Raises:
        ConfigError: the batch column of its strategy is empty.
    """
    strategy, devices = row["strategy"], int(row["gpus"])
    groups = groups_of(strategy, devices, platform.devices_per_node)
    column = "batch_per_group" if strategy in HYBRIDS else "batch_global"
    column = "batch_per_gpu" if strategy == "data" else column
    batches = (row[column] * groups, row["batch_global"], row["batch_per_group"] * groups)
    batch = next((batch for batch in batches if batch > 0), None)
    if batch is None:
        raise ConfigError(f"{row['cell']}: no batch; fill column {column}")
    return configuration_of(strategy, devices, platform.devices_per_node, batch)


def read_published_projections() -> pd.DataFrame:
    """ParaDL's own projections by ``cell``, digitised from the figure of its report."""
    return pd.read_csv(_PUBLISHED / "projected.csv").set_index("cell")


MAIN_CAMPAIGN = "report"
PARTS = {"iteration": "seconds_per_iteration", "compute": "compute_seconds",
         "communication": "comm_seconds"}  # fmt: skip


def projected(rows: pd.DataFrame, platform: Platform, predictor: str) -> pd.DataFrame:
    """Projected seconds ``iteration``, ``compute`` and ``communication`` of each row, or NaN.

    Raises:
        ConfigError: unknown predictor, or a row without a batch.
    """
    if predictor in VARIANTS:
        return _of_variant(rows, platform, predictor)
    if predictor not in BASELINES:
        known = (*VARIANTS, *BASELINES)
        raise ConfigError(f"unknown predictor {predictor!r}; {nearest(predictor, known)}")
    return BASELINES[predictor](rows, platform)


def _of_variant(rows: pd.DataFrame, platform: Platform, variant: str) -> pd.DataFrame:
    seconds = []
    for row in rows.to_dict("records"):
        if row["strategy"] not in VARIANTS[variant].terms:
            seconds.append((math.nan,) * len(PARTS))
            continue
        terms = terms_of(variant, _workload(row), platform, question_of(row, platform))
        compute_s, communication_s = (sum(each.values()) for each in terms)
        seconds.append((compute_s + communication_s, compute_s, communication_s))
    return pd.DataFrame(seconds, columns=list(PARTS), index=rows.index, dtype=float)


def _computation_only(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """The time of the samples divided by the number of devices; no communication."""
    times = []
    for row in rows.to_dict("records"):
        config = question_of(row, platform)
        times.append(config.batch * _workload(row).time_s / config.devices)
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


def _published_projections(rows: pd.DataFrame, _: Platform) -> pd.DataFrame:
    published = read_published_projections().reindex(rows["cell"])[list(PARTS.values())]
    published = published.set_axis(list(PARTS), axis=1).set_axis(rows.index, axis=0)
    published[rows["campaign"] != MAIN_CAMPAIGN] = math.nan
    return published


BASELINES = {
    "computation-only": _computation_only,
    "carry-forward": _carry_forward,
    "paradl-projected": _published_projections,
}


def as_predictions(rows: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """Runs as :func:`ddlbench.predict.accuracy.anomalies` reads them."""
    projections = projected(rows, platform, "corrected")
    return pd.DataFrame(
        {
            "run": rows["cell"],
            "measured_s": rows["seconds_per_iteration"],
            "low_s": rows["s_per_it_min"],
            "high_s": rows["s_per_it_max"],
            "projected_s": projections["iteration"],
            "measured_compute_s": rows["compute_seconds"],
            "projected_compute_s": projections["compute"],
            "measured_communication_s": rows["comm_seconds"],
            "projected_communication_s": projections["communication"],
        }
    )


def mean_accuracy(
    rows: pd.DataFrame, projections: pd.DataFrame, part: str = "iteration"
) -> float | None:
    """Mean over strategies of the mean over their cells; None if no cell can be compared."""
    means = accuracy(rows, projections, part).groupby(rows["strategy"]).mean().dropna()
    return float(means.mean()) if len(means) else None


def accuracy(
    rows: pd.DataFrame, projections: pd.DataFrame, part: str = "iteration"
) -> pd.Series[float]:
    """Accuracy of each row; NaN where it cannot be compared."""
    measured = rows[PARTS[part]]
    return 1 - (projections.loc[rows.index, part] - measured).abs() / measured


def score(table: pd.DataFrame, question: ScoreQuestion) -> dict[str, Any]:
    """Accuracies of projected iterations, as JSON values.

    Raises:
        ConfigError: the predictor is unknown, a value is wrong, or no row is reliable.
    """
    if question.hold_out != "none" or question.kind:
        raise ConfigError(
            "--hold-out and --kind are of runs of transformers, of MLPerf and of collectives; "
            "networks are held out by `ddlbench calibrate --hold-out network`"
        )
    rows, predictor = measured_rows(table, question.where), question.predictor
    platform = Platform.load(question.platform or PLATFORM)
    reliable = _is_reliable(rows)
    counted = rows[reliable]
    if counted.empty:
        raise ConfigError("no row to score: none has a reliability that begins with 'ok'")
    projections = projected(counted, platform, predictor)
    campaigns = {
        str(name): _campaign(group, projections, platform)
        for name, group in counted.groupby("campaign", sort=False)
    }
    main = MAIN_CAMPAIGN if MAIN_CAMPAIGN in campaigns else next(iter(campaigns))
    return {
        "rows": len(counted),
        "predictor": predictor,
        "platform": platform.description,
        "campaign": main,
        **campaigns.pop(main),
        "campaigns": campaigns,
        "cells": _cells(counted, projections),
        "left_out": [
            {"cell": row["cell"], "why": row["reliability"]}
            for row in rows[~reliable].to_dict("records")
        ],
    }


def _campaign(rows: pd.DataFrame, projections: pd.DataFrame, platform: Platform) -> dict[str, Any]:
    return {
        "mean_accuracy": mean_accuracy(rows, projections),
        "cells_scored": int(accuracy(rows, projections).count()),
        **_parts(rows, projections),
        "strategies": _groups(rows, projections, "strategy"),
        "networks": _groups(rows, projections, "model"),
        "baselines": {
            name: mean_accuracy(rows, baseline(rows, platform))
            for name, baseline in BASELINES.items()
        },
    }


def _parts(rows: pd.DataFrame, projections: pd.DataFrame) -> dict[str, float | None]:
    return {
        f"{part}_accuracy": mean_accuracy(rows, projections, part)
        for part in ("compute", "communication")
    }


def _groups(rows: pd.DataFrame, projections: pd.DataFrame, column: str) -> dict[str, Any]:
    return {
        str(name): {
            "accuracy": mean_accuracy(group, projections),
            **_parts(group, projections),
            "worst_cell_accuracy": _number(accuracy(group, projections).min()),
            "cells": int(accuracy(group, projections).count()),
        }
        for name, group in rows.groupby(column, sort=False)
    }


def _cells(rows: pd.DataFrame, projections: pd.DataFrame) -> list[dict[str, Any]]:
    table = pd.DataFrame(
        {
            "measured_s": rows["seconds_per_iteration"],
            "projected_s": projections["iteration"],
            "projected_compute_s": projections["compute"],
            "projected_communication_s": projections["communication"],
            "accuracy": accuracy(rows, projections),
        }
    )
    return [
        {"cell": cell, "campaign": campaign, **{str(name): _number(row[name]) for name in row}}
        for cell, campaign, row in zip(
            rows["cell"], rows["campaign"], table.to_dict("records"), strict=True
        )
    ]


def _number(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


FITTED = "corrected"
"""The variant whose constants are fitted."""
SOFT = 0.1
PULL = 0.2
"""A constant at a factor of e from its prior costs as much as an error of 20 %."""
SMALL = 16
"""The hold-out by size fits rows of up to so many devices."""
HOLD_OUTS = ("network", "size")


def calibrate(rows: pd.DataFrame, platform: Platform) -> Fit:
    """Fit every constant of the platform to whole iterations.

    Raises:
        ConfigError: there are fewer rows than constants.
    """
    return fit(
        platform,
        lambda tried: projected(rows, tried, FITTED)["iteration"].to_numpy(),
        rows["seconds_per_iteration"].to_numpy(dtype=float),
        soft=SOFT,
        pull=PULL,
        soft_pull=True,
    )


def hold_out(rows: pd.DataFrame, platform: Platform, by: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The held-out rows, and their projection with constants fitted to the other rows.

    ``by`` is "network" (each network in turn is held out) or "size" (rows of more than ``SMALL``
    devices are held out).

    Raises:
        ConfigError: no row is left to fit, or none is held out.
    """
    held_out = [rows["gpus"] > SMALL]
    if by == "network":
        held_out = [rows["model"] == name for name in rows["model"].unique()]
    parts = []
    for tested in held_out:
        if not tested.any() or tested.all():
            missing = "fit" if tested.all() else "try the constants on"
            raise ConfigError(f"--hold-out {by}: nothing is left to {missing}")
        constants = calibrate(rows[~tested], platform).constants
        parts.append(projected(rows[tested], platform.with_constants(constants), FITTED))
    projections = pd.concat(parts)
    return rows.loc[projections.index], projections
