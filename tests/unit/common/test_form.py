"""What files hold is read into typed dataclasses, and written back the same."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired

import pytest
from annotated_types import Len
from typing_extensions import TypedDict

from ddlbench.common.errors import ConfigError, placed
from ddlbench.common.form import (
    Form,
    Natural,
    UnknownKey,
    WrongForm,
    read_form,
    schema_of,
    typed,
    typed_open,
)
from ddlbench.common.schema import file_schema, read_checked


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner(Form):
    source: Natural
    """Who sends."""
    pair: tuple[float, float] | None = None


@dataclass(frozen=True)
class Outer(Form):
    name: str
    colour: Colour
    rows: tuple[tuple[float | None, ...], ...]
    inner: tuple[Inner, ...]
    count: int = 3


@typed
class Entry(TypedDict):
    name: str
    inner: NotRequired[list[Inner]]


@typed_open
class Further(TypedDict, total=False):
    like: Literal["laptop"]
    """Comes first."""


@dataclass(frozen=True)
class File(Form):
    size: Natural | Annotated[tuple[Natural, ...], Len(2, 2)] | None = None
    """Height and width."""
    colour: Literal["red", "blue"] | None = None
    anything: Any = None
    scales: Mapping[str, Further] | None = None


VALUES = {
    "name": "x",
    "colour": "red",
    "rows": [[1.0, None], [2.5, 3.0]],
    "inner": [{"source": 1, "pair": [1.0, 2.0]}, {"source": 2, "pair": None}],
    "count": 7,
}


def test_what_is_read_is_written_back_the_same():
    actual = Outer.from_dict(VALUES)
    assert actual.colour is Colour.RED
    assert actual.rows == ((1, None), (2.5, 3))
    assert actual.inner[0] == Inner(1, (1.0, 2.0))
    assert json.dumps(actual.to_dict()) == json.dumps(VALUES)


def test_what_is_absent_has_its_default():
    shorter = {key: value for key, value in VALUES.items() if key != "count"}
    assert Outer.from_dict(shorter).count == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": 3}, "name: 3 is not a text"),
        ({"colour": "blue"}, "colour: 'blue' is not allowed; write 'red'"),
        ({"count": "7"}, "count: '7' is not a whole number"),
        ({"count": 7.5}, "count: 7.5 is not a whole number"),
        ({"count": True}, "count: True is not a whole number"),
        ({"rows": [[1], 2]}, "rows.1: 2 is not a list"),
        ({"inner": [{"source": -1}]}, "inner.0.source: -1 is too small; write at least 0"),
        ({"inner": [{"source": 1, "pair": [1.0]}]}, "inner.0.pair"),
        ({"inner": [{}]}, "inner.0.source is missing"),
        ({"inner": [{}], "further": 1}, "inner.0.source is missing"),
    ],
)
def test_what_is_not_of_its_type_is_named_with_its_place(change, says):
    with pytest.raises(WrongForm, match=says) as caught:
        Outer.from_dict({**VALUES, **change})
    assert not isinstance(caught.value, UnknownKey)


def test_a_key_that_is_no_field_is_another_fault():
    with pytest.raises(UnknownKey, match=r"inner.0.further is not known here"):
        Outer.from_dict({**VALUES, "inner": [{"source": 1, "further": None}]})
    with pytest.raises(UnknownKey, match="further"):
        read_form(Entry, {"name": "x", "further": 1})


def test_a_typed_dictionary_holds_forms():
    assert read_form(Entry, {"name": "x", "inner": [{"source": 1}]})["inner"] == [Inner(1)]
    assert read_form(Entry, {"name": "x"}) == {"name": "x"}


def test_the_text_below_a_field_describes_it():
    assert schema_of(Inner)["properties"]["source"]["description"] == "Who sends."


def test_half_a_character_is_read_as_a_question_mark():
    """A name of a file that is no UTF-8; what failed must still be told."""
    assert Outer.from_dict({**VALUES, "name": "caf\udce9"}).name == "caf?"


def test_json_has_no_nan():
    with pytest.raises(WrongForm, match="NaN"):
        Outer.from_dict({**VALUES, "rows": [[float("nan")]]})


def test_alternatives_in_a_file_of_the_user_are_one_schema():
    keys = file_schema(File)["properties"]
    assert keys["size"] == {
        "type": ["integer", "array", "null"], "minimum": 0, "minItems": 2, "maxItems": 2,
        "items": {"type": "integer", "minimum": 0}, "default": None,
        "description": "Height and width.",
    }  # fmt: skip
    assert keys["colour"]["enum"] == ["red", "blue", None]


def test_values_that_a_schema_allows_are_read():
    day = datetime.date(2024, 1, 3)
    values = {"size": [1, 2], "anything": [day], "scales": {"big": {"like": "laptop", "x": day}}}
    assert read_checked(File, values, "a file") == File((1, 2), None, [day], values["scales"])
    assert read_checked(File, {"size": 3, "colour": "red"}, "a file") == File(3, "red")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"size": "9"}, "size: '9' is not a whole number, a list or empty; write 9 (Height and"),
        ({"size": [1]}, "size: [1] has too few values; write 2 (Height and width)"),
        ({"size": [1, 2, 3]}, "size: [1, 2, 3] has too many values; write 2 (Height and width)"),
        ({"size": [1, "x"]}, "size.1: 'x' is not a whole number (Height and width)"),
        ({"colour": "green"}, "colour: 'green' is not allowed; write red or blue"),
        ({"scales": {"big": {"like": 3}}}, "scales.big.like: 3 does not fit (Comes first)"),
    ],
)
def test_a_wrong_value_is_a_sentence_with_the_text_of_its_key(values, sentence):
    with pytest.raises(ConfigError) as caught:
        read_checked(File, values, "a file")
    assert str(caught.value).startswith(f"a file: {sentence}")


def test_a_place_is_the_subject_of_a_fault_that_begins_with_its_verb():
    assert placed("a.yaml", "is empty") == "a.yaml is empty"
    assert placed("a.yaml", "'b' is not a key here") == "a.yaml: 'b' is not a key here"
