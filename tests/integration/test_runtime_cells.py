"""Whole cells with real processes: what becomes of them when they run, crash, hang or starve."""

from __future__ import annotations

import dataclasses
import json

import pytest
from local_cells import GPIPE, SEQUENTIAL, local_site, odd_cell, running

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import read_result
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell


@pytest.fixture
def site(tmp_path):
    return local_site(tmp_path)


def cell_of(network: str, strategy: str = "ddp", **changes) -> Cell:
    return odd_cell(network, strategy, **changes)


def measure(cell, site, tmp_path, **site_changes):
    site = dataclasses.replace(site, **site_changes)
    folder = tmp_path / "cells" / cell.id
    staging = stage_cell(cell, site, tmp_path)
    return run_cell(cell, site, folder, staging).to_dict(), folder


def nobody_is_left() -> bool:
    return not running()


@pytest.mark.parametrize(
    "cell",
    [SEQUENTIAL, cell_of("plain", max_steps=3, warmup_steps=0, precision="bf16"), GPIPE],
    ids=lambda cell: cell.strategy,
)
def test_a_cell_leaves_a_complete_result(cell, shared_cells):
    run = shared_cells.run(cell)
    result, folder = run.result, run.folder
    assert result["status"] == "ok"
    assert Cell.from_dict(result["cell"]) == cell
    timing = result["timing"]
    steps = cell.max_steps or 48 // 8
    assert [epoch["steps"] for epoch in timing["epochs"]] == [steps, steps]
    assert timing["samples_per_epoch"] == steps * 8
    assert timing["epoch_scaled"] == (steps * 8 != 48)
    elapsed = sum(epoch["elapsed_s"] for epoch in timing["epochs"]) / 2
    assert timing["epoch_s"] == pytest.approx(elapsed * 48 / (steps * 8))
    assert timing["samples_per_s"] == pytest.approx(48 / timing["epoch_s"])
    assert sum(rank["samples"] for rank in result["ranks"]) == 2 * steps * 8
    assert result["processes"] == len(result["ranks"])
    assert result["workers"] == cell.devices
    for rank in result["ranks"]:
        assert rank["threads"] == cell.threads_per_device
        assert rank["memory"][0]["peak_bytes"] > rank["parameter_bytes"]
    rows = (folder / "steps.csv").read_text().splitlines()
    assert len(rows) == 1 + cell.warmup_steps + 2 * steps
    assert result["provenance"]["packages"]["torch"]
    assert result["staging"]["seconds"] > 0
    assert (folder / "log.txt").is_file()
    assert not list(folder.glob(".run-*"))
    if cell.devices == 1:  # one process speaks with nobody
        assert result["communication"] is None


def test_a_role_without_a_batch_takes_part(site, tmp_path, shared_cells):
    cell = cell_of("plain", "odd_networks:TwoRoles")
    result, _ = measure(cell, site, tmp_path)
    worker, server = result["ranks"]
    assert (worker["role"], server["role"]) == ("worker", "server")
    assert server["samples"] == 0
    assert worker["samples"] == 2 * 48
    assert result["workers"] == 1
    assert result["devices"] == 2
    assert result["loss"]["last"] is not None
    assert result["loss"] == pytest.approx(shared_cells.sequential_loss(cell), rel=1e-4)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        pytest.param("sequential", {"devices_per_node": 1}, marks=pytest.mark.exhaustive),
        pytest.param("ddp", {}, marks=pytest.mark.exhaustive),
        ("pipedream", {"options": {"balance": "2+3"}}),
    ],
)
def test_a_run_that_diverges_is_measured_and_says_so(strategy, changes, site, tmp_path):
    cell = cell_of("plain", strategy, learning_rate=1e30, **changes)
    result, folder = measure(cell, site, tmp_path)
    assert result["status"] == "ok"
    assert result["loss"]["last"] is None
    assert any("training diverged: the loss is no number from step" in n for n in result["notes"])
    assert read_result(folder / "result.json").to_dict() == result
    assert "nan" in (folder / "steps.csv").read_text()


def test_out_of_memory_is_a_result(site, tmp_path):
    result, folder = measure(cell_of("out_of_memory"), site, tmp_path)
    assert result["status"] == "out_of_memory"
    assert "10 TB" in result["reason"]
    assert result["reason_code"] == "out_of_memory_host"
    assert result["timing"] is None
    assert result["log_tail"]
    assert read_result(folder / "result.json").status == "out_of_memory"
    assert nobody_is_left()


def test_what_only_the_network_shows_to_be_impossible_is_unsupported(site, tmp_path):
    cell = cell_of("plain", "gpipe", options={"balance": "1+1"})
    result, _ = measure(cell, site, tmp_path)
    assert result["status"] == "unsupported"
    assert "the network has 5" in result["reason"]
    assert result["reason_code"] == "wrong_balance"


def test_a_cell_that_hangs_times_out_and_all_ranks_end(site, tmp_path, hang_begins_limits):
    hang_begins_limits(ranks=2)
    result, _ = measure(cell_of("hang"), site, tmp_path, cell_timeout_s=600)
    assert result["status"] == "timeout"
    assert result["reason_code"] == "time_limit"
    assert nobody_is_left()


def test_a_cell_that_does_not_move_is_ended_with_the_stacks_of_every_rank(
    site, tmp_path, hang_begins_limits
):
    hang_begins_limits(ranks=2)
    cell = cell_of("hang")
    folder = tmp_path / "cells" / cell.id
    with pytest.raises(CellFailed, match="no step finished"):
        measure(cell, site, tmp_path, hang_timeout_s=600, cell_timeout_s=1e6)
    assert json.loads((folder / "failure.json").read_text())["reason_code"] == "hang"
    log = (folder / "log.txt").read_text()
    for rank in ("[0]", "[1]"):
        where = [line for line in log.splitlines() if line.startswith(rank)]
        assert any("odd_networks.py" in line for line in where), log
    assert nobody_is_left()


@pytest.mark.parametrize(
    ("network", "sentence", "code"),
    [
        ("crash_on_rank_1", "a bug on rank 1", "exception"),
        ("killed", "killed by signal 9", "rank_killed"),
    ],
)
def test_a_crash_is_no_result_and_takes_all_ranks_along(network, sentence, code, site, tmp_path):
    cell = cell_of(network)
    folder = tmp_path / "cells" / cell.id
    with pytest.raises(CellFailed, match="log.txt"):
        measure(cell, site, tmp_path)
    assert not (folder / "result.json").exists()
    failure = json.loads((folder / "failure.json").read_text())
    assert failure["status"] == "failed"
    assert sentence in failure["reason"]
    assert failure["reason_code"] == code
    assert nobody_is_left()


def test_missing_data_says_what_to_do(site, tmp_path):
    cell = cell_of("plain")
    folder = tmp_path / "cells" / cell.id
    with pytest.raises(CellFailed):
        run_cell(cell, site, folder, None)
    assert "stage" in json.loads((folder / "failure.json").read_text())["reason"]


def test_a_gpu_site_without_a_gpu_is_an_error_not_a_cpu_run(site, tmp_path):
    cell = cell_of("plain", "sequential", devices_per_node=1)
    with pytest.raises(CellFailed, match="finds no GPU"):
        measure(cell, site, tmp_path, device="cuda")
