"""Hostile and mistaken configurations: one sentence each, at once, before any job."""

from __future__ import annotations

import copy
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlbench.common.document import parse_yaml
from ddlbench.common.errors import ConfigError, printable
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.registry import load
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand

GOOD = {
    "experiment": "trial",
    "site": "local",
    "matrix": {
        "dataset": ["mnist"], "network": ["resnet18"], "strategy": ["sequential", "ddp"],
        "geometry": ["1x1"],
    },
    "settings": {"batch_size": 64},
}  # fmt: skip


def refused(says: str, **changes) -> str:
    config = copy.deepcopy(GOOD)
    config.update(changes)
    with pytest.raises(ConfigError, match=says) as caught:
        expand(parse_experiment(config, "a file"), load_site("local"))
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) <= 400
    return sentence


# --- C1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"precision": "bf61"}, "exclude.0.precision: 'bf61' is not allowed; write fp32"),
        ({"batch_size": "16"}, "exclude.0.batch_size: '16' is not a whole number; write 16"),
        ({"fabric": "a b"}, "exclude.0.fabric"),
        ({"dataset": [["mnist"]]}, r"exclude.0.dataset: \['mnist'\] is not a text"),
        ({"network": {}}, "exclude.0.network: {} is not a text"),
        ({"strategy": True}, "exclude.0.strategy: True is not a text"),
    ],
)
def test_a_condition_that_no_cell_can_meet_is_refused(rule, says) -> None:
    refused(says, exclude=[rule])
    refused(says.replace("exclude.0", "overrides.0.when"),
            overrides=[{"when": rule, "set": {"epochs": 1}}])  # fmt: skip


def test_options_of_a_strategy_outside_the_matrix_are_checked() -> None:
    refused("options of gpipe: 'chunkz' is not a key here", strategies={"gpipe": {"chunkz": 4}})
    refused("options of gpipe: chunks: 0 is too small", strategies={"gpipe": {"chunks": [4, 0]}})


# --- C2, C4: text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: 'a' is written twice"),
        ("a: {b: 1, b: 2}", "line 1: 'b' is written twice"),
        ("1: {a: 1}", "the key '1' is no text; write it in quotes"),
        ("yes: 1", "the key 'yes' is no text"),
        ("? [a, b]\n: 1", "a list or group cannot be a key"),
        ("a: &x [*x]", "an anchor contains itself"),
        ("a: " + "9" * 5_000, "a number, a date or a tag does not fit"),
        ("seed: 2024-13-45", "a number, a date or a tag does not fit"),
        ("seed: !!int abc", "a number, a date or a tag does not fit"),
        ("a: " + "[" * 3_000 + "]" * 3_000, "too deep"),
        ("[" * 100_000, "too deep"),
        ("a: b\tc", "line 1: .* cannot start any token"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
    ],
)
def test_yaml_that_would_mislead_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_yaml(text, "a file")
    assert len(str(caught.value)) <= 300


def test_a_modest_anchor_and_a_merge_are_fine() -> None:
    text = "a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}\n"
    assert parse_yaml(text, "a file") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}


@pytest.mark.parametrize("repeats", [0, 10**18])
def test_repeats_have_bounds(repeats) -> None:
    refused("repeats: .* is too", repeats=repeats)


def test_a_matrix_that_nobody_means_is_refused_before_it_is_expanded() -> None:
    axes = {name: list(range(1, 200)) for name in ("batch_size", "epochs", "seed", "warmup_steps")}
    refused("up to .* cells with its repeats, more than 10,000; shorten it, or write most_cells",
            matrix={**GOOD["matrix"], **axes})  # fmt: skip
    config = {**GOOD, "most_cells": 1}
    with pytest.raises(ConfigError, match="most_cells: 2"):
        expand(parse_experiment(config, "a file"), load_site("local"))


# --- C3, C5 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cells", "links", "profiles", "a\n", "..", ".", "x" * 300, "a/b"])
def test_names_that_are_folders_of_something_else_are_refused(name: str) -> None:
    refused("experiment", experiment=name)


