"""A cell's path is its identity: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from ddlbench.common.document import digest_of
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import schema_of
from ddlbench.experiment.cell import Cell, parse_geometry

CELL = Cell("cifar10", "resnet18", "gpipe", batch_size=64)

finite = st.floats(allow_nan=False, allow_infinity=False)
safe_text = st.text("abcXYZ019_.:+@-", min_size=1, max_size=12)
option_values = st.one_of(st.booleans(), st.integers(), finite, safe_text)
option_names = st.from_regex(r"[a-z][a-z_]{0,8}_x", fullmatch=True)
counts = st.integers(1, 10**6)

cells = st.builds(
    Cell,
    dataset=st.sampled_from(["mnist", "cifar10", "imagenet", "highres"]),
    network=st.sampled_from(["resnet18", "my_package.models:tiny", "vgg16"]),
    strategy=st.sampled_from(["sequential", "model-parallel", "other.place:Mine"]),
    batch_size=counts,
    nodes=counts,
    devices_per_node=counts,
    repeat=st.integers(0, 1000),
    epochs=counts,
    warmup_steps=st.integers(0, 100),
    max_steps=st.none() | counts,
    data_scale=st.floats(0, 1, exclude_min=True),
    data_format=st.sampled_from(["native", "raw"]),
    data_source=st.sampled_from(["synthetic", "real"]),
    precision=st.sampled_from(["fp32", "tf32", "bf16"]),
    cudnn_benchmark=st.booleans(),
    fabric=st.sampled_from(["default", "10gbit", "true", "none", "1e3", "7"]),
    learning_rate=st.sampled_from([0.01, 1e-5, 1, 0.1 + 0.2]),
    momentum=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**31),
).filter(lambda cell: len(cell.variant) < 200)


def values_of(cell: Cell) -> str:
    """All that it holds; equal cells have equal paths only."""
    return digest_of(cell.to_dict())


@given(cells)
def test_fields_are_read_back_from_the_path(cell: Cell) -> None:
    again = Cell.from_id(cell.id)
    assert again == cell
    assert values_of(again) == values_of(cell)
    assert [type(v) for v in again.to_dict().values()] == [type(v) for v in cell.to_dict().values()]


@given(st.dictionaries(option_names, option_values, max_size=4))
def test_options_are_read_back_from_the_path(options: dict[str, Any]) -> None:
    cell = CELL.with_(options=tuple(options.items()))
    again = Cell.from_id(cell.id)
    assert again == cell
    assert values_of(again) == values_of(cell)


@given(cells, st.dictionaries(option_names, option_values, max_size=2))
def test_fields_are_read_back_from_a_result(cell: Cell, options: dict[str, Any]) -> None:
    try:
        cell = cell.with_(options=tuple(options.items()))
    except ConfigError:  # all of it together is too long for a folder's name
        reject()
    assert values_of(Cell.from_dict(cell.to_dict())) == values_of(cell)


@given(cells, cells)
def test_different_cells_have_different_paths(first: Cell, second: Cell) -> None:
    assert (first == second) == (values_of(first) == values_of(second))


def test_an_option_of_1_is_not_one_of_true() -> None:
    number, switch = (CELL.with_(options=(("depth", value),)) for value in (1, True))
    assert number != switch
    assert len({number: 1, switch: 2}) == 2


@given(cells, st.integers(0, 1000))
def test_a_repeat_is_the_cell_with_another_number(cell: Cell, repeat: int) -> None:
    assert cell.id.endswith(f"/rep{cell.repeat}")  # what is kept of the first must not be reused
    assert cell.again(repeat) == cell.with_(repeat=repeat)
    assert values_of(cell.again(repeat)) == values_of(cell.with_(repeat=repeat))


def test_the_path_is_readable() -> None:
    cell = CELL.with_(
        batch_size=2048, devices_per_node=4, repeat=2, data_scale=0.5, options=(("chunks", 32),)
    )
    assert cell.id == "cifar10/resnet18/gpipe/1x4/batch_size=2048+data_scale=0.5+chunks=32/rep2"


def test_a_module_path_stands_in_one_folder() -> None:
    cell = CELL.with_(network="my_package.models:tiny")
    assert cell.id.split("/")[1] == "my_package.models@tiny"
    assert Cell.from_id(cell.id).network == "my_package.models:tiny"


def test_defaults_do_not_appear() -> None:
    assert CELL.variant == "batch_size=64"


@pytest.mark.parametrize(
    ("given_as", "kept_as"),
    [
        (4.0, 4),
        ("4", 4),
        ("true", True),
        ("none", "none"),
        ("nan", "nan"),
        ("+5", "+5"),
        (0.5, 0.5),
    ],
)
def test_an_option_has_one_form(given_as: Any, kept_as: Any) -> None:
    kept = CELL.with_(options=(("depth", given_as),)).option("depth")
    assert kept == kept_as
    assert type(kept) is type(kept_as)


def test_numbers_of_fields_have_one_form() -> None:
    assert values_of(CELL.with_(data_scale=1)) == values_of(CELL)


def test_option_order_is_no_difference() -> None:
    cell = CELL.with_(options=(("chunks", 8), ("balance", "size")))
    assert cell == CELL.with_(options=(("balance", "size"), ("chunks", 8)))


HEAD = "cifar10/resnet18/gpipe/1x4"


@pytest.mark.parametrize(
    ("path", "remark"),
    [
        ("cifar10/resnet18", "write dataset/network/strategy/NxD"),
        (f"{HEAD}/batch_size=64/rep", "write dataset/network/strategy/NxD"),
        (f"{HEAD}/batch_size=64/rep01", "is not how this cell is written"),
        (f"{HEAD}/batch_size=64+epochs=3/rep0", "is not how this cell is written"),
        (f"{HEAD}/epochs=4+batch_size=64/rep0", "is not how this cell is written"),
        (f"{HEAD}/epochs=4/rep0", "batch_size=... is missing"),
        (f"{HEAD}/batch_size/rep0", "is not name=value"),
        (f"{HEAD}/batch_size=many/rep0", "batch_size=many is not of type int"),
        (f"{HEAD}/batch_size=6.5/rep0", "batch_size=6.5 is not of type int"),
        (f"{HEAD}/batch_size=none/rep0", "batch_size=none is not of type int"),
        (f"{HEAD}/batch_size=64+cudnn_benchmark=0/rep0", "cudnn_benchmark=0 is not of type bool"),
        (f"{HEAD}/batch_size=64+momentum=nan/rep0", "momentum=nan is not of type float"),
        ("cifar10/resnet18/gpipe/4/batch_size=64/rep0", "write for example 2x4"),
    ],
)
def test_other_paths_are_refused(path: str, remark: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cell.from_id(path)
    message = str(caught.value)
    assert remark in message
    assert path in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"network": "../up:there"}, "network '../up:there' cannot stand in a path"),
        ({"network": "with space"}, "use letters"),
        ({"options": (("seed", 3),)}, "cannot have an option 'seed'"),
        ({"options": (("a=b", 3),)}, "cannot have an option 'a=b'"),
        ({"options": (("balance", "5,9"),)}, "'5,9' cannot stand in a path"),
        ({"options": (("balance", ""),)}, "'' cannot stand in a path"),
        ({"options": (("a" * 300, 1),)}, "longer than the 255 characters"),
    ],
)
def test_what_cannot_stand_in_a_path_is_refused(changes: dict[str, Any], remark: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CELL.with_(**changes)
    assert remark in str(caught.value)


def test_every_field_is_documented() -> None:
    fields = schema_of(Cell)["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []


def test_geometry() -> None:
    assert parse_geometry("2x4", "here") == (2, 4)
    assert CELL.with_(nodes=2, devices_per_node=4).devices == 8


@pytest.mark.parametrize(
    "text", ["2*4", "4", "0x4", "2x0", "2x4 ", "2x4\n", "2X4", "x4", "", "-1x2"]
)
def test_bad_geometry(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^here: geometry .* write for example 2x4$"):
        parse_geometry(text, "here")


def test_a_field_that_has_its_default_is_no_part_of_the_path() -> None:
    saved = CELL.with_(checkpoint_every_steps=50)
    assert "checkpoint" not in CELL.id
    assert saved.id == "cifar10/resnet18/gpipe/1x1/batch_size=64+checkpoint_every_steps=50/rep0"
    assert values_of(Cell.from_dict(saved.to_dict())) == values_of(saved)


def test_what_a_cell_needs_to_say_is_read_back() -> None:
    cell = CELL.with_(options=(("chunks", 4),))
    needed = cell.to_dict(without_defaults=True)
    assert set(needed) == {"dataset", "network", "strategy", "batch_size", "options"}
    assert needed["options"] == {"chunks": 4}
    assert Cell.from_dict(needed) == cell
