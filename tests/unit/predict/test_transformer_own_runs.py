"""Own cells of transformers as rows of the oracle: shapes, cuts, and what is left out."""

import csv

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from predict_factory import cell
from torch import nn

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.networks.transformers import TransformerBlock, shape_of
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.planning.planner import make_plan
from ddlbench.predict.evaluate import Outcome
from ddlbench.predict.hardware import Accelerators
from ddlbench.predict.transformer import runs
from ddlbench.predict.transformer.configurations import load_shape
from ddlbench.predict.transformer.runs import COLUMNS, Cut, cut_of, rows_of_cells
from ddlbench.predict.transformer.step import EMBEDDING, steps
from ddlbench.predict.transformer.training_runs import training_runs

NETWORK = {"dataset": "cifar10", "network": "vit-tiny"}


def cut(strategy, geometry="1x4", batch_size=32, **options):
    return cut_of(make_plan(cell(strategy, geometry, batch_size, **NETWORK, **options)))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (cut("sequential", "1x1"), Cut()),
        (cut("ddp"), Cut(data=4)),
        (cut("horovod", "2x2"), Cut(data=4)),
        (cut("fsdp"), Cut(data=4, zero=3)),
        (cut("fsdp", options={"reshard_after_forward": False}), Cut(data=4, zero=2)),
        (cut("ddp", options={"shard": "optimizer", "accumulate": 2}), Cut(4, 1, 2, zero=1)),
        (cut("pipe-1f1b"), Cut(1, 4, 4, "1f1b")),
        (cut("pipe-gpipe", options={"replicas": 2}), Cut(2, 2, 4, "gpipe")),
        (cut("pipe-interleaved", "1x2"), Cut(1, 2, 4, "interleaved-1f1b", 2)),
        (cut("pipedream"), None),  # older weights
        (cut("parameter-server"), None),
        (cut("local-sgd"), None),  # averages now and then
        (cut("gpipe"), None),  # recomputes
        (cut("ddp", options={"hook": "powersgd"}), None),
    ],
)
def test_a_plan_is_a_cut(actual, expected):
    assert actual == expected


def test_a_vit_has_its_published_shape():
    assert transformer_shape("vit-tiny", "cifar10") == {
        "layers": 12,
        "hidden_size": 192,
        "attention_heads": 3,
        "sequence_length": 65,
        "vocabulary": 10,
    }
    assert transformer_shape("vgg11", "cifar10") is None


def test_our_network_is_a_shape_by_name():
    assert load_shape("vit-small:imagenet").hidden_size == 384
    counted = {"gpt-small:tokens-gpt2": 163.0e6, "vit-base:imagenet": 86.6e6}  # by PyTorch
    for name, parameters in counted.items():
        assert load_shape(name).parameters == pytest.approx(parameters, rel=0.01)
    with pytest.raises(ConfigError, match=r"transformer 'vit-smal:imagenet' is unknown"):
        load_shape("vit-smal:imagenet")


def test_layers_of_two_widths_are_no_shape():
    inputs = torch.zeros(1, 5, 8)
    equal = nn.Sequential(*(TransformerBlock(8, 2, 32, 1e-5) for _ in range(2)))
    actual = shape_of(equal, inputs)
    assert actual is not None
    assert (actual["layers"], actual["sequence_length"]) == (2, 5)
    unlike = nn.Sequential(TransformerBlock(8, 2, 32, 1e-5), TransformerBlock(8, 4, 32, 1e-5))
    assert shape_of(unlike, inputs) is None
    narrow = nn.Sequential(TransformerBlock(8, 2, 16, 1e-5))
    assert shape_of(narrow, inputs) is None


@pytest.fixture
def measured(monkeypatch):
    cells = [
        (cell("ddp", "1x2", 16, **NETWORK), {0: 0.3, 1: 0.1, 2: 0.2}),
        (cell("pipe-1f1b", "1x2", 16, **NETWORK), {0: 0.5}),
        (cell("ddp", "1x2", 16, dataset="cifar10", network="vgg11"), {0: 0.5}),  # no transformer
        (cell("horovod", "1x2", 16, **NETWORK), {}),  # not measured
        (cell("ddp", "1x2", 16, precision="bf16", **NETWORK), {0: 0.5}),
    ]
    outcomes = [Outcome(measured_cell, None, "ok", step_s) for measured_cell, step_s in cells]
    monkeypatch.setattr(runs, "measure", lambda *_: outcomes)


def test_measured_transformers_are_rows_that_the_oracle_reads(measured, tmp_path):
    rows = rows_of_cells([], "local", tmp_path)
    assert [(row["data"], row["pipeline"], row["micro_batch"]) for row in rows] == [
        (2, 1, 8),
        (1, 2, 4),
    ]
    assert [row["step_s"] for row in rows] == [0.2, 0.5]
    decoders = training_runs(pd.DataFrame(rows)).decoders
    actual = steps(decoders, Accelerators.load("megatron-a100"))
    assert (actual.seconds > 0).all()
    assert (actual.parts[EMBEDDING] == 0).all()  # our heads have weights of their own


def test_single_precision_moves_twice_the_bytes(measured, tmp_path):
    rows = pd.DataFrame(rows_of_cells([], "local", tmp_path))
    single = training_runs(rows).decoders
    mixed = training_runs(rows.assign(precision="mixed")).decoders
    platform = Accelerators.load("megatron-a100")
    parts, halves = steps(single, platform).parts, steps(mixed, platform).parts
    constant = 2 * (4 + 1) * platform.constant("send_s")  # of both hops of its passes
    assert parts["sends"][1] > halves["sends"][1] > constant
    assert (parts["element-wise"] > halves["element-wise"]).all()
    assert parts["update"] == pytest.approx(halves["update"] * 20 / 36)


def test_the_command_writes_the_table(measured, tmp_path):
    path = tmp_path / "own.csv"
    words = ["oracle", "rows", "--output", str(path)]
    ended = CliRunner().invoke(commands, words, catch_exceptions=False)
    assert ended.output.strip().endswith("is written: 2 rows")
    with path.open(encoding="utf-8", newline="") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS


def test_nothing_measured_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "measure", lambda *_: [])
    words = ["oracle", "rows", "--output", str(tmp_path / "own.csv")]
    ended = CliRunner().invoke(commands, words)
    assert "no measured cell of a transformer" in str(ended.exception)
    assert not (tmp_path / "own.csv").exists()
