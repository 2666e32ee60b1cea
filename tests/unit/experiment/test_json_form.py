"""What files hold is read into typed dataclasses, and written back the same."""

import json
from dataclasses import dataclass, field

import pytest

from ddlbench.experiment.json_form import OMIT_NONE, JsonForm, key_of


@dataclass(frozen=True)
class Inner(JsonForm):
    source: int = field(metadata=key_of("from"))
    pair: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Outer(JsonForm):
    name: str
    rows: tuple[tuple[float | None, ...], ...]
    inner: tuple[Inner, ...]
    extra: Inner | None = field(default=None, metadata=OMIT_NONE)
    count: int = 3


VALUES = {
    "name": "x",
    "rows": [[1, None], [2.5, 3]],
    "inner": [{"from": 1, "pair": [1.0, 2.0]}, {"from": 2, "pair": None}],
    "count": 7,
}


def test_what_is_read_is_written_back_the_same():
    found = Outer.from_dict(VALUES)
    assert found.rows == ((1, None), (2.5, 3))
    assert found.inner[0] == Inner(1, (1.0, 2.0))
    assert json.dumps(found.to_dict()) == json.dumps(VALUES)
    with_extra = {**VALUES, "extra": {"from": 0, "pair": None}}
    assert Outer.from_dict(with_extra).extra == Inner(0)
    assert Outer.from_dict(with_extra).to_dict() == with_extra


def test_what_is_absent_has_its_default_or_is_named():
    shorter = {key: value for key, value in VALUES.items() if key != "count"}
    assert Outer.from_dict(shorter).count == 3
    with pytest.raises(KeyError, match="rows"):
        Outer.from_dict({"name": "x", "inner": []})
