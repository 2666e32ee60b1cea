"""Cells on a dataset that a configuration declares: every rank knows it, and labels are right."""

from __future__ import annotations

import shutil

import pytest
from cases.own_folders import class_folders
from local_cells import local_site, run_one

from ddlbench.datasets.user_data import inspect_user_data
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, OWN_DATA, DataRequest, OwnDataset, declare
from ddlbench.planning.strategy import normalise


@pytest.fixture
def insects(tmp_path, monkeypatch):
    """Three classes of one colour each; validation lacks the first."""
    monkeypatch.delenv(OWN_DATA, raising=False)
    root = class_folders(tmp_path / "insects", splits=("train",), each=8)
    for name in ("bee", "cat"):
        shutil.copytree(root / "train" / name, root / "val" / name)
    declare({"insects": OwnDataset(folder=str(root), size=10)}, "here.yaml")
    yield DATASETS["insects"]
    DATASETS.forget_declared()


def test_a_declared_dataset_is_trained_and_validated(insects, tmp_path):
    cell = normalise(
        Cell(
            "insects", "mlp", "ddp", batch_size=6, devices_per_node=2, epochs=12, warmup_steps=0,
            learning_rate=0.01, validate=True, loader_workers=1,
        )
    )  # fmt: skip
    result, _ = run_one(cell, local_site(tmp_path), tmp_path / "results")
    assert result["status"] == "ok", result["reason"]
    assert cell.data_source == "real"
    data = inspect_user_data(DataRequest("insects", source=insects.source))
    assert result["inputs"]["dataset_digest"] == data.digest
    assert result["validation"][-1]["samples"] == insects.num_val == 16
    assert result["validation"][-1]["accuracy"] == 1.0
