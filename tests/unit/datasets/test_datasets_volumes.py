"""Volumes are written as raw shards and come back as (C, D, H, W)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ddlbench.common.errors import ConfigError
from ddlbench.datasets import stage
from ddlbench.datasets.loading import make_feed
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest, DatasetSpec, estimate_bytes

SMALL = DatasetSpec("small-volumes", "Small", 4, 4, 6, 5, 24, 4, "raw", depth=7)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> DataRequest:
    monkeypatch.setitem(DATASETS.built_in, SMALL.name, SMALL)
    return DataRequest(SMALL.name)


def test_shapes_and_sizes() -> None:
    spec = DATASETS["cosmoflow"]
    assert spec.shape == (4, 256, 256, 256)
    assert spec.image_bytes == 4 * 256**3
    request = DataRequest("cosmoflow", scale=0.01)
    assert request.num_images("train") == 16
    assert estimate_bytes(request) > 18 * spec.image_bytes


@pytest.mark.parametrize("data_format", ["idx", "cifar", "imagefolder"])
def test_other_formats_are_refused(data_format: str) -> None:
    with pytest.raises(ConfigError, match="volumes are written as raw only"):
        DataRequest("cosmoflow", data_format)  # type: ignore[arg-type]


def test_staged_volumes_are_fed(small: DataRequest, tmp_path) -> None:
    staged = stage(small, tmp_path)
    feed = make_feed(staged.path, small, global_batch=8, shard=1, num_shards=2)
    batches = list(feed.batches(epoch=0))
    assert len(batches) == 3
    for batch in batches:
        assert batch.inputs.shape == (4, *SMALL.shape)
        assert batch.inputs.dtype == torch.float32
        assert set(batch.labels.tolist()) <= {0, 1, 2, 3}
    images = np.concatenate([batch.inputs.numpy() for batch in batches])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)
