"""Every shipped YAML file names the schema by which an editor checks it, and fits it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ddlbench.commands.tables import FOLDER, SCHEMAS, first_line
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.paths import project_root

CONFIG = project_root() / "config"
SCHEMAS = {
    name: json.loads((project_root() / FOLDER / f"{name}.json").read_text()) for name in SCHEMAS
}
FILES = sorted(path.relative_to(CONFIG) for path in CONFIG.rglob("*.yaml"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_begins_with_its_schema_and_fits_it(file: Path) -> None:
    line = (CONFIG / file).read_text("utf-8").splitlines(keepends=True)[0]
    assert line == first_line(file)
    (link,) = re.findall(r"\$schema=(\S+)", line)
    schema = SCHEMAS[(CONFIG / file).parent.joinpath(link).resolve().stem]
    assert not list(Draft202012Validator(schema).iter_errors(read_yaml(CONFIG / file)))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("experiment", {"experiment": "e"}),
        ("experiment", {"of": "ddlbench", "matrix": {"dataset": ["mnist"], "colour": ["red"]}}),
        ("site", {"device": "cpu", "launcher": "local", "nodes": "two"}),
        ("paper", {"experiment": "e"}),
    ],
)
def test_a_wrong_file_does_not_fit(name: str, values: dict[str, object]) -> None:
    assert list(Draft202012Validator(SCHEMAS[name]).iter_errors(values))
