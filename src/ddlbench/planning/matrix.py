"""Expands an experiment into its cells.

::

    settings < axes of the matrix < strategy options < overrides (in order)      -> a point
    point -> cell, its base (the sequential cell of the same axes), or why it cannot run

If a strategy cannot run a combination of the product, the cell is *unsupported*: a row with a
reason and no job. The same combination under ``include``, written by hand, is an error. A cell is
unsupported, too, if its profile shows that a stage is too large for its device. A pipeline of a
network that is not built in is cut by its profile, unless its balance is written.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.quantities import counted
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import NAMED, Cell, parse_geometry
from ddlbench.experiment.config import Experiment, each, parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS, format_problem
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.paths import profile_file
from ddlbench.experiment.profile import ProfileKey
from ddlbench.experiment.registry import BASE, known, mismatch, unknown
from ddlbench.experiment.site import Accelerator, Site, load_site
from ddlbench.experiment.status import Reason
from ddlbench.planning.memory import why_cell_too_large
from ddlbench.planning.strategy import (
    Strategy,
    check_label,
    cut_by_profile,
    known_strategy,
    normalise,
    strategy_of,
    too_few_steps,
    why_not_compiled,
    why_not_supported,
)

_FIELDS = {field.name for field in fields(Cell)}
_DEFAULTS = {field.name: field.default for field in fields(Cell) if field.default is not MISSING}


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One cell of an experiment.

    Args:
        cell: the cell.
        base_id: id of the sequential cell that is the base of its speed-up; None if the
            experiment has none.
        unsupported: why it is not run; None if it is.
        condition: of its links, if the site emulates its fabric.
        accelerator: that the site emulates.
    """

    cell: Cell
    base_id: str | None
    unsupported: str | None
    condition: LinkCondition | None = None
    accelerator: Accelerator | None = None

    @property
    def strategy(self) -> Strategy:
        """The descriptor of the cell's strategy, on the site's devices."""
        return known_strategy(self.cell.strategy, self.accelerator)


def matrix_of(
    config: Mapping[str, Any], where: str = "the configuration"
) -> tuple[Experiment, Site, list[MatrixRow]]:
    """The experiment of a configuration, its site and its cells.

    Raises:
        ConfigError: something in the configuration is wrong; ``where`` names it.
    """
    experiment = parse_experiment(config, where)
    site = load_site(experiment.site, real_data=experiment.real_data)
    return experiment, site, expand(experiment, site)


def expand(experiment: Experiment, site: Site) -> list[MatrixRow]:
    """All cells of an experiment, in the order of its axes, each once.

    Raises:
        ConfigError: a name is unknown, a value is wrong, or a cell written by hand cannot run.
    """
    _check_size(experiment)
    _check_names(experiment)
    _check_fabrics(experiment, site)
    _check_options(experiment)
    chosen: dict[str, MatrixRow] = {}
    too_large = _memory_check(site)

    def choose(cell: Cell, base: Cell | None, reason: str | None) -> None:
        """Add the repeats of a cell; one that is there already keeps its place and its base."""
        for repeat in range(experiment.repeats):
            again = cell.again(repeat)
            # Many cells have one base; interned they share its text.
            base_id = sys.intern(base.again(repeat).id) if base else None
            condition = site.fabrics.get(cell.fabric)
            row = MatrixRow(again, base_id, reason, condition, site.accelerator)
            chosen.setdefault(again.id, row)

    for point, base_point in _product(experiment):
        cell = _cell(point, experiment.where, site.accelerator)
        base = _base(base_point, experiment.where)
        reason = why_unsupported(cell, site) or too_large(cell)
        choose(cell, base, reason)
    for number, entry in enumerate(experiment.include):
        where = f"{experiment.where}: include.{number}"
        point = {**experiment.settings, **_layered(experiment.settings, entry)}
        cell = _cell(point, where, site.accelerator)
        reason = why_unsupported(cell, site)
        if reason is not None:
            raise ConfigError(f"{where}: {cell.strategy} cannot run this cell: {reason}")
        # What only a profile tells is no error of who wrote the entry.
        choose(cell, _base(point, where), too_large(cell))
    if not chosen:
        raise ConfigError(f"{experiment.where}: no cell is left; loosen 'matrix' or 'exclude'")
    return [row if row.base_id in chosen else replace(row, base_id=None) for row in chosen.values()]


def cell_of(cell_id: str, site: Site) -> Cell:
    """Reads a cell from its path.

    Raises:
        ConfigError: there is no such cell, or it cannot run.
    """
    cell = Cell.from_id(cell_id)
    DATASETS.check(cell.dataset, cell_id)
    check_name("ddlbench.networks", cell.network, cell_id)
    check_name("ddlbench.strategies", cell.strategy, cell_id)
    options = strategy_of(cell.strategy).check_options(dict(cell.options), cell_id)
    written = normalise(cell.with_(options=tuple(options.items())))
    if written != cell:
        raise ConfigError(f"{cell_id!r} is not how this cell is written: use {written.id!r}")
    reason = why_unsupported(cell, site)
    if reason is not None:
        raise ConfigError(f"{cell_id}: {cell.strategy} cannot run this cell: {reason}")
    return cell


