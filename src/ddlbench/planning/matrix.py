"""From an experiment to its cells.

::

    settings < axes of the matrix < strategy options < overrides (in order)      -> a point
    point -> cell, its base (the sequential cell of the same settings), or why it cannot run

A combination that the product makes and a strategy cannot run is *unsupported*: a row with a
reason and no job. The same combination written by hand under ``include`` is an error.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from ddlbench.experiment.cell import Cell, parse_geometry
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import known
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.site import Site
from ddlbench.planning.strategy import Strategy, normalise, strategy_of

__all__ = ["MatrixRow", "expand"]

_FIELDS = {field.name for field in fields(Cell)}
_BASE = {"strategy": "sequential", "geometry": "1x1", "fabric": "default"}


@dataclass(frozen=True)
class MatrixRow:
    """One cell of an experiment.

    Args:
        cell: the cell.
        base_id: id of the sequential cell its speed-up is measured against; None where the
            experiment has none.
        unsupported: why it is not run; None when it is.
    """

    cell: Cell
    base_id: str | None
    unsupported: str | None


def expand(experiment: Experiment, site: Site) -> list[MatrixRow]:
    """All cells of an experiment, in the order of its axes, each once.

    Raises:
        ConfigError: a name is unknown, a value is wrong, or a cell written by hand cannot run.
    """
    chosen: dict[str, tuple[Cell, str, str | None]] = {}
    for point in _product(experiment):
        for repeat in range(experiment.repeats):
            cell = _cell(point, repeat, experiment.where)
            reason = _unsupported(cell, site)
            base = _cell(_base_point(experiment, point), repeat, experiment.where)
            chosen.setdefault(cell.id, (cell, base.id, reason))
    for number, entry in enumerate(experiment.include):
        where = f"{experiment.where}: include.{number}"
        point = {**experiment.settings, **_layered(experiment.settings, entry)}
        for repeat in range(experiment.repeats):
            cell = _cell(point, repeat, where)
            reason = _unsupported(cell, site)
            if reason is not None:
                raise ConfigError(f"{where}: {cell.strategy} cannot run this cell: {reason}")
            base = _cell({**point, **_BASE, "options": {}}, repeat, where)
            chosen[cell.id] = (cell, base.id, None)
    if not chosen:
        raise ConfigError(f"{experiment.where}: no cell is left; loosen 'matrix' or 'exclude'")
    return [
        MatrixRow(cell, base_id if base_id in chosen else None, reason)
        for cell, base_id, reason in chosen.values()
    ]


def _product(experiment: Experiment) -> Iterator[dict[str, Any]]:
    axes = {axis: _values(axis, values) for axis, values in experiment.matrix.items()}
    for combination in itertools.product(*axes.values()):
        axis_point = dict(zip(axes, combination, strict=True))
        for options in _option_grid(experiment, axis_point["strategy"]):
            point = _overridden(experiment, {**axis_point, "options": options})
            if not any(_matches(rule, point) for rule in experiment.exclude):
                yield point


def _values(axis: str, values: list[Any]) -> list[Any]:
    return [str(v) if axis in ("dataset", "network", "strategy", "geometry") else v for v in values]


def _option_grid(experiment: Experiment, strategy: str) -> list[dict[str, Any]]:
    options = experiment.strategies.get(strategy, {})
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*lists)]


def _overridden(experiment: Experiment, point: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**experiment.settings, **_layered(experiment.settings, point)}
    for rule in experiment.overrides:
        if _matches(rule["when"], merged):
            merged.update(_layered(merged, rule["set"]))
    return merged


def _layered(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` ready to be laid over ``below``: either batch key replaces the other."""
    layer = dict(above)
    if "batch_size" in above:
        layer["batch_per_device"] = None
    elif "batch_per_device" in above:
        layer["batch_size"] = None
    if "options" in above:
        layer["options"] = {**below.get("options", {}), **above["options"]}
    return layer


def _base_point(experiment: Experiment, point: Mapping[str, Any]) -> dict[str, Any]:
    """What the matrix makes of the same axes when the strategy is the baseline."""
    axes = {axis: point[axis] for axis in experiment.matrix if point.get(axis) is not None}
    return {**_overridden(experiment, {**axes, **_BASE, "options": {}}), **_BASE}


def _matches(rule: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    return all(
        point.get(key) in wanted if isinstance(wanted, list) else point.get(key) == wanted
        for key, wanted in rule.items()
    )


def _cell(point: Mapping[str, Any], repeat: int, where: str) -> Cell:
    for key in ("dataset", "network", "strategy", "geometry"):
        if point.get(key) is None:
            raise ConfigError(f"{where}: {key!r} is missing; give it as an axis of 'matrix'")
    dataset, network, name = point["dataset"], point["network"], point["strategy"]
    if dataset not in DATASETS:
        raise ConfigError(f"{where}: unknown dataset {dataset!r}; {nearest(dataset, DATASETS)}")
    _check_name("ddlbench.networks", network, where)
    _check_name("ddlbench.strategies", name, where)
    strategy = _strategy(name)
    nodes, devices_per_node = parse_geometry(point["geometry"], where)
    batch_size = point.get("batch_size")
    if batch_size is None:
        per_device = point.get("batch_per_device")
        if per_device is None:
            raise ConfigError(f"{where}: give batch_size (of all workers) or batch_per_device")
        batch_size = per_device * (1 if name == "sequential" else nodes * devices_per_node)
    options = strategy.check_options(point.get("options", {}), f"{where}: strategies.{name}")
    own = {key: value for key, value in point.items() if key in _FIELDS and key != "options"}
    own.update(batch_size=batch_size, nodes=nodes, devices_per_node=devices_per_node, repeat=repeat)
    for key in ("data_scale", "learning_rate", "momentum"):
        if key in own:
            own[key] = float(own[key])
    return normalise(Cell(**own, options=tuple(options.items())))


def _unsupported(cell: Cell, site: Site) -> str | None:
    strategy = _strategy(cell.strategy)
    images = DATASETS[cell.dataset].num_images("train", cell.data_scale)
    if images < cell.batch_size and cell.data_source == "synthetic":
        return (
            f"{images} training images are fewer than one mini-batch of {cell.batch_size}; "
            "raise data_scale"
        )
    return strategy.supports(cell) or site.supports(cell) or _missing_package(strategy.requires)


@cache
def _strategy(name: str) -> Strategy:
    return strategy_of(name)


@cache
def _check_name(group: str, name: str, where: str) -> None:
    if name not in known(group) and ":" not in name:
        kind = group.removeprefix("ddlbench.").removesuffix("s").replace("strategie", "strategy")
        raise ConfigError(f"{where}: unknown {kind} {name!r}; {nearest(name, known(group))}")


@cache
def _missing_package(names: tuple[str, ...]) -> str | None:
    """Why a strategy's package is not there; a login node without torch cannot tell."""
    if importlib.util.find_spec("torch") is None:
        return None
    for name in names:
        if importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed in this environment; see envs/README.md"
    return None
