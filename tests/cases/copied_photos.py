"""A copy of a folder of photos on scratch is the same data; for every format that is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlbench.datasets import declared
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.user_data import copy_user_data, inspect_user_data
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest, DatasetSpec, OwnDataset


def assert_copy_is_the_same(
    folder: Path, data_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copy ``folder/photos``, and read both.

    Of its 20 training and 4 validation images the k-th has pixels of value k, and class k % 3.
    """
    assert declared._format_of(OwnDataset(folder="photos"), folder / "photos") == data_format
    place = str(folder / "photos")
    spec = DatasetSpec("photos", "Photos", 3, 3, 8, 8, 1, 1, data_format, source=place)
    monkeypatch.setitem(DATASETS.built_in, "photos", spec)
    request = DataRequest("photos", source=place)
    data = inspect_user_data(request)
    assert (data.samples, data.classes) == ({"train": 20, "val": 4}, 3)
    copy_user_data(request, data, folder / "copy", workers=1)
    for split, numbers in (("train", range(20)), ("val", range(20, 24))):
        ids = np.arange(len(numbers))
        there, here = (
            open_split(folder / name, request, split).gather(ids) for name in ("photos", "copy")
        )
        assert here[0].equal(there[0])
        assert here[0][:, 0, 0, 0].tolist() == list(numbers)
        assert here[1].tolist() == [k % 3 for k in numbers]
