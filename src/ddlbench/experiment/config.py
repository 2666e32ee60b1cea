"""An experiment file: a matrix of cells with settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import check, filled, read_schema
from ddlbench.experiment.own_data import declare
from ddlbench.experiment.paper import Paper, at_scale
from ddlbench.experiment.paths import NAMES_OF_SITES
from ddlbench.experiment.settings import settings, with_settings


@dataclass(frozen=True)
class Experiment:
    """A validated experiment file; see ``config/schemas/experiment.schema.yaml``.

    Args:
        name: folder of its tables and figures.
        site: name of the site it runs on.
        repeats: measurements of each cell.
        matrix: axis -> values; their product makes cells.
        settings: fields of all cells, which the entries below may change.
        strategies: options of each strategy; a list makes a cell for each value.
        overrides: ``{when: {...}, set: {...}}``, applied in order.
        exclude: cells of the product to leave out.
        include: further single cells.
        profile: batch sizes and duration of profiling.
        most_cells: a larger matrix is refused.
        data: datasets of the user's own, which :mod:`ddlbench.experiment.own_data` declares.
        real_data: folders of the user's own data by dataset; they go before the site's.
        predict: the workflow makes predictions by default.
        where: the file's name, for messages.
        paper: the published figure that it is of; None if of no one.
        given: what was set beside the file, as Snakemake's ``--config`` takes it: ``site=mine``.
    """

    name: str
    site: str
    repeats: int
    matrix: dict[str, list[Any]]
    settings: dict[str, Any]
    strategies: dict[str, dict[str, Any]]
    overrides: list[dict[str, dict[str, Any]]]
    exclude: list[dict[str, Any]]
    include: list[dict[str, Any]]
    profile: dict[str, Any]
    predict: bool
    where: str
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    real_data: dict[str, str] = field(default_factory=dict)
    paper: Paper | None = None
    given: tuple[str, ...] = ()
    most_cells: int = 10_000

    def conditions(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every condition on cells, and its place in the file."""
        for number, rule in enumerate(self.overrides):
            yield f"overrides.{number}.when", rule["when"]
        for number, rule in enumerate(self.exclude):
            yield f"exclude.{number}", rule


@cache
def experiment_schema() -> dict[str, Any]:
    """The schema of an experiment file."""
    return with_settings(read_schema("experiment"))


def parse_experiment(config: Mapping[str, Any], where: str = "config") -> Experiment:
    """Validate a configuration and fill its defaults; a published figure's at its scale.

    Raises:
        ConfigError: a key is unknown or missing, its value is not allowed, one group has both
            batch keys, or the name is that of another folder.
    """
    values = at_scale(config, where)
    schema = experiment_schema()
    check(values, schema, where)
    if values["experiment"] in NAMES_OF_SITES:
        raise ConfigError(
            f"{where}: experiment: {values['experiment']!r} is the name of something else in every "
            "site's results; write another one"
        )
    for place, layer in _layers(values):
        if {"batch_size", "batch_per_device"} <= set(layer):
            raise ConfigError(
                f"{where}: {place}: gives batch_size and batch_per_device; keep one of them"
            )
    values = filled(schema, values)
    named = {field.name: values[field.name] for field in fields(Experiment) if field.name in values}
    declare(values["data"], where)
    paper = Paper.from_dict(config["paper"]) if "paper" in config else None
    experiment = Experiment(name=values["experiment"], where=where, paper=paper, **named)
    for place, condition in experiment.conditions():
        _check_condition(condition, f"{where}: {place}")
    return experiment


def _check_condition(condition: Mapping[str, Any], where: str) -> None:
    """Refuse a value that no cell can have: the condition would silently change nothing."""
    for key, wanted in condition.items():
        schema = settings().get(key, _NAME)
        if wanted == []:
            raise ConfigError(f"{where}.{key}: must not be empty; write at least one value")
        for value in wanted if isinstance(wanted, list) else [wanted]:
            check(value, schema, f"{where}.{key}")


_NAME = {"type": "string", "minLength": 1, "description": "a name, or a list of names"}


def _layers(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every group of settings, and its place in the file."""
    yield "settings", values.get("settings", {})
    yield "matrix", values["matrix"]
    for number, rule in enumerate(values.get("overrides", [])):
        yield f"overrides.{number}.set", rule["set"]
    for number, entry in enumerate(values.get("include", [])):
        yield f"include.{number}", entry
