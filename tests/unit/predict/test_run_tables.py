"""Filters of rows of published tables."""

import numpy as np
import pandas as pd
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.paradl.measured import measured_rows
from ddlbench.predict.run_tables import read_table, rows_of_kind

COLUMNS = {"gpus": np.array([8, 16, 64]), "accelerator": np.array(["A100 PCIe", "H100", "A100"])}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ({}, [0, 1, 2]),
        ({"max_gpus": "16"}, [0, 1]),
        ({"gpus_min": "16"}, [1, 2]),
        ({"gpus": "16"}, [1]),
        ({"accelerator": "a100"}, [0, 2]),
        ({"pipeline": "no", "tensor_max": "8"}, [0, 1, 2]),
    ],
)
def test_filters(kind, rows):
    assert np.flatnonzero(rows_of_kind(kind, COLUMNS, 3)).tolist() == rows


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ({"speed": "3"}, "write accelerator, gpus, pipeline, tensor"),
        ({"max_gpus": "many"}, "whole number"),
        ({"max_accelerator": "A100"}, "is a word"),
        ({"pipeline": "yes"}, "no row has it; write no"),
        ({"min_gpus": "100"}, "no row of 3"),
    ],
)
def test_refused(kind, sentence):
    with pytest.raises(ConfigError, match=sentence):
        rows_of_kind(kind, COLUMNS, 3)


def test_spaces_around_words_do_not_count(tmp_path):
    (tmp_path / "runs.csv").write_text("model , strategy\nvgg16 ,data \n")
    table = read_table(tmp_path / "runs.csv", ["model", "strategy"])
    assert table.to_dict("records") == [{"model": "vgg16", "strategy": "data"}]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n1,2,3,4\n", "runs.csv line 3: 4 values for 2 columns; write one for each"),
        ("", "runs.csv is empty; write a line of columns"),
    ],
)
def test_what_is_no_table_is_said(text, sentence, tmp_path):
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_table(tmp_path / "runs.csv", ["a"])


@pytest.mark.parametrize(
    ("column", "value"), [("gpus", "8.5"), ("gpus", "inf"), ("seconds_per_iteration", "1e400")]
)
def test_iterations_of_cnns_have_whole_devices_and_finite_times(column, value):
    row = {"model": "vgg16", "strategy": "data", "gpus": "8", "seconds_per_iteration": "1.5"}
    with pytest.raises(ConfigError, match=f"runs line 2: {column} is .*; write a"):
        measured_rows(pd.DataFrame([{**row, column: value}]), "runs")
