"""Whole cells of synchronous pipelines, with real processes and real data."""

from __future__ import annotations

import pytest
from run_one import local_site, run_one

from ddlbench.experiment.cell import Cell


def _measure(tmp_path, strategy, devices, **options):
    cell = Cell(
        dataset="mnist",
        network="odd_networks:plain",
        strategy=strategy,
        batch_size=8,
        devices_per_node=devices,
        epochs=2,
        warmup_steps=1,
        data_scale=0.0008,
        learning_rate=0.1,
        options=tuple(sorted(options.items())),
    )
    return run_one(cell, local_site(tmp_path, devices=2), tmp_path)[0]


def test_cells_leave_complete_results(tmp_path):
    reference = _measure(tmp_path, "sequential", 1)
    for strategy, options in [
        ("pipe-1f1b", {"balance": "3+2"}),
        ("pipe-zbv", {"balance": "1+2+1+1"}),
        ("pipe-gpipe", {"balance": 5, "replicas": 2, "chunks": 2}),
    ]:
        result = _measure(tmp_path, strategy, 2, **options)
        assert result["status"] == "ok", result["reason"]
        assert result["update_semantics"] == "synchronous"
        assert (result["processes"], result["workers"], result["devices"]) == (2, 2, 2)
        assert result["loss"] == pytest.approx(reference["loss"], rel=1e-4)
        # Samples enter once, wherever they go from there.
        assert sum(rank["samples"] for rank in result["ranks"]) == 2 * 48
        for rank in result["ranks"]:
            assert rank["memory"][0]["peak_bytes"] > 0


def test_a_network_with_other_blocks_than_planned_is_unsupported(tmp_path):
    result = _measure(tmp_path, "pipe-gpipe", 2, balance="1+1")
    assert result["status"] == "unsupported"
    assert "deals 2 blocks to 2 stages, but the network has 5" in result["reason"]
