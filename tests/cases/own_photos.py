"""A folder of photos is read; for every format of other libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlbench.datasets import declared
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.user_data import inspect_user_data
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest, DatasetSpec, OwnDataset


def assert_photos_are_read(folder: Path, data_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read ``folder/photos``.

    Of its 20 training and 4 validation images the k-th has pixels of value k, and class k % 3.
    """
    assert declared._format_of(OwnDataset(folder="photos"), folder / "photos") == data_format
    place = str(folder / "photos")
    spec = DatasetSpec("photos", "Photos", 3, 3, 8, 8, 1, 1, data_format, source=place)
    monkeypatch.setitem(DATASETS.built_in, "photos", spec)
    request = DataRequest("photos", source=place)
    data = inspect_user_data(request)
    assert (data.samples, data.classes) == ({"train": 20, "val": 4}, 3)
    for split, numbers in (("train", range(20)), ("val", range(20, 24))):
        ids = np.arange(len(numbers))
        images, labels = open_split(folder / "photos", request, split).gather(ids)
        assert images[:, 0, 0, 0].tolist() == list(numbers)
        assert labels.tolist() == [k % 3 for k in numbers]
