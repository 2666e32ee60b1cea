"""Packages of others add datasets and networks by one entry each."""

from __future__ import annotations

import logging
import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from ddlbench import cli
from ddlbench.common import entry_points
from ddlbench.common.entry_points import kind_of
from ddlbench.common.errors import ConfigError
from ddlbench.datasets import DataRequest, stage
from ddlbench.datasets.loading import make_feed
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS, estimate_bytes
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.registry import NETWORKS, PLUGINS, known, load, mismatch, pairs
from ddlbench.experiment.site import load_site
from ddlbench.planning import matrix
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label
from ddlbench.planning.matrix import expand
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.prediction import predictor_of
from ddlbench.report.labels import dataset_look

TOY_DATASET = """
from pathlib import Path

import numpy as np

from ddlbench.datasets.files import Records, record_of
from ddlbench.datasets.formats import Format
from ddlbench.datasets.files import ArraySplit
from ddlbench.experiment.dataset_spec import DatasetSpec

SPEC = DatasetSpec(
    "toy", "Toy", 3, 1, 4, 5, 24, 6, "npy", codec="toy_dataset:NPY", white=0.3, hatch="--"
)
PLAIN = DatasetSpec("plain", "Plain", 4, 1, 6, 6, 16, 4, "raw")


def write(content, root, images, workers, keep_fds):
    records: Records = {}
    for split, count in images.items():
        recipe = content.recipe(split, 0, count)
        for name, values in (
            ("images", content.draw(recipe)), ("labels", recipe.labels.astype(np.int64))
        ):
            path = root / f"{split}-{name}.npy"
            np.save(path, values)
            records[path.name] = record_of(path)
    return records


def read(root, spec, split):
    images = np.load(root / f"{split}-images.npy").reshape(-1, *spec.shape)
    return ArraySplit(images, np.load(root / f"{split}-labels.npy"))


NPY = Format(write, read)
"""

TOY_NETWORK = """
from ddlbench.experiment.registry import NetworkSpec

SPEC = NetworkSpec("tiny", "Tiny-1", "toy_network:build", reads="images")


def build(spec):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(spec.image_bytes, spec.num_classes))


def plain(spec):
    return build(spec)
"""


@pytest.fixture
def toy(third_party):
    third_party(
        "toy_dataset", TOY_DATASET, {"ddlbench.datasets": {"toy": "SPEC", "plain": "PLAIN"}}
    )


@pytest.fixture
def tiny(third_party):
    third_party(
        "toy_network", TOY_NETWORK, {"ddlbench.networks": {"tiny": "SPEC", "bare": "plain"}}
    )


def _experiment(dataset: str, network: str, strategy: str = "sequential"):
    return parse_experiment(
        {
            "experiment": "toy",
            "matrix": {
                "dataset": [dataset],
                "network": [network],
                "strategy": [strategy],
                "geometry": ["1x1"],
            },
            "settings": {"batch_size": 4},
        },
        "test",
    )


@pytest.mark.parametrize("name", ["toy", "plain"])
def test_a_dataset_of_another_package_is_planned_staged_loaded_and_drawn(toy, tmp_path, name):
    (row,) = expand(_experiment(name, "mlp"), load_site("local"))
    assert row.unsupported is None
    request = DataRequest(name)
    staged = stage(request, tmp_path)
    assert staged.size_bytes is not None
    assert staged.size_bytes <= estimate_bytes(request)
    spec = DATASETS[name]
    feed = make_feed(staged.path, request, global_batch=4, shard=0, num_shards=1)
    batches = list(feed.batches(epoch=0))
    assert len(batches) == spec.num_train // 4
    assert tuple(batches[0][0].shape) == (4, *spec.shape)
    assert set(np.concatenate([batch[1] for batch in batches])) == set(range(spec.num_classes))
    assert dataset_label(name) == spec.label
    assert in_dataset_order([name, "highres", "mnist"]) == ["mnist", "highres", name]
    look = dataset_look(name)
    assert (look.white, look.hatch) == (spec.white, spec.hatch)


