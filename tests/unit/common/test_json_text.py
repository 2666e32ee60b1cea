"""Damaged JSON: one kind of error, and the other files go on."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlbench.common.document import UnreadableJson, parse_json, put_aside, read_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import InvalidResult, glance, read_result

DAMAGED = [
    "",
    "{",
    "[" * 100_000,
    "9" * 5_000,
    "NaN",
    "1e300",
    '{"a": Infinity}',
    "\x00",
    '{"a": 1} x',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_text_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(UnreadableJson) as caught:
        parse_json(text)
    assert len(str(caught.value)) <= 200


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_result_is_one_kind_of_error(text: str, tmp_path) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(InvalidResult, match="not a readable result"):
        read_result(path)
    assert glance(path, "local", Cell("mnist", "vgg11", "ddp", 8).id) is None


def test_what_is_put_aside_replaces_nothing(tmp_path) -> None:
    path = tmp_path / "result.json"
    for text in ("first", "second", "third"):
        path.write_text(text)
        put_aside(path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "result.json.broken": "first",
        "result.json.broken-2": "second",
        "result.json.broken-3": "third",
    }


def test_bytes_that_are_no_text(tmp_path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xb6{}")
    with pytest.raises(UnreadableJson, match=r"^it is no text in UTF-8 \("):
        read_json(path)
    path.write_text("hello")
    with pytest.raises(UnreadableJson, match=r"^it is no JSON \("):
        read_json(path)
    with pytest.raises(OSError, match="No such file"):
        read_json(tmp_path / "none.json")


def test_a_pipe_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(UnreadableJson, match="a pipe"):
        read_json(tmp_path / "result.json")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_what_json_writes_is_read_as_it_was(value) -> None:  # fmt: skip
    assert parse_json(json.dumps(value)) == value


@given(st.binary(max_size=64))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_a_value_or_unreadable(data) -> None:
    with contextlib.suppress(UnreadableJson):
        parse_json(data)
