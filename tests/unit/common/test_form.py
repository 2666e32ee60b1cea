"""What files hold is read into typed dataclasses, and written back the same."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import NotRequired

import pytest
from typing_extensions import TypedDict

from ddlbench.common.form import (
    Form,
    Natural,
    UnknownKey,
    WrongForm,
    read_form,
    schema_of,
    typed,
)


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


VALUES = {
    "name": "x",
    "colour": "red",
    "rows": [[1.0, None], [2.5, 3.0]],
    "inner": [{"source": 1, "pair": [1.0, 2.0]}, {"source": 2, "pair": None}],
    "count": 7,
}


def test_what_is_read_is_written_back_the_same():
    found = Outer.from_dict(VALUES)
    assert found.colour is Colour.RED
    assert found.rows == ((1, None), (2.5, 3))
    assert found.inner[0] == Inner(1, (1.0, 2.0))
    assert json.dumps(found.to_dict()) == json.dumps(VALUES)


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
        ({"inner": [{}]}, "inner.0.source: is missing"),
        ({"inner": [{}], "further": 1}, "inner.0.source: is missing"),
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
