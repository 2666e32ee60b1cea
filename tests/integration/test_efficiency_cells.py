"""Whole cells say what they made of their devices."""

from __future__ import annotations

import pytest
from local_cells import DDP, GPIPE, PARAMETER_SERVER, SEQUENTIAL

from ddlbench.experiment.result import read_result
from ddlbench.report.measurements import efficiency_columns


@pytest.mark.parametrize(
    ("cell", "workers"),
    [(SEQUENTIAL, 1), (DDP, 2), (PARAMETER_SERVER, 2), (GPIPE, 2)],
    ids=lambda value: getattr(value, "strategy", value),
)
def test_a_cell_has_its_utilisation_and_processor_time(shared_cells, cell, workers):
    run = shared_cells.run(cell)
    result, folder = run.result, run.folder
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
