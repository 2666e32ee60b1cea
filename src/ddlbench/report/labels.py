"""How figures write names, and what they write in the place of a number that is not there."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import NETWORKS
from ddlbench.experiment.status import Status
from ddlbench.planning.strategy import known_strategy, strategy_of
from ddlbench.report.comparability import forbids_speedup
from ddlbench.report.tables import rows_of

_DEFAULTS = {
    field.name: field.default for field in fields(Cell) if field.name not in ("options", "repeat")
}


def network_label(name: str) -> str:
    """Return the network's own label; of one without an entry its name, without the module."""
    return NETWORKS[name].label if name in NETWORKS else name.rpartition(":")[2]


def dataset_label(name: str) -> str:
    """Return the dataset's own label."""
    return DATASETS[name].label if name in DATASETS else name


def in_dataset_order(names: list[str]) -> list[str]:
    """In the order of ``DATASETS``: from the smallest image to the largest; unknown ones last."""
    order = list(DATASETS)
    return sorted(names, key=lambda n: order.index(n) if n in order else len(order))


def strategy_label(name: str) -> str:
    """Return the strategy's own label; the bare name where its package is missing."""
    strategy = known_strategy(name)
    return name.rpartition(":")[2] if strategy is None else strategy.label


def workers_label(workers: int) -> str:
    """``1 worker``, ``4 workers``."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def variant_labels(summary: pd.DataFrame, without: Collection[str] = ()) -> pd.Series:
    """Say what tells cells of one dataset, network, strategy and geometry apart, if anything.

    A strategy measured with two values of an option (or of any other field) has two variants;
    defaults are written out where another value stands beside them. Fields that a figure shows
    in another way are named in ``without``.
    """
    values = [_values(str(row.configuration)) for row in rows_of(summary)]
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for place, row in enumerate(rows_of(summary)):
        groups.setdefault((row.dataset, row.network, row.strategy, row.geometry), []).append(place)
    differ: dict[str, list[str]] = {}
    for (_, _, strategy, _), places in groups.items():
        known = differ.setdefault(strategy, [])
        for name in dict.fromkeys(key for place in places for key in values[place]):
            if name in without:
                continue
            if len({values[place].get(name) for place in places}) > 1 and name not in known:
                known.append(name)
    texts = [
        ", ".join(
            f"{name} {_readable(values[place].get(name))}" for name in differ[str(row.strategy)]
        )
        for place, row in enumerate(rows_of(summary))
    ]
    return pd.Series(texts, index=summary.index, dtype=object)


def _values(configuration: str) -> dict[str, Any]:
    cell = Cell.from_id(f"{configuration}/rep0")
    placed = ("dataset", "network", "strategy", "nodes", "devices_per_node")
    own = {name: getattr(cell, name) for name in _DEFAULTS if name not in placed}
    try:
        return {**own, **strategy_of(cell.strategy).option_values(cell)}
    except ConfigError:
        return {**own, **dict(cell.options)}


def _readable(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


OUT_OF_MEMORY = "OOM"


def status_mark(status: str) -> str:
    """What a cell of this status shows; empty where it was measured."""
    if status == Status.OK:
        return ""
    return OUT_OF_MEMORY if status == Status.OUT_OF_MEMORY else status


def speedup_mark(row: Any, speedup: float) -> str:
    """What a figure shows in the place of a row's speed-up; empty where there is one."""
    status = str(row.status)
    if status != Status.OK or math.isfinite(speedup):
        return status_mark(status)
    return mark_without_speedup(str(row.notes))


def mark_without_speedup(notes: str) -> str:
    """What a measured cell has in the place of a speed-up."""
    return "unlike base" if forbids_speedup(notes) else "no base"
