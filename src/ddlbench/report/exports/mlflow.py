"""MLflow: a file store, with an experiment for each of ours and a run for each cell.

A run has the cell's axes, settings and plan as parameters, its numbers as metrics, the duration and
loss of each step as metrics over steps, and the rest as tags. A cell without a measurement is a
run that FAILED. ``mlflow migrate-filestore`` moves the store into a database.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ddlbench import __version__
from ddlbench.common.environment import environment
from ddlbench.report.comparability import NOTE_BREAK
from ddlbench.report.exports.registry import Study, whole_folder
from ddlbench.report.tables import Column
from ddlbench.report.tree_tables import TreeTables, setting_columns

_ALLOW = "MLFLOW_ALLOW_FILE_STORE"
_MOST_METRICS = 1000  # in a call
_MOST_PARAMS = 100
_LONGEST_PARAM = 6000
_LONGEST_TAG = 5000
_LONGEST_NAME = 200
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. ]")
# What a cell is, as the table has it; settings, options and plan are parameters, too.
_PARAMS = (
    "dataset", "network", "strategy", "options", "nodes", "devices_per_node", "geometry",
    "batch_size", "precision", "fabric", "settings", "repeat",
)  # fmt: skip
_OF_STEPS = ("step_s", "load_s", "loss")


def write(tables: TreeTables, out: Path, study: Study) -> str:
    """Write the store whole."""
    with whole_folder(out) as beside, environment(**{_ALLOW: "true"}):
        _Store(beside, out.resolve(), study).write(tables)
    return f"{_ALLOW}=true mlflow ui --backend-store-uri {out}"


class _Store:
    """A store that MLflow's client writes into ``folder``, which is then moved to ``final``."""

    def __init__(self, folder: Path, final: Path, study: Study) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415 - an optional package

        self._folder, self._final, self._study = folder, final, study
        self._client = MlflowClient(tracking_uri=folder.as_uri())
        self._experiments: dict[str, str] = {}

    def write(self, tables: TreeTables) -> None:
        """Write a run for each cell."""
        setting_names = [column.name for column in setting_columns()]
        columns = tables.cells.columns
        names = [column.name for column in columns]
        params = {*_PARAMS, *setting_names}
        params |= {name for name in names if name.startswith(("option_", "plan_"))}
        curves = _curves(tables)
        for row in tables.cells.frame.to_dict("records"):
            key = (row["results"], row["site"], row["cell_id"])
            self._write_run(row, columns, params, curves.get(key, {}))

    def _write_run(
        self,
        row: Mapping[Any, Any],
        columns: Sequence[Column],
        params: set[str],
        curves: Mapping[str, Sequence[float]],
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

        began_ms, ended_ms = _period_ms(row)
        run = self._client.create_run(
            self._experiment(row),
            start_time=began_ms,
            run_name=f"{row['network']} {row['strategy']} {row['geometry']} rep{row['repeat']}",
        )
        metrics: list[Metric] = []
        parameters: list[Param] = []
        tags: dict[str, str] = {}
        for column in columns:
            value = row[column.name]
            if not _is_known(value):
                continue
            name = _NOT_IN_NAMES.sub("_", column.name)[:_LONGEST_NAME]
            if column.name in params:
                parameters.append(Param(name, _text(value)[:_LONGEST_PARAM]))
            elif column.kind in ("integer", "number"):
                metrics.append(Metric(name, float(value), ended_ms, 0))
            else:
                tags[name] = _text(value)[:_LONGEST_TAG]
        for name, values in curves.items():
            metrics += [
                Metric(f"steps.{name}", value, began_ms, step)
                for step, value in enumerate(values)
                if math.isfinite(value)
            ]
        tags |= {
            "mlflow.user": self._study.author,
            "mlflow.source.name": f"ddlbench {__version__}",
            "mlflow.source.git.commit": str(row["commit"]).removesuffix("-dirty"),
        }
        if row["reason"]:
            tags["mlflow.note.content"] = str(row["reason"])[:_LONGEST_TAG]
        run_id = run.info.run_id
        for batch in _batches(metrics, _MOST_METRICS):
            self._client.log_batch(run_id, metrics=batch)
        for batch in _batches(parameters, _MOST_PARAMS):
            self._client.log_batch(run_id, params=batch)
        for batch in _batches([RunTag(*pair) for pair in tags.items()], _MOST_PARAMS):
            self._client.log_batch(run_id, tags=batch)
        status = "FINISHED" if row["status"] == "ok" else "FAILED"
        self._client.set_terminated(run_id, status, end_time=ended_ms)

    def _experiment(self, row: Mapping[Any, Any]) -> str:
        """The id of MLflow's experiment: ours on its site, or all cells of a site."""
        first = str(row["experiment"]).partition(NOTE_BREAK)[0]
        name = "/".join(filter(None, (str(row["site"]) or "unknown site", first)))
        if name not in self._experiments:
            number = len(self._experiments) + 1
            place = (self._final / f"artifacts-{number}").as_uri()
            self._experiments[name] = self._client.create_experiment(name, artifact_location=place)
        return self._experiments[name]


def _curves(tables: TreeTables) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Numbers of the measured steps of each cell, in their order."""
    frame = tables.steps.frame
    measured = frame[~frame["warmup"]]
    keys = ["results", "site", "cell_id"]
    return {
        (str(key[0]), str(key[1]), str(key[2])): {
            name: [float(value) for value in rows[name]] for name in _OF_STEPS
        }
        for key, rows in measured.groupby(keys, sort=False)
    }


def _period_ms(row: Mapping[Any, Any]) -> tuple[int, int]:
    """When a cell began and ended, milliseconds since 1970; of a failure when its file was made."""
    try:
        ended_s = datetime.fromisoformat(str(row["created"])).timestamp()
    except ValueError:
        files = [*Path(row["folder"]).glob("*.json")]
        ended_s = max((file.stat().st_mtime for file in files), default=0.0)
    lasted_s = float(row["elapsed_s"])
    began_s = ended_s - lasted_s if math.isfinite(lasted_s) else ended_s
    return int(began_s * 1e3), int(ended_s * 1e3)


def _is_known(value: Any) -> bool:
    """Whether a field holds something; unknown text is empty, an unknown number is not finite."""
    if isinstance(value, str):
        return bool(value)
    try:
        return math.isfinite(value)
    except TypeError:  # pandas' unknown
        return False


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _batches(entries: list[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(entries), most):
        yield entries[start : start + most]
