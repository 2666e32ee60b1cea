"""The fast check of a document accepts nothing that its schema forbids."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ddlbench.experiment.document import Document

NAMES = sorted(
    path.name.removesuffix(".schema.json")
    for path in files("ddlbench.experiment").iterdir()
    if path.name.endswith(".schema.json")
)
# The fast check knows draft 7; of draft 2020-12 it would ignore what is not among these.
SHARED = {
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "description", "enum",
    "exclusiveMinimum", "items", "maxItems", "maximum", "minItems", "minLength", "minimum", "oneOf",
    "properties", "required", "title", "type",
}  # fmt: skip
RESULT = json.loads(
    (Path(__file__).parents[3] / "benchmarks" / "scale" / "result.json").read_text("utf-8")
)
DOCUMENT = Document("result", "result", ValueError)
VALIDATOR = Draft202012Validator(
    json.loads(files("ddlbench.experiment").joinpath("result.schema.json").read_text("utf-8"))
)


def schemas(value):
    """A schema and all schemas in it."""
    yield value
    for key in ("properties", "$defs"):
        for inner in value.get(key, {}).values():
            yield from schemas(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(value.get(key), dict):
            yield from schemas(value[key])
    for key in ("anyOf", "oneOf"):
        for inner in value.get(key, []):
            yield from schemas(inner)


@pytest.mark.parametrize("name", NAMES)
def test_schemas_use_what_both_checks_know(name):
    text = files("ddlbench.experiment").joinpath(f"{name}.schema.json").read_text("utf-8")
    for schema in schemas(json.loads(text)):
        assert schema.keys() <= SHARED
        if "$ref" in schema:  # draft 7 ignores what stands beside it
            assert schema.keys() <= {"$ref", "description"}


def places(value, at=()):
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*at, index))


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.text(max_size=3),
    st.just([]), st.just({}), st.just([None, 1]), st.just({"a": 1}),
)  # fmt: skip


@given(st.sampled_from(list(places(RESULT))[1:]), ANYTHING, st.booleans())
def test_a_changed_result_is_accepted_by_both_or_by_none(place, value, remove):
    changed = json.loads(json.dumps(RESULT))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    if remove and isinstance(inner, dict):
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    if DOCUMENT.fits(changed):
        assert VALIDATOR.is_valid(changed)
