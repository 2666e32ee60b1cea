"""Whole cells on emulated accelerators: real processes and messages, profiled computation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from local_cells import local_site

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Accelerator
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import run_cell

ROOT = Path(__file__).resolve().parents[2]
PROFILES = str(ROOT / "config" / "accelerators" / "one-core")


def run(strategy: str, accelerator: Accelerator, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """The result of a cell on two devices, and its folder."""
    site = dataclasses.replace(
        local_site(tmp_path), devices_per_node=2, accelerator=accelerator, cell_timeout_s=300
    )
    cell = Cell(
        "cifar10",
        "stack",
        strategy,
        batch_size=8,
        devices_per_node=2,
        data_scale=0.001,
        epochs=1,
        warmup_steps=1,
        max_steps=2,
        options=(("balance", "blocks"),) if strategy in ("pipedream", "gpipe") else (),
    )
    staging = stage_cell(cell, site, tmp_path)
    folder = tmp_path / "cells" / cell.id
    result = run_cell(cell, site, folder, staging).to_dict()
    assert result["status"] == "ok"
    return result, folder


@pytest.mark.parametrize(
    "strategy", ["ddp", pytest.param("pipe-zb", marks=pytest.mark.exhaustive), "pipedream"]
)
def test_a_strategy_runs_as_ever_and_says_what_was_emulated(strategy, tmp_path):
    accelerator = Accelerator(PROFILES)
    result, _ = run(strategy, accelerator, tmp_path)
    assert "emulated compute: times of one-core" in result["notes"]
    assert {rank["cpu_model"] for rank in result["ranks"]} == {accelerator.remark}
    assert result["loss"]["first"] == pytest.approx(2.302585, abs=1e-4)  # ln 10: equal outputs


def test_partitions_of_one_process_compute_at_once(tmp_path):
    pytest.importorskip("torchgpipe")
    accelerator = Accelerator(PROFILES, slow_down=2)
    result, folder = run("gpipe", accelerator, tmp_path)
    assert result["notes"] == [accelerator.remark]  # not that no speed-up can show
    spans = pd.read_csv(folder / "partitions.csv")
    forward = spans[spans["kind"] == "forward"]
    passed_s = forward["end_s"].max() - forward["start_s"].min()
    # 8 passes in the time of 5. In turns they would take at least as long as all together.
    assert (forward["end_s"] - forward["start_s"]).sum() > passed_s
