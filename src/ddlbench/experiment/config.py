"""An experiment: which cells it selects, and under which settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import check_against, fill_defaults


@dataclass(frozen=True)
class Experiment:
    """A validated experiment file; see ``config/schemas/experiment.schema.yaml``.

    Args:
        name: folder of its tables and figures.
        site: name of the site it runs on.
        repeats: how often each cell is measured.
        matrix: axis -> values; their product makes cells.
        settings: cell fields that hold for all cells unless something below says otherwise.
        strategies: options a strategy; a list makes one cell a value.
        overrides: ``{when: {...}, set: {...}}``, applied in order.
        exclude: cells of the product to leave out.
        include: further cells, written out by hand.
        profile: at which batch sizes networks are profiled, and for how long.
        predict: predictions are part of what the workflow makes unasked.
        where: the file's name, for messages.

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


def parse_experiment(config: Mapping[str, Any], where: str = "config") -> Experiment:
    """Validate a configuration and fill its defaults.

    Raises:
        ConfigError: a key is unknown, missing, or has a value its schema forbids; or one group
            gives both batch keys.

    """
    values = dict(config)
    check_against("experiment", values, where)
    for place, layer in _layers(values):
        if {"batch_size", "batch_per_device"} <= set(layer):
            raise ConfigError(
                f"{where}: {place}: gives batch_size and batch_per_device; keep one of them"
            )
    values = fill_defaults("experiment", values)
    return Experiment(
        name=values["experiment"],
        site=values["site"],
        repeats=values["repeats"],
        matrix=values["matrix"],
        settings=values["settings"],
        strategies=values["strategies"],
        overrides=values["overrides"],
        exclude=values["exclude"],
        include=values["include"],
        profile=values["profile"],
        predict=values["predict"],
        where=where,
    )


def _layers(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every group of settings that is laid over others, and its place in the file."""
    yield "settings", values.get("settings", {})
    yield "matrix", values["matrix"]
    for number, rule in enumerate(values.get("overrides", [])):
        yield f"overrides.{number}.set", rule["set"]
    for number, entry in enumerate(values.get("include", [])):
        yield f"include.{number}", entry
