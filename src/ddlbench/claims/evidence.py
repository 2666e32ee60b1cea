"""Tidy rows on which claims are tested: one row a configuration, or a configuration and predictor.

::

    summary.csv of every experiment of a site     -> kind speed
    predictions.json of the same                  -> kind prediction
    kept tables (a study's cells.csv, speedup.csv, latency.csv ...)  -> either, by their columns

Every metric has ``<metric>_low`` and ``<metric>_high``, empty where there is no interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS

METRICS = ("speedup", "efficiency", "samples_per_s", "step_s", "absolute_error", "signed_error")
KEYS = (
    "kind", "site", "here", "dataset", "network", "strategy", "predictor", "geometry", "nodes",
    "devices", "workers", "batch_size", "chunks", "micro_batch", "fabric", "latency_ms",
    "bandwidth_mbit_per_s", "loss_percent", "status",
)  # fmt: skip
COLUMNS = (*KEYS, *(f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")))
_RATES = {"": "measured_step_s", "_low": "measured_high_s", "_high": "measured_low_s"}
"""Ends of a rate's interval, and the ends of the step that they come from."""
_CHUNKS = re.compile(r"chunks=(\d+)")


def rows_of_site(site: str, here: str, results: Path = RESULTS) -> pd.DataFrame:
    """All rows of a site's experiments.

    Args:
        site: its name.
        here: what kind of devices and links it has, for verdicts.
        results: the folder that holds ``<site>/``.
    """
    tables = sorted((results / site).glob("*/tables/summary.csv"))
    predicted = sorted((results / site).glob("*/predictions.json"))
    frames = [_of_summary(pd.read_csv(path)) for path in tables]
    frames += [_of_predictions(_predictions(path)) for path in predicted]
    return _together(frames).assign(site=site, here=here)


def rows_of_tables(paths: Iterable[Path], here: str) -> pd.DataFrame:
    """Rows of kept tables.

    Args:
        paths: CSV files: summaries, figures' tables, or cells.csv of studies.
        here: what kind of devices and links they were measured on.

    Raises:
        ConfigError: a table has none of the columns that tell a speed or a prediction.
    """
    frames = []
    for path in paths:
        table = pd.read_csv(path)
        if "predicted_step_s" in table.columns:
            frames += [_of_predictions(table), _of_cells(table)]
        elif {"speedup", "samples_per_s"} & set(table.columns):
            frames.append(_of_summary(table))
        else:
            raise ConfigError(
                f"{path}: neither speedup, samples_per_s nor predicted_step_s is a column; write "
                "a summary, a figure's table or a study's cells.csv"
            )
    return _together(frames).assign(here=here)


