"""config/README.md explains every key, with the default that the code has."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ddlbench.common.schema import file_schema
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import ExperimentKeys, parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.registry import NETWORKS, SHIPPED_STRATEGIES
from ddlbench.experiment.site import Site, load_site, site_schema
from ddlbench.planning.matrix import expand
from ddlbench.planning.strategy import strategy_of

CONFIG = project_root() / "config"
README = (CONFIG / "README.md").read_text("utf-8")
SCHEMAS = {"experiment": file_schema(ExperimentKeys), "site": site_schema()}
KEYWORDS = set(Draft202012Validator.VALIDATORS) | {"description", "default"}


def _properties(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every property of a schema, however deep, with its place."""
    if isinstance(schema, dict):
        for key, value in schema.get("properties", {}).items():
            yield f"{place}.{key}", value
        for key, value in schema.items():
            yield from _properties(value, f"{place}.{key}")


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a schema."""
    if not isinstance(schema, dict):
        return
    yield schema
    for value in schema.get("properties", {}).values():
        yield from _schemas(value)
    for key in ("items", "additionalProperties", "propertyNames"):
        yield from _schemas(schema.get(key))


ALL = [
    pytest.param(place, schema, id=place)
    for name, root in SCHEMAS.items()
    for place, schema in _properties(root, name)
]


@pytest.mark.parametrize(("place", "schema"), ALL)
def test_every_property_has_a_description(place: str, schema: dict[str, Any]) -> None:
    assert schema.get("description"), place


@pytest.mark.parametrize(("place", "schema"), ALL)
def test_every_property_is_explained(place: str, schema: dict[str, Any]) -> None:
    key = place.rsplit(".", maxsplit=1)[-1]
    assert re.search(rf"[`{{ ](\w+: )?{key}[`:]", README), key


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_hold_nothing_but_keywords(name: str) -> None:
    """A comma in an unquoted description makes a stray key and cuts the description short."""
    Draft202012Validator.check_schema(SCHEMAS[name])
    for schema in _schemas(SCHEMAS[name]):
        assert set(schema) <= KEYWORDS, set(schema) - KEYWORDS


def _row(key: str) -> list[str]:
    """The cells of the table row that explains a key."""
    line = next(
        line for line in README.splitlines() if re.match(rf"\|[^|]*`(\w+: )?{key}` \|", line)
    )
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def _shown(value: object) -> str:
    if value is None or value == "":
        return "empty"
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    return f"`{text or (f'{value:g}' if isinstance(value, float) else value)}`"


def test_defaults_of_settings() -> None:
    for field in dataclasses.fields(Cell):
        if field.name in SCHEMAS["experiment"]["properties"]["settings"]["properties"]:
            wanted = {"batch_size": "none", "options": "`{}`"}.get(field.name)
            assert _row(field.name)[2] == (wanted or _shown(field.default)), field.name


def test_settings_are_the_fields_of_a_cell() -> None:
    properties = SCHEMAS["experiment"]["properties"]
    settings = set(properties["settings"]["properties"])
    placed = {"dataset", "network", "strategy", "nodes", "devices_per_node", "repeat"}
    assert settings == {f.name for f in dataclasses.fields(Cell)} - placed | {"batch_per_device"}
    where = {"dataset", "network", "strategy", "geometry"}
    axes = settings - {"options"} | where
    assert set(properties["matrix"]["properties"]) == axes
    assert set(properties["exclude"]["items"]["properties"]) == axes
    assert set(properties["include"]["items"]["properties"]) == axes | {"options"}


def test_defaults_of_both_files() -> None:
    rows = {
        **SCHEMAS["experiment"]["properties"],
        **SCHEMAS["site"]["properties"],
        **SCHEMAS["site"]["properties"]["slurm"]["properties"],
    }
    for key, schema in rows.items():
        if "default" in schema:
            assert _row(key)[2] == _shown(schema["default"]), key


def test_options_of_strategies() -> None:
    for name in SHIPPED_STRATEGIES:
        assert f"`{name}`" in README
        for option, schema in strategy_of(name).options.schemas().items():
            assert schema["description"]
            assert f"`{option}` | `{_shown(schema['default']).strip('`')}` |" in README


def test_names_and_files() -> None:
    for name in (*DATASETS, *NETWORKS, *SHIPPED_STRATEGIES):
        assert f"`{name}`" in README, name
    for folder in (".", "experiments", "sites"):
        for path in (CONFIG / folder).glob("*.yaml"):
            assert f"`{path.relative_to(CONFIG)}`" in README, path


def test_the_first_example_runs() -> None:
    block = README.split("## The experiment file")[1].split("\n<!-- table")[0]
    experiment = parse_experiment(yaml.safe_load(block), "README")
    site = Site(**{**vars(load_site("local")), "devices_per_node": 2})
    assert [row.unsupported for row in expand(experiment, site)] == [None, None]


def test_the_recipes_are_valid() -> None:
    """Every indented block that is YAML of an experiment passes its schema."""
    blocks = re.findall(r"\n\n((?:    .*\n)+)", README)
    base = {
        "experiment": "e",
        "matrix": {"dataset": ["mnist"], "network": ["vgg11"], "strategy": ["sequential"]}
        | {"geometry": ["1x1"]},
    }
    tried = 0
    for block in blocks:
        if re.match(r"    (matrix|settings|strategies|include):", block):
            parse_experiment({**base, **yaml.safe_load(block)}, "README")
            tried += 1
    assert tried == 4
