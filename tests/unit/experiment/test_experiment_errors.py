"""Every mistake ends in one line: where it is, what is wrong, what to write."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddlbench.common.errors import ConfigError, placed, unplaced
from ddlbench.common.schema import check, nearest, read_yaml
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.registry import NETWORKS
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand

GOOD = yaml.safe_load("""
experiment: trial
site: local
matrix:
  dataset: [mnist]
  network: [resnet18]
  strategy: [sequential, gpipe]
  geometry: [1x1]
settings: {batch_size: 64}
""")
BY_HAND = {"dataset": "mnist", "network": "resnet18", "strategy": "gpipe", "geometry": "1x1"}
REMOVED = object()


def _changed(place: str, value: object) -> dict[str, Any]:
    config = copy.deepcopy(GOOD)
    *above, key = place.split(".")
    group = config
    for name in above:
        group = group.setdefault(name, {})
    if value is REMOVED:
        del group[key]
    else:
        group[key] = value
    return config


def _message(config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        experiment = parse_experiment(config, "my.yaml")
        expand(experiment, load_site(experiment.site))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


def test_a_place_is_taken_off_its_own_faults_only():
    for fault in ("is empty", "no such file", "must not be 0"):
        assert unplaced("a/b", placed("a/b", fault)) == fault
        assert unplaced("a/b", placed("a/bc", fault)) == placed("a/bc", fault)


def test_the_configuration_itself_is_good() -> None:
    experiment = parse_experiment(GOOD, "my.yaml")
    assert len(expand(experiment, load_site(experiment.site))) == 2


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        # unknown keys
        ("setings", {}, "'setings' is not a key here; did you mean 'settings'?"),
        ("matrix.epoch", [1], "matrix: 'epoch' is not a key here; did you mean 'epochs'?"),
        ("settings.batch", 3, "settings: 'batch' is not a key here; did you mean 'batch_"),
        ("settings.lr", 0.1, "settings: 'lr' is not a key here; write learning_rate"),
        ("settings.optimizer", "adam", "settings.optimizer: 'adam'"),
        ("settings.optimiser", "adam", "'optimiser' is not a key here; write optimizer"),
        ("settings.loss", "mse", "'loss' is not a key here; the loss is always cross-entropy"),
        ("settings.weight_decay", -0.1, "settings.weight_decay: -0.1 is too small; write at"),
        (
            "settings.gradient_accumulation",
            4,
            "option of each strategy, strategies: {ddp: {accumulate: 4}}",
        ),
        ("optimizer", "adam", "'optimizer' is not a key here; known: "),
        # wrong types
        ("matrix.dataset", "mnist", "matrix.dataset: 'mnist' is not a list; write [mnist]"),
        ("matrix.dataset", [1], "matrix.dataset.0: 1 is not a text"),
        ("settings.epochs", "4", "settings.epochs: '4' is not a whole number; write 4 (Measured"),
        ("settings.epochs", 4.0, "settings.epochs: 4.0 is not a whole number; write 4 (Measured"),
        ("settings.epochs", True, "settings.epochs: True is not a whole number (Measured epochs"),
        ("repeats", "3", "repeats: '3' is not a whole number; write 3 (How often"),
        ("settings.learning_rate", "1e-3", "'1e-3' is not a number; write 0.001 (Of the"),
        ("settings.learning_rate", "1e-05", "'1e-05' is not a number; write 1.0e-05 (Of the"),
        ("settings.learning_rate", float("nan"), "nan is not a number (Of the"),
        ("settings.cudnn_benchmark", "yes", "cudnn_benchmark: 'yes' is not true or false (Let"),
        ("settings", None, "settings is empty; write a group of 'key: value' lines, or leave the"),
        ("matrix", [], "matrix: [] is not a group of 'key: value' lines (Axes and their values"),
        ("strategies", {"gpipe": 3}, "strategies.gpipe: 3 is not a group of 'key: value' lines"),
        ("overrides", {"when": {}}, "overrides: {'when': {}} is not a list (Exceptions"),
        # unknown names
        (
            "matrix.network",
            ["resnet19"],
            "unknown network 'resnet19'; similar: resnet101, resnet152, ",
        ),
        ("matrix.dataset", ["cifar"], "matrix.dataset: unknown dataset 'cifar'; did you mean 'ci"),
        ("matrix.strategy", ["gpip"], "matrix.strategy: unknown strategy 'gpip'; did you mean 'g"),
        (
            "matrix.strategy",
            ["zzz"],
            "known: channel, data-filter, data-spatial, data-tensor, data-tensor-pipe, ddp, ",
        ),
        ("matrix.strategy", ["no.where:To"], "my.yaml: cannot load 'no.where:To'"),
        ("matrix.strategy", ["ddlbench.planning.plan:Plan"], "must name a subclass of Strategy"),
        ("matrix.network", ["../a:b"], "my.yaml: network '../a:b' cannot stand in a path"),
        ("strategies", {"gpip": {"chunks": 3}}, "strategies: unknown strategy 'gpip'; did you m"),
        ("overrides", [{"when": {"dataset": "mnits"}, "set": {}}], "overrides.0.when.dataset: unk"),
        ("exclude", [{"network": ["vgg11", "vgg"]}], "exclude.0.network: unknown network 'vgg'"),
        ("site", "locl", "site 'locl' has no file"),
        ("site", "locl", "did you mean 'local'?"),
        # numbers out of range
        ("settings.batch_size", -4, "settings.batch_size: -4 is too small; write at least 1 (Sam"),
        ("settings.max_steps", 0, "settings.max_steps: 0 is too small; write at least 1"),
        ("settings.data_scale", 0, "settings.data_scale: 0 is too small; write more than 0"),
        ("settings.data_scale", 2, "settings.data_scale: 2 is too large; write at most 1"),
        ("settings.momentum", 1, "settings.momentum: 1 is too large; write less than 1"),
        ("settings.seed", -1, "-1 is too small; write at least 0 (Of weights, data and order)"),
        ("settings.seed", 10**20 - 1, "settings.seed: 99999999999999999999 is too large; write at"),
        ("settings.warmup_steps", 10**9, "1000000000 is too large; write at most 999999999 (Steps"),
        ("repeats", 0, "repeats: 0 is too small; write at least 1 (How often each cell"),
        # texts that are not allowed
        ("matrix.geometry", ["2*4"], "matrix.geometry: geometry '2*4' is not <nodes>x<devices pe"),
        ("matrix.geometry", [62], "matrix.geometry.0: 62 is not a text (<nodes>x<devices per node"),
        ("settings.precision", "fp8", "'fp8' is not allowed; write fp32, tf32, bf16 or fp16"),
        ("settings.fabric", "10 gbit", "settings.fabric: '10 gbit' does not fit (Link condition"),
        ("experiment", "my run", "experiment: 'my run' does not fit (Name of the folder"),
        ("experiment", "a" * 99 + "!", "aaa... does not fit"),
        ("overrides", [{"when": {"geometry": "4"}, "set": {}}], "when.geometry: geometry '4' is n"),
        # what is empty or missing
        ("matrix.network", [], "matrix.network must not be empty; write at least one value"),
        ("strategies", {"gpipe": {"chunks": []}}, "strategies.gpipe.chunks must not be empty"),
        ("overrides", [{"when": {}, "set": {}}], "overrides.0.when must not be empty"),
        ("overrides", [{"set": {}}], "overrides.0: 'when' is missing; add it (Which cells"),
        ("overrides", [{"when": {"datset": "mnist"}, "set": {}}], "did you mean 'dataset'?"),
        ("matrix.dataset", REMOVED, "matrix: 'dataset' is missing; add it (A dataset: mnist"),
        ("matrix", REMOVED, "'matrix' is missing; add it (Axes and their values"),
        ("settings", {}, "no batch for mnist with sequential; write settings: batch_size (samples"),
        ("exclude", [{"dataset": "mnist"}], "no cell is left; loosen 'matrix' or 'exclude'"),
        # both batch keys in one group
        ("settings.batch_per_device", 3, "settings gives batch_size and batch_per_device; keep"),
        (
            "include",
            [{**BY_HAND, "batch_size": 8, "batch_per_device": 8}],
            "include.0 gives batch",
        ),
        # options
        ("strategies", {"gpipe": {"chunk": 3}}, "options of gpipe: 'chunk' is not a key here; did"),
        ("strategies", {"gpipe": {"chunks": "many"}}, "options of gpipe: chunks: 'many' is not a "),
        ("strategies", {"gpipe": {"chunks": 0}}, "options of gpipe: chunks: 0 is too small; write"),
        ("strategies", {"gpipe": {"checkpoint": "no"}}, "write except_last, always or never"),
        ("strategies", {"gpipe": {"balance": "5,9"}}, "balance: '5,9' does not fit (How blocks"),
        ("strategies", {"sequential": {"x": 3}}, "'x' is not a key here; there are none"),
        ("settings.options", {"chunks": 3}, "options of sequential: 'chunks' is not a key here"),
        # cells by hand
        ("include", [{**BY_HAND, "geometry": "2*4"}], "include.0: geometry '2*4' is not <nodes>x<"),
        ("include", [{**BY_HAND, "options": {"chunk": 2}}], "include.0: options of gpipe: 'chunk'"),
        ("include", [{**BY_HAND, "geometry": "2x1"}], "include.0: gpipe cannot run this cell: sit"),
        ("include", [{"dataset": "mnist"}], "include.0: 'network' is missing; add it (A networ"),
    ],
)
def test_sentence(place: str, value: object, sentence: str) -> None:
    message = _message(_changed(place, value))
    assert sentence in message
    assert message.startswith("site " if place == "site" else "my.yaml: ")


def test_a_misspelt_required_key_is_named_rather_than_the_one_it_leaves_missing() -> None:
    config = _changed("datset", ["mnist"])
    config["matrix"]["datset"] = config["matrix"].pop("dataset")
    del config["datset"]
    assert _message(config).endswith("'datset' is not a key here; did you mean 'dataset'?")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "line 1: not valid YAML: expected ',' or ']'"),
        (
            "a: 1\nb: c: d",
            "line 2: not valid YAML: mapping values are not allowed here; write 'key: ",
        ),
        (
            "a: 1\n\tb: 2",
            "line 2: not valid YAML: found character '\\t' that cannot start any token; "
            "begin lines with spaces",
        ),
        (
            "a:\n  b: 1\n c: 2",
            "line 3: not valid YAML: expected <block end>, but found '<block "
            "mapping start>'; begin the lines of a group with as many spaces each",
        ),
        ("a: 1\n---\nb: 2", "line 2: not valid YAML: but found another document; keep one"),
        ("a: @x", "line 1: not valid YAML: found character '@' that cannot start any token; write"),
        ("- a\n- b", " is a list; write 'key: value' lines"),
        ("", " is empty; write 'key: value' lines"),
        ("3", " is one value; write 'key: value' lines"),
        (b"\xff\xfe\x00", "is no text in UTF-8; save it as UTF-8"),
    ],
)
def test_yaml(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"my\.yaml does not exist$"):
        read_yaml(tmp_path / "my.yaml")


def test_nearest() -> None:
    assert nearest("gpip", ["gpipe", "ddp"]) == "did you mean 'gpipe'?"
    assert nearest("zzz", ["gpipe", "ddp"]) == "known: ddp, gpipe"
    assert nearest("zzz", []) == "there are none"
    assert nearest("fig4", ["ddlbench/fig4", "thesis/fig4.1"]) == "did you mean 'ddlbench/fig4'?"
    many = [f"strategy-{number:02}" for number in range(40)]
    assert nearest("zzz", many).startswith("known: strategy-00, strategy-01, ")
    assert nearest("zzz", many).endswith("strategy-13 and 26 more")
    assert nearest("lat20", ["lat10", "lat100", "base"]) == "did you mean 'lat10' or 'lat100'?"
    assert nearest("strategy-99", [*many, "a"]).startswith("similar: strategy-00, ")
    assert nearest("Resnet50", ["resnet18", "resnet50"]) == "did you mean 'resnet50'?"


def test_a_rule_without_a_sentence_of_its_own_is_still_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^here: a: 3 does not fit: .*not a multiple of 2$"):
        check({"a": 3}, {"properties": {"a": {"multipleOf": 2}}}, "here")


def test_an_option_may_have_alternatives() -> None:
    schema = {"properties": {"a": {"anyOf": [{"type": "integer"}, {"enum": ["auto"]}]}}}
    check({"a": "auto"}, schema, "here")
    with pytest.raises(ConfigError, match=r"^here: a: 'x' ") as caught:
        check({"a": "x"}, schema, "here")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["densenet121", "senet154", "googlenet", "nasnet", "bert-base"])
def test_another_network_is_not_offered(word: str) -> None:
    assert nearest(word, NETWORKS).startswith("known: alexnet, ")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("mpl", "mlp"), ("rensnet18", "resnet18"), ("vit_base", "vit-base"), ("alxnet", "alexnet")],
)
def test_a_network_with_a_slip_is_offered(word: str, meant: str) -> None:
    assert nearest(word, NETWORKS) == f"did you mean {meant!r}?"


def test_another_case_of_a_name_is_the_nearest() -> None:
    assert "did you mean 'ddp'?" in nearest("DDP", ["ddp", "fsdp"])


def test_words_that_yaml_reads_as_true_or_false_are_to_be_quoted() -> None:
    message = _message(_changed("experiment", yaml.safe_load("on")))
    assert "experiment: True is not a text, as YAML reads on" in message
    assert "write it in quotes" in message
    assert "2024 is not a text; write it in quotes" in _message(_changed("experiment", 2024))
