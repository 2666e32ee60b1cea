"""The data of a cell that runs is nobody's to remove."""

from __future__ import annotations

import dataclasses

from local_cells import local_site, run_one

from ddlbench.experiment.cell import Cell
from ddlbench.runtime.staging import stage_cell, unstage_cell
from ddlbench.runtime.supervise import run_cell

CELL = Cell(
    dataset="mnist",
    network="odd_networks:holds_its_data",
    strategy="ddp",
    batch_size=8,
    devices_per_node=2,
    warmup_steps=1,
    data_scale=0.0008,
)


def test_ranks_hold_their_data_while_they_train(tmp_path, monkeypatch):
    site = local_site(tmp_path, 2)
    monkeypatch.setenv("ODD_SCRATCH", site.scratch)
    result, _ = run_one(CELL, site, tmp_path)
    assert result["status"] == "ok", result["reason"]
    assert all(rank["cpu_model"] for rank in result["ranks"])
    assert [rank["gpu_models"] for rank in result["ranks"]] == [[], []]


def test_data_that_another_cell_removed_in_between_is_made_again(tmp_path, monkeypatch):
    site = dataclasses.replace(local_site(tmp_path, 2), keep_data=False)
    monkeypatch.setenv("ODD_SCRATCH", site.scratch)
    staging = stage_cell(CELL, site, tmp_path)
    unstage_cell(CELL, site, tmp_path)
    result = run_cell(CELL, site, tmp_path / "cell", staging)
    assert result.status == "ok", result.reason
