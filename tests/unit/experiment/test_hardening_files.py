"""Whatever a file holds, its reader returns a document or says in one sentence what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.links import read_links
from ddlbench.experiment.profile import read_profile
from ddlbench.experiment.result import InvalidResult, read_result
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.cell_states import states
from ddlbench.report.measurements import make_tables

ROOT = Path(__file__).parents[3]
_PAIR = {
    "scope": "node", "method": "ranks", "endpoints": ["a", "b"], "nodes": [0, 1],
    "bandwidth_bytes_per_s": [[None, 1e9], [1e9, None]],
    "latency_s": [[None, 1e-5], [1e-5, None]], "repeats": 1, "slow_pairs": [],
}  # fmt: skip
_LINKS = {
    "schema_version": 1, "site": "local", "fabric": "default", "device_kind": "cpu",
    "pairs": [_PAIR], "sweeps": [], "notes": [], "provenance": {},
}  # fmt: skip
DOCUMENTS: dict[str, Any] = {
    "result": json.loads((ROOT / "benchmarks" / "scale" / "result.json").read_text("utf-8")),
    "profile": json.loads(Path(__file__).with_name("profile.json").read_text("utf-8")),
    "links": _LINKS,
}
_READERS = {"result": read_result, "profile": read_profile, "links": read_links}
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from([0, -1, 1.0, 2**70, 1e308, "ok", "", "..", "\x1b[31m"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=4,
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Keys and indices that lead to each value; of a list the first and the last."""
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list) and value:
        for index in {0, len(value) - 1}:
            yield from places(value[index], (*at, index))


_PLACES = [(kind, at) for kind, value in DOCUMENTS.items() for at in list(places(value))[1:]]


def changed(kind: str, at: tuple[Any, ...], value: Any, remove: bool) -> str:
    """A document with another value at a place, or with none there."""
    document = json.loads(json.dumps(DOCUMENTS[kind]))
    inner = document
    for key in at[:-1]:
        inner = inner[key]
    if remove:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return json.dumps(document)


def torn(kind: str, first: float, last: float, junk: bytes) -> bytes:
    """A document a part of whose bytes, between two shares of its length, is ``junk``."""
    data = json.dumps(DOCUMENTS[kind]).encode()
    begin, end = sorted((int(first * len(data)), int(last * len(data))))
    return data[:begin] + junk + data[end:]


def survives(kind: str, data: bytes, folder: Path) -> None:
    """The reader returns a document or raises its own error, in one short sentence."""
    path = folder / f"{kind}.json"
    path.write_bytes(data)
    try:
        _READERS[kind](path)
    except (InvalidResult, ConfigError) as error:
        assert str(path) in str(error)
        assert len(str(error)) < len(str(path)) + 500
        assert str(error).isprintable()


def is_in_tables(data: bytes, folder: Path, monkeypatch) -> None:
    """One cell's result, as it is, is one row of the tables and one line of the status."""
    monkeypatch.chdir(folder)
    cell = Cell.from_id(DOCUMENTS["result"]["cell_id"])
    path = folder / "results" / "local" / "cells" / cell.id / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    rows = [MatrixRow(cell=cell, base_id=cell.id, unsupported=None)]
    assert len(states("any", "local", rows)) == 1
    make_tables("any", "local", rows, folder / "results", folder / "tables")


_FEW = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120
)
_MANY = settings(_FEW, max_examples=2_000, deadline=timedelta(seconds=10))  # longer is a hang
_CHANGED = st.builds(
    lambda place, value, remove: (place[0], changed(*place, value, remove).encode()),
    st.sampled_from(_PLACES), _VALUES, st.booleans(),
)  # fmt: skip
_TORN = st.sampled_from(sorted(DOCUMENTS)).flatmap(
    lambda kind: st.builds(
        lambda *how: (kind, torn(kind, *how)),
        *(st.floats(0, 1), st.floats(0, 1), st.binary(max_size=9)),
    )
)


@given(_CHANGED)
@_FEW
def test_any_value_at_any_place(tmp_path, file) -> None:
    survives(*file, tmp_path)


@given(_TORN)
@_FEW
def test_any_tear(tmp_path, file) -> None:
    survives(*file, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("files", [_CHANGED, _TORN], ids=["changed", "torn"])
def test_two_thousand_files(tmp_path, monkeypatch, files) -> None:
    @given(files)
    @_MANY
    def each(file) -> None:
        survives(*file, tmp_path)
        if file[0] == "result":
            is_in_tables(file[1], tmp_path, monkeypatch)

    each()
