"""Whole cells of split strategies, with real processes and real data."""

from __future__ import annotations

import pytest
from local_cells import local_site, odd_cell, run_one


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("spatial", {"until": "auto"}),
        pytest.param("filter", {}, marks=pytest.mark.exhaustive),
        pytest.param("channel", {}, marks=pytest.mark.exhaustive),
        pytest.param(
            "data-spatial", {"split": "width", "until": "auto"}, marks=pytest.mark.exhaustive
        ),
        pytest.param("data-filter", {"group": 1}, marks=pytest.mark.exhaustive),
    ],
)
def test_cells_leave_complete_results(strategy, options, tmp_path, shared_cells):
    cell = odd_cell("images", strategy, options=options)
    result, folder = run_one(cell, local_site(tmp_path), tmp_path)
    assert result["status"] == "ok", result["reason"]
    assert result["update_semantics"] == "synchronous"
    assert (result["processes"], result["workers"], result["devices"]) == (2, 2, 2)
    assert result["loss"] == pytest.approx(shared_cells.sequential_loss(cell), rel=1e-3)
    assert (folder / "trace.json").is_file()
    for rank in result["ranks"]:
        assert rank["memory"][0]["peak_bytes"] > 0
        assert rank["communication_wait_s"] > 0
    if strategy == "filter":  # weights are dealt out
        whole = sum(rank["parameter_bytes"] for rank in result["ranks"])
        assert [rank["parameter_bytes"] for rank in result["ranks"]] == [whole // 2] * 2