def _product(experiment: Experiment) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    axes = {
        axis: [str(value) if axis in NAMED else value for value in values]
        for axis, values in experiment.matrix.items()
    }
    for combination in itertools.product(*axes.values()):
        axis_point = dict(zip(axes, combination, strict=True))
        base_point = _overridden(experiment, {**axis_point, "strategy": BASE})
        for options in _option_grid(experiment, axis_point["strategy"]):
            point = _overridden(experiment, {**axis_point, "options": options})
            if not any(_matches(rule, point) for rule in experiment.exclude):
                yield point, base_point


def written_points(experiment: Experiment, axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings, options and overrides of an experiment at one point, in the matrix or beside it.

    Several if the experiment lists several values of an option.

    ``axes`` hold dataset, network, strategy, geometry, batch_size, and further axes of the point.
    """
    grid = _option_grid(experiment, axes["strategy"])
    return [_overridden(experiment, {**axes, "options": options}) for options in grid]


def _option_grid(experiment: Experiment, strategy: str) -> list[dict[str, Any]]:
    options = experiment.strategies.get(strategy, {})
    lists = [each(value) for value in options.values()]
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*lists)]


def _overridden(experiment: Experiment, point: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**experiment.settings, **_layered(experiment.settings, point)}
    for rule in experiment.overrides:
        if _matches(rule.when, merged):
            merged.update(_layered(merged, rule.set))
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


def _matches(rule: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    effective = {**_DEFAULTS, **point}
    return all(effective.get(key) in each(wanted) for key, wanted in rule.items())


def _check_names(experiment: Experiment) -> None:
    """Refuses unknown names; a rule with a misspelt name would silently change nothing."""
    for name in experiment.strategies:
        check_name("ddlbench.strategies", name, f"{experiment.where}: strategies")
    for place, rule in (("matrix", experiment.matrix), *experiment.conditions()):
        for key, wanted in rule.items():
            where = f"{experiment.where}: {place}.{key}"
            for value in each(wanted):
                if key == "dataset":
                    DATASETS.check(value, where)
                elif key == "network":
                    check_name("ddlbench.networks", value, where)
                elif key == "strategy":
                    check_name("ddlbench.strategies", value, where)
                elif key == "geometry":
                    parse_geometry(value, where)


def _check_fabrics(experiment: Experiment, site: Site) -> None:
    """Refuses a condition on a fabric that neither the site nor a cell of the experiment has."""
    written = [each(layer.get("fabric", [])) for _, layer in experiment.layers()]
    fabrics = site.known_fabrics.union(*written)
    for place, rule in experiment.conditions():
        for name in each(rule.get("fabric", [])):
            if name not in fabrics:
                raise ConfigError(
                    f"{experiment.where}: {place}.fabric: unknown fabric {shown(name)}; "
                    f"{nearest(name, fabrics)}"
                )


def _check_options(experiment: Experiment) -> None:
    for name, options in experiment.strategies.items():
        _check_options_of(name, options, experiment.where)
    for number, rule in enumerate(experiment.overrides):
        for name in each(rule.when.get("strategy", [])):
            place = f"{experiment.where}: overrides.{number}.set"
            _check_options_of(name, rule.set.get("options", {}), place)


def _check_options_of(name: str, options: Mapping[str, Any], where: str) -> None:
    strategy = known_strategy(name)  # a cell of a package that is not here is refused by itself
    for option, values in options.items():
        for value in each(values):
            strategy.check_options({option: value}, f"{where}: options of {name}")


def _check_size(experiment: Experiment) -> None:
    """Refuses a matrix that nobody means, before it is expanded."""
    grids = {
        name: math.prod(len(each(value)) for value in options.values())
        for name, options in experiment.strategies.items()
    }
    points = sum(grids.get(str(name), 1) for name in experiment.matrix["strategy"])
    for axis, values in experiment.matrix.items():
        points *= 1 if axis == "strategy" else len(values)
    count = experiment.repeats * (points + len(experiment.include))
    if count > experiment.most_cells:
        raise ConfigError(
            f"{experiment.where}: the matrix has up to {count:,} cells with its repeats, more than "
            f"{experiment.most_cells:,}; shorten it, or write most_cells: {count}"
        )


def _cell(point: Mapping[str, Any], where: str, accelerator: Accelerator | None = None) -> Cell:
    for key in NAMED:
        if point.get(key) is None:
            raise ConfigError(f"{where}: {key!r} is missing; give it as an axis of 'matrix'")
    dataset, network, name = point["dataset"], point["network"], point["strategy"]
    DATASETS.check(dataset, where)
    check_name("ddlbench.networks", network, where)
    check_name("ddlbench.strategies", name, where)
    try:
        strategy = strategy_of(name, accelerator)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    nodes, devices_per_node = parse_geometry(point["geometry"], where)
    options = strategy.check_options(point.get("options", {}), f"{where}: options of {name}")
    batch_size = point.get("batch_size")
    if batch_size is None:
        per_device = point.get("batch_per_device")
        if per_device is None:
            raise ConfigError(
                f"{where}: no batch for {dataset} with {name}; write settings: batch_size (samples "
                "a step of all workers) or batch_per_device"
            )
        workers = strategy.workers(nodes * devices_per_node, options)
        batch_size = per_device * (1 if name == BASE else workers)
    settings = {key: value for key, value in point.items() if key in _FIELDS and key != "options"}
    settings.update(batch_size=batch_size, nodes=nodes, devices_per_node=devices_per_node)
    try:
        cell = normalise(Cell(**settings, options=tuple(options.items())))
        return cut_by_profile(cell, strategy, point.get("options", {}))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _base(point: Mapping[str, Any], where: str) -> Cell | None:
    """The sequential cell of a point; None where the baseline has no batch of its own."""
    if point.get("batch_size") is None and point.get("batch_per_device") is None:
        return None
    return _cell({**point, "strategy": BASE, "options": {}}, where)


def why_unsupported(cell: Cell, site: Site) -> str | None:
    """Why a cell cannot run at a site, as far as is known before it runs; None if it can."""
    strategy = strategy_of(cell.strategy, site.accelerator)
    dataset = DATASETS[cell.dataset]
    images = dataset.num_images("train", cell.data_scale)
    known = cell.data_source == "synthetic" or bool(dataset.source)
    if images < cell.batch_size and known:
        return Reason(
            "too_few_images",
            f"a mini-batch of {cell.batch_size} is more than "
            f"{counted(images, 'training image')}; {more_images_or_fewer(cell)}",
        )
    few = too_few_steps(cell, strategy, images // cell.batch_size)
    if few is not None and known:
        return few
    if (reason := mismatch(cell.network, cell.dataset)) is not None:
        return reason
    if (problem := format_problem(dataset, cell.data_format)) is not None:
        return Reason(
            "no_such_format", f"dataset {cell.dataset}: {problem}; write data_format: native"
        )
    if site.accelerator is not None and strategy.splits_layers:
        return Reason(
            "layers_not_emulated",
            "an emulated accelerator knows times of whole blocks, not of parts of a layer",
        )
    return (
        site.why_too_small(cell)  # first: no batch or option mends it
        or why_not_supported(cell, strategy)
        or why_not_compiled(cell, strategy)
        or site.supports(cell)
        or why_missing(strategy)
    )


def more_images_or_fewer(cell: Cell) -> str:
    """What to write where a cell's dataset has fewer images than its mini-batch."""
    lower = "lower batch_size (of all devices) or batch_per_device"
    return f"raise data_scale, or {lower}" if cell.data_scale < 1 else lower


def why_missing(strategy: Strategy) -> str | None:
    """Why a package that the strategy imports is missing; None if all are there, or no torch is."""
    return _missing_package(strategy.requires, strategy.install)


def _memory_check(site: Site) -> Callable[[Cell], str | None]:
    """A function that tells why a stage of a cell cannot fit its device, given a profile."""

    @cache
    def profiled(key: ProfileKey) -> bool:
        return profile_file(site.name, key.id).is_file()

    return lambda cell: why_cell_too_large(cell, site) if profiled(ProfileKey.of(cell)) else None


@cache
def check_name(group: str, name: str, where: str) -> None:
    """Raises ConfigError unless ``name`` is registered, or names an attribute of a module."""
    if name not in known(group) and ":" not in name:
        if group == "ddlbench.strategies":
            check_label(name)
        raise ConfigError(f"{where}: {unknown(group, name, known(group))}")


@cache
def _missing_package(names: tuple[str, ...], install: str) -> str | None:
    """Why a strategy's package is missing; None if there is no torch (a login node)."""
    if importlib.util.find_spec("torch") is None:
        return None
    for name in names:
        if importlib.util.find_spec(name) is None:
            # Set-up leaves a sentence beside the environment when it could not build a package.
            path = Path(sys.prefix) / f"{name}-missing.txt"
            reason = f" ({path.read_text('utf-8').strip()})" if path.is_file() else ""
            return Reason(
                "package_missing", f"the package {name} is not installed here{reason}; {install}"
            )
    return None
