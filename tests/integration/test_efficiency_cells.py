"""Whole cells say what they made of their devices."""

from __future__ import annotations

import pytest
from local_cells import local_site, odd_cell, run_one

from ddlbench.experiment.result import read_result
from ddlbench.report.efficiency import efficiency_columns


@pytest.mark.parametrize(
    ("strategy", "devices", "workers"),
    [("sequential", 1, 1), ("ddp", 2, 2), ("parameter-server", 3, 2), ("gpipe", 2, 2)],
)
def test_a_cell_has_its_utilisation_and_processor_time(tmp_path, strategy, devices, workers):
    cell = odd_cell("plain", strategy, devices)
    if strategy == "sequential":
        cell = cell.with_(nodes=1, devices_per_node=1)
    result, folder = run_one(cell, local_site(tmp_path, devices), tmp_path)
    part = result["efficiency"]
    assert (part["missing"], part["devices"]) == (None, workers)
    median_s = result["timing"]["step_s"]["median_s"]
    peaks = [rank["peak_flops_per_s"] for rank in result["ranks"]]
    servers = [rank["role"] == "server" for rank in result["ranks"]]
    assert [peak is None for peak in peaks] == servers
    peak = sum(filter(None, peaks))
    assert part["peak_flops_per_s"] == pytest.approx(peak)
    assert part["mfu"] == pytest.approx(part["flops_per_step"] / median_s / peak)
    assert all(rank["cpu_s"] > 0 for rank in result["ranks"])
    columns = efficiency_columns(read_result(folder / "result.json"))
    assert columns["mfu"] == part["mfu"]
    assert columns["cpu_s"] == pytest.approx(sum(rank["cpu_s"] for rank in result["ranks"]))
    energy = result["energy"]
    assert (energy["energy_j"] is None) == (not energy["domains"])
    assert energy["domains"] or energy["missing"]
