"""Tables of measured iterations: read, checked, and turned into questions.

Columns ``model``, ``strategy``, ``gpus``, ``seconds_per_iteration`` and, by strategy,
``batch_per_gpu`` (data), ``batch_per_group`` (hybrids, a group is a node) or ``batch_global``.
Optional: ``cell``, ``campaign``, ``dataset``, ``compute_seconds``, ``comm_seconds``,
``reliability`` (rows whose text does not begin with "ok" are left out of every score).
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import nearest
from ddlbench.predict.paradl.configuration import HYBRIDS, STRATEGIES, Configuration, question
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.workload import load_workload

__all__ = [
    "PUBLISHED_MEASURED",
    "question_of",
    "read_measured",
    "read_published_projections",
    "reliable_rows",
]

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