def test_a_format_of_another_package_holds_generated_data_only(toy):
    with pytest.raises(ConfigError, match="not as 'npy'"):
        DataRequest("toy", source="/data/toy")
    with pytest.raises(ConfigError, match="unknown data format 'npy'"):
        DataRequest("mnist", data_format="npy")


def test_a_network_of_another_package_has_its_label_and_input(tiny):
    assert (network_label("tiny"), network_label("bare")) == ("Tiny-1", "bare")
    assert "reads images" in str(mismatch("tiny", "cosmoflow"))
    assert mismatch("bare", "cosmoflow") is None
    (row,) = expand(_experiment("mnist", "tiny"), load_site("local"))
    assert row.unsupported is None
    for name in ("tiny", "bare"):
        assert len(load("ddlbench.networks", name)(DATASETS["mnist"])) == 2
    assert {network for network, _ in pairs()} == set(NETWORKS.built_in)


def test_a_network_that_this_machine_cannot_import_has_its_name(third_party):
    third_party(
        "no_torch", "import a_package_that_is_not_here", {"ddlbench.networks": {"far": "f"}}
    )
    assert network_label("far") == "far"
    assert mismatch("far", "cosmoflow") is None
    assert known("ddlbench.networks")["far"] == "no_torch:f"


def test_a_dataset_that_is_none_is_named(third_party):
    third_party("odd_dataset", "SPEC = 3", {"ddlbench.datasets": {"odd": "SPEC"}})
    with pytest.raises(ConfigError, match="dataset 'odd': odd_dataset:SPEC is no DatasetSpec"):
        DATASETS["odd"]


ODD_CLASSES = """
from ddlbench.planning.data_parallel import DataParallel

class Renamed(DataParallel):
    name, label, executor = "ring", "Ring", "odd_classes:Ring"

class Bare(DataParallel):
    name = "odd"

class Predictor:
    name, source = "amdahl", "ours"
    def predict(self, *inputs): ...
"""


@pytest.mark.parametrize(
    ("find", "group", "target", "sentence"),
    [
        (
            strategy_of,
            "strategies",
            "Renamed",
            "Renamed has the name 'ring'; write name = 'odd'",
        ),
        (strategy_of, "strategies", "Bare", "its class Bare lacks label and executor; write"),
        (predictor_of, "predictors", "Predictor", "has the name 'amdahl'; write name = 'odd'"),
    ],
)
def test_a_class_that_its_entry_point_does_not_fit_is_named(
    third_party, find, group, target, sentence
):
    third_party("odd_classes", ODD_CLASSES, {f"ddlbench.{group}": {"odd": target}})
    with pytest.raises(ConfigError, match=f"{group[:-4]}.* 'odd': .*{sentence}"):
        find("odd")


FAULTY = """
from dataclasses import dataclass
from ddlbench.planning.data_parallel import DataParallel
from ddlbench.planning.plan import Options
from ddlbench.planning.strategy import Strategy

class Executor: ...

class Plain(Options):
    every: int = 2

@dataclass(frozen=True, kw_only=True)
class OfComplex(Options):
    every: complex = 1j

@dataclass(frozen=True, kw_only=True)
class OfLists(Options):
    every: "list[Executor]" = 1

@dataclass(frozen=True, kw_only=True)
class Bare(Options):
    every: int

class Mine({base}):
    name, label, family, executor = "mine", "Mine", "data parallel", "faulty:Executor"
    {body}
"""
FAULTS_OF_A_CLASS = {
    "executor = 'faulty:Nope'": "executor is 'faulty:Nope', but faulty has no Nope; write",
    "executor = 'faulty_elsewhere.a:Nope'": "but there is no module faulty_elsewhere.a; write",
    "executor = 'Nope'": "executor is 'Nope', but 'Nope' is no package.module:attribute; write",
    "replay = 'faulty:nope'": "replay is 'faulty:nope', but faulty has no nope; write",
    "label = 'DDP'": "label 'DDP' is that of ddp; write another label",
    "options = Plain": r"have no field every; write @dataclass\(.*\) above class Plain",
    "options = OfComplex": "option every has the default 1j; an option is a bool, int",
    "options = OfLists": "an option of OfLists has a type that is not known",
    "options = Bare": "option every has no default; write every: int = 1",
    "supports = lambda self, cell: True": "supports returns True; return None, or the reason",
    "supports = lambda self, cell: 1 / 0": r"fault in its code: ZeroDivisionError: .*\(faulty.py",
    "placement = lambda self, cell: []": r"placement returns \[\]; return a tuple with a Process",
    "placement = lambda self, cell: 3": "placement returns 3; return a tuple with a Process",
}


