"""Requests are checked when they are written down."""

import subprocess
import sys

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DataRequest, estimate_bytes


def test_native_is_resolved():
    assert DataRequest("mnist").format == "idx"
    assert DataRequest("highres").format == "imagefolder"
    assert DataRequest("highres", "raw").format == "raw"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"dataset": "svhn"}, "unknown dataset 'svhn'"),
        ({"data_format": "lmdb"}, "unknown data format 'lmdb'"),
        ({"data_format": "cifar"}, "cannot be written as 'cifar'"),
        ({"dataset": "cifar10", "data_format": "idx"}, "idx holds grey images"),
        ({"scale": 0}, "scale must be"),
        ({"scale": float("nan")}, "scale must be"),
        ({"seed": -1}, "seed must be"),
        ({"data_format": "raw", "source": "/data"}, "not as 'raw'"),
    ],
)
def test_what_is_wrong_is_said(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        DataRequest(**{"dataset": "mnist", **fields})


def test_imagenet_as_raw_images_takes_what_arithmetic_says():
    size = estimate_bytes(DataRequest("imagenet", "raw"))
    assert size == pytest.approx((1_281_167 + 50_000) * 150_532, rel=1e-4)


def test_estimates_grow_with_the_scale():
    for dataset in ("mnist", "cifar10", "imagenet", "highres"):
        sizes = [estimate_bytes(DataRequest(dataset, scale=scale)) for scale in (0.01, 0.1, 1)]
        assert sizes == sorted(sizes)


def test_planning_needs_neither_torch_nor_datasets():
    code = (
        "import sys, ddlbench.experiment.dataset_spec as d;"
        "d.estimate_bytes(d.DataRequest('mnist'));"
        "print([m for m in ('torch', 'ddlbench.datasets', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
