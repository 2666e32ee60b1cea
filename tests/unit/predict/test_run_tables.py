"""Filters of rows of published tables."""

import numpy as np
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.run_tables import rows_of_kind

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