@pytest.mark.parametrize("name", ["..", "x{cell}", "x" * 300, "a b", "..."])
def test_site_names_are_folder_names(name: str) -> None:
    with pytest.raises(ConfigError, match="its name is a folder of results"):
        load_site(name)


@pytest.mark.parametrize("fabric", ["..", ".", "a\n", "-a", "x" * 101])
def test_fabrics_are_folder_names(fabric: str) -> None:
    refused("fabric", settings={"batch_size": 64, "fabric": fabric})


def test_a_geometry_of_thousands_of_digits() -> None:
    refused("geometry", matrix={**GOOD["matrix"], "geometry": ["1x" + "9" * 5_000]})


@pytest.mark.parametrize("target", [":x", "..a:b", "a:", "a b:c", "os.path:join.x y"])
def test_what_is_no_module_is_one_sentence(target: str) -> None:
    with pytest.raises(ConfigError, match="write package.module:attribute|cannot load|unknown"):
        load("ddlbench.networks", target)


def test_only_networks_of_libraries_take_arguments() -> None:
    with pytest.raises(ConfigError, match="write a function that gives them"):
        load("ddlbench.networks", "mynets:vit?width=32")


def test_a_file_alone_is_no_network() -> None:
    with pytest.raises(ConfigError, match="one of your own is module:callable"):
        load("ddlbench.networks", "mynets")


def test_a_module_that_fails_on_import_is_named_with_its_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "failing_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="fails on import, ZeroDivisionError: division"):
        load("ddlbench.networks", "failing_module:x")


# --- C6 ------------------------------------------------------------------------------------------


def test_messages_are_short_and_printable() -> None:
    assert "..." in refused("dataset", matrix={**GOOD["matrix"], "dataset": ["x" * 70_000]})
    assert printable("a\x1b[31mb\0c\nd\te") == "a\\x1b[31mb\\x00c\nd\\te"
    path = "results/" + "a/" * 100 + "b"
    assert printable(path) == path


# --- fuzz ----------------------------------------------------------------------------------------

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(["mnist", "ddp", "1x2", "resnet18", "..", "cells", "fp32"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
_PLACES = st.sampled_from(
    ["experiment", "site", "repeats", "matrix", "settings", "strategies", "overrides", "exclude",
     "include", "profile", "predict", "most_cells", "real_data"]
)  # fmt: skip
_INNER = st.sampled_from(
    [("matrix", "dataset"), ("matrix", "geometry"), ("matrix", "strategy"), ("matrix", "network"),
     ("settings", "batch_size"), ("settings", "fabric"), ("settings", "epochs"),
     ("settings", "options"), ("strategies", "gpipe"), ("strategies", "ddp")]
)  # fmt: skip


def _survives(config: dict) -> None:
    """Every configuration is a matrix or one sentence."""
    text = yaml.safe_dump(config, allow_unicode=True)
    try:
        parsed = parse_yaml(text, "a file")
        rows = expand(parse_experiment(parsed, "a file"), load_site("local"))
    except ConfigError as error:
        assert str(error)
        assert len(str(error)) < 2_000
        return
    assert len({row.cell.id for row in rows}) == len(rows)


@given(_PLACES, _VALUES)
@settings(max_examples=150, deadline=None)
def test_any_value_at_any_key(place, value) -> None:
    _survives({**copy.deepcopy(GOOD), place: value})


@given(_INNER, _VALUES)
@settings(max_examples=150, deadline=None)
def test_any_value_below_a_key(place, value) -> None:
    config = copy.deepcopy(GOOD)
    config.setdefault(place[0], {})[place[1]] = value
    _survives(config)


@pytest.mark.exhaustive
@given(_PLACES, _VALUES, _INNER, _VALUES)
@settings(max_examples=10_000, deadline=timedelta(seconds=10))  # longer is a hang
def test_ten_thousand_configurations(place, value, inner, below) -> None:
    config = {**copy.deepcopy(GOOD), place: value}
    group = config.setdefault(inner[0], {})
    if isinstance(group, dict):
        group[inner[1]] = below
    _survives(config)


@given(st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_value_or_a_sentence(text) -> None:
    try:
        parse_yaml(text, "a file")
    except ConfigError as error:
        assert "a file" in str(error)


def test_a_file_of_bytes_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_yaml(path)
