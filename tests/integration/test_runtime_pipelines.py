"""Whole cells of synchronous pipelines, with real processes and real data."""

from __future__ import annotations

import pytest
from local_cells import local_site, odd_cell, run_one


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("pipe-1f1b", {"balance": "3+2"}),
        pytest.param("pipe-zbv", {"balance": "1+2+1+1"}, marks=pytest.mark.exhaustive),
        pytest.param(
            "pipe-gpipe",
            {"balance": 5, "chunks": 2, "replicas": 2},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_cells_leave_complete_results(strategy, options, tmp_path, shared_cells):
    cell = odd_cell("plain", strategy, options=options)
    result, _ = run_one(cell, local_site(tmp_path), tmp_path)
    assert result["status"] == "ok", result["reason"]
    assert result["update_semantics"] == "synchronous"
    assert (result["processes"], result["workers"], result["devices"]) == (2, 2, 2)
    assert result["loss"] == pytest.approx(shared_cells.sequential_loss(cell), rel=1e-4)
    # Samples enter once, wherever they go from there.
    assert sum(rank["samples"] for rank in result["ranks"]) == 2 * 48
    for rank in result["ranks"]:
        assert rank["memory"][0]["peak_bytes"] > 0