@pytest.mark.parametrize(
    ("base", "body", "sentence"),
    [
        ("Strategy", "pass", "its class Mine lacks supports and placement; write"),
        *(("DataParallel", *fault) for fault in FAULTS_OF_A_CLASS.items()),
    ],
)
def test_a_faulty_strategy_is_refused_before_anything_runs(third_party, base, body, sentence):
    source = FAULTY.format(base=base, body=body)
    third_party("faulty", source, {"ddlbench.strategies": {"mine": "Mine"}})
    experiment = _experiment("mnist", "mlp", "mine")
    with pytest.raises(ConfigError, match=f"strategy 'mine' of package faulty.*{sentence}"):
        expand(experiment, load_site("local"))


def test_a_strategy_without_a_fault_is_planned(third_party):
    third_party(
        "faulty",
        FAULTY.format(base="DataParallel", body="pass"),
        {"ddlbench.strategies": {"mine": "Mine"}},
    )
    (row,) = expand(_experiment("mnist", "mlp", "mine"), load_site("local"))
    assert row.unsupported is None


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("ddlbench.networks", "vgg11"),
        ("ddlbench.datasets", "mnist"),
        ("ddlbench.strategies", "ddp"),
        ("ddlbench.predictors", "sequential"),
    ],
)
def test_a_built_in_name_stays_built_in_and_the_other_is_told(third_party, caplog, group, name):
    before = DATASETS["mnist"] if group == "ddlbench.datasets" else known(group)[name]
    with caplog.at_level(logging.WARNING):
        third_party("thief", "PART = None", {group: {name: "PART"}})
        for _ in range(2):
            after = DATASETS["mnist"] if group == "ddlbench.datasets" else known(group)[name]
            assert "mnist" in list(DATASETS)
    assert after == before
    (line,) = [r.getMessage() for r in caplog.records if "thief" in r.getMessage()]
    assert f"{name!r} (thief:PART) is left out" in line
    assert "is built in; rename its entry point" in line


def test_a_command_of_another_package_is_listed_with_its_summary_and_runs(third_party):
    source = "import click\n@click.command()\ndef greet():\n    click.echo('hello')\n"
    third_party("toy_command", source, {"ddlbench.commands": {"greet": "greet", "plan": "greet"}})
    cli._added.cache_clear()
    listed = CliRunner().invoke(cli.commands, ["--help"]).output
    assert re.search(r"Plug-ins:\n(?:  .*\n)*  greet", listed)
    assert "toy_command" not in sys.modules
    assert CliRunner().invoke(cli.commands, ["greet"]).output == "hello\n"
    assert "hello" not in CliRunner().invoke(cli.commands, ["plan", "--help"]).output
    cli._added.cache_clear()


def _forget() -> None:
    for cache in (
        entry_points.installed,
        entry_points.third_party,
        known,
        cli._added,
        matrix.check_name,
    ):
        cache.cache_clear()


@pytest.mark.parametrize(("group", "name"), [(g, n) for g in PLUGINS for n in PLUGINS[g]])
def test_whoever_lacks_a_plug_in_is_told_how_to_install_it(group, name, monkeypatch):
    assert (project_root() / PLUGINS[group][name] / "pyproject.toml").is_file()
    sentence = (
        rf"{kind_of(group)} {name} needs the plug-in .*pip install .*\./{PLUGINS[group][name]}"
    )
    monkeypatch.setattr(entry_points, "entry_points", lambda group: ())
    _forget()
    with pytest.raises(ConfigError, match=sentence):
        if group == "ddlbench.commands":
            CliRunner().invoke(cli.commands, [name], catch_exceptions=False)
        elif group == "ddlbench.strategies":
            matrix.check_name(group, name, "test")
    if group == "ddlbench.strategies":
        with pytest.raises(ConfigError, match=sentence):
            load(group, name)
    _forget()
