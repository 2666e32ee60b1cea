"""What files hold is read into typed dataclasses, and written back the same."""

import json
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from importlib.resources import files

import pytest

from ddlbench.experiment import fits, links, profile
from ddlbench.experiment.json_form import OMIT_NONE, JsonForm, SameKeys, WrongForm, key_of


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
    with pytest.raises(WrongForm, match="'rows' is missing"):
        Outer.from_dict({"name": "x", "inner": []})


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Kept(SameKeys):
    colour: Colour
    note: str | None = None
    later: int | None = field(default=None, metadata=OMIT_NONE)


@pytest.mark.parametrize(
    "values",
    [{"colour": "red"}, {"note": None, "colour": "red"}, {"colour": "red", "later": None}],
)
def test_keys_stay_as_they_were_read(values):
    found = Kept.from_dict(values)
    assert found == Kept(Colour.RED)
    assert found.colour is Colour.RED
    assert json.dumps(found.to_dict()) == json.dumps(values)
    assert replace(found, note="new").to_dict() == {"colour": "red", "note": "new"}


def test_a_form_that_was_not_read_has_all_keys():
    assert list(Kept(Colour.RED).to_dict()) == ["colour", "note"]


def assert_fields(part, cls):
    """The schema of a class has its fields; what it may lack has a default."""
    of_class = {f.metadata.get("key", f.name): f for f in fields(cls)}
    assert set(of_class) == set(part["properties"]), cls
    for key, one in of_class.items():
        may_lack = one.default is not MISSING
        assert may_lack or key in part["required"], (cls, key)


def test_profiles_have_the_fields_of_their_schema():
    schema = json.loads((files("ddlbench.experiment") / "profile.schema.json").read_text())
    own = schema["properties"]
    assert_fields(schema, profile.Profile)
    for key, cls in (
        ("steps", profile.StepTimes),
        ("layers", profile.LayerProfile),
        ("blocks", profile.BlockProfile),
        ("tensors", profile.ParameterTensor),
        ("node_slowdown", profile.NodeSlowdown),
    ):
        assert_fields(own[key]["items"], cls)
    assert_fields(own["layers"]["items"]["properties"]["shape"], profile.LayerShape)
    assert_fields(schema["$defs"]["timings"]["items"], profile.BatchTime)


def test_links_have_the_fields_of_their_schema():
    schema = json.loads((files("ddlbench.experiment") / "links.schema.json").read_text())
    pair, sweep = schema["$defs"]["pair_matrix"], schema["$defs"]["sweep"]
    assert_fields(schema, links.Links)
    assert_fields(pair, links.PairMatrix)
    assert_fields(pair["properties"]["sampled"], links.PairSample)
    assert_fields(pair["properties"]["slow_pairs"]["items"], links.SlowPair)
    assert_fields(sweep, links.LinkSweep)
    assert_fields(sweep["properties"]["points"]["items"], links.SweepPoint)
    fit = sweep["properties"]["fit"]
    assert_fields(fit, fits.HockneyFit)
    assert_fields(fit["properties"]["pieces"]["items"], fits.HockneyPiece)