def _together(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = pd.concat(filled, ignore_index=True).reindex(columns=list(COLUMNS))
    devices = pd.to_numeric(rows["workers"], errors="coerce").fillna(rows["devices"])
    for end in ("", "_low", "_high"):
        rows[f"efficiency{end}"] = pd.to_numeric(rows[f"speedup{end}"]) / devices
    return rows


def _predictions(path: Path) -> pd.DataFrame:
    from ddlbench.predict.accuracy import read_predictions  # noqa: PLC0415 - slow to import

    return read_predictions(path)


def _of_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of kind ``speed``; published rows of a figure's table are left out."""
    own = table
    for source in ("source", "where"):
        if source in own.columns:
            told = own[source].fillna("").astype(str)
            own = own[told.isin(["", "measured here"])]
    made = _keys(own).assign(kind="speed")
    names = {
        "speedup": ("speedup_low", "speedup_high"),
        "samples_per_s": ("samples_per_s_low", "samples_per_s_high"),
        "step_s": ("step_low_s", "step_high_s"),
    }
    kept = {"samples_low": "samples_per_s_low", "samples_high": "samples_per_s_high",
            "step_median_s": "step_s"}  # fmt: skip
    renamed = own.rename(columns={key: name for key, name in kept.items() if key in own.columns})
    for metric, (low, high) in names.items():
        for column, source in ((metric, metric), (f"{metric}_low", low), (f"{metric}_high", high)):
            made[column] = _numbers(renamed, source)
    return made


def _of_cells(table: pd.DataFrame) -> pd.DataFrame:
    """The measured steps of a study's cells.csv, each cell once, as samples a second."""
    if "measured_step_s" not in table.columns:
        return pd.DataFrame()
    own = table.drop_duplicates("cell_id" if "cell_id" in table.columns else None)
    made = _keys(own).assign(kind="speed", status="ok")
    batch = pd.to_numeric(made["batch_size"], errors="coerce")
    for metric, source in _RATES.items():
        made[f"samples_per_s{metric}"] = batch / _numbers(own, source)
    made["step_s"] = _numbers(own, "measured_step_s")
    return _with_speedups(made)


def _with_speedups(made: pd.DataFrame) -> pd.DataFrame:
    """Speed-ups over the sequential cell of the same network, dataset and batch."""
    keys = ["dataset", "network", "batch_size"]
    base = made[made["strategy"] == "sequential"].drop_duplicates(keys).set_index(keys)
    alone = pd.MultiIndex.from_frame(made[keys]).map(base["samples_per_s"].to_dict())
    for end in ("", "_low", "_high"):
        made[f"speedup{end}"] = made[f"samples_per_s{end}"] / pd.to_numeric(
            pd.Series(list(alone), index=made.index), errors="coerce"
        )
    return made


def _of_predictions(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of kind ``prediction``; the interval is that of the measured step."""
    own = table[table["predicted_step_s"].notna() & table["measured_step_s"].notna()]
    made = _keys(own).assign(kind="prediction", status="ok")
    predicted = _numbers(own, "predicted_step_s")
    for end, source in _RATES.items():
        made[f"signed_error{end}"] = predicted / _numbers(own, source) - 1
    made["absolute_error"] = made["signed_error"].abs()
    ends = made[["signed_error_low", "signed_error_high"]]
    crosses = (ends["signed_error_low"] <= 0) & (ends["signed_error_high"] >= 0)
    made["absolute_error_low"] = ends.abs().min(axis=1).mask(crosses, 0.0)
    made["absolute_error_high"] = ends.abs().max(axis=1)
    return made


def _keys(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of :data:`KEYS`, as far as a table tells them."""
    made = pd.DataFrame(index=table.index)
    for name in KEYS:
        made[name] = table[name] if name in table.columns else None
    told = table["cell_id"] if "cell_id" in table.columns else table.get("configuration")
    if told is not None:
        made["batch_size"] = made["batch_size"].fillna(told.map(_batch_of))
        made["chunks"] = told.map(_chunks_of)
    if "options" in table.columns:
        made["chunks"] = made["chunks"].fillna(table["options"].map(_chunks_of))
    if made["geometry"].isna().all() and {"nodes", "devices_per_node"} <= set(table.columns):
        made["geometry"] = table["nodes"].astype(str) + "x" + table["devices_per_node"].astype(str)
    sizes = made["geometry"].astype(str).str.extract(r"(\d+)x(\d+)").astype(float)
    made["nodes"] = sizes[0]
    made["devices"] = sizes[0] * sizes[1]
    made["micro_batch"] = pd.to_numeric(made["batch_size"], errors="coerce") / pd.to_numeric(
        made["chunks"], errors="coerce"
    )
    made["latency_ms"] = _numbers(table, "link_latency_s") * 1e3
    made["bandwidth_mbit_per_s"] = _numbers(table, "link_bits_per_s") / 1e6
    made["loss_percent"] = _numbers(table, "link_loss") * 100
    made["status"] = made["status"].fillna("ok")
    if "mark" in table.columns:
        marks = table["mark"].fillna("").astype(str)
        made["status"] = made["status"].where(marks == "", marks)
    return made


def _numbers(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table.columns:
        return pd.Series(float("nan"), index=table.index)
    return pd.to_numeric(table[name], errors="coerce")


def _chunks_of(text: Any) -> float | None:
    found = _CHUNKS.search(str(text))
    return float(found[1]) if found else None


def _batch_of(text: Any) -> float | None:
    found = re.search(r"batch_size=(\d+)", str(text))
    return float(found[1]) if found else None
