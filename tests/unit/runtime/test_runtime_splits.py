"""Whole cells of split strategies, with real processes and real data."""

from __future__ import annotations

import pytest
from run_one import local_site, run_one

from ddlbench.experiment.cell import Cell


def _measure(tmp_path, strategy, devices, network="alexnet", **options):
    cell = Cell(
        dataset="mnist",
        network=network,
        strategy=strategy,
        batch_size=8,
        devices_per_node=devices,
        epochs=2,
        warmup_steps=1,
        data_scale=0.0008,
        learning_rate=0.01,
        options=tuple(sorted(options.items())),
    )
    return run_one(cell, local_site(tmp_path, devices=2), tmp_path)


def test_cells_leave_complete_results(tmp_path):
    reference, _ = _measure(tmp_path, "sequential", 1)
    for strategy, options in [
        ("spatial", {"until": "auto"}),
        ("filter", {}),
        ("channel", {}),
        ("data-spatial", {"until": "auto", "split": "width"}),
        ("data-filter", {"group": 1}),
    ]:
        result, folder = _measure(tmp_path, strategy, 2, **options)
        assert result["status"] == "ok", result["reason"]
        assert result["update_semantics"] == "synchronous"
        assert (result["processes"], result["workers"], result["devices"]) == (2, 2, 2)
        assert result["loss"] == pytest.approx(reference["loss"], rel=1e-3)
        assert (folder / "trace.json").is_file()
        for rank in result["ranks"]:
            assert rank["memory"][0]["peak_bytes"] > 0
            assert rank["communication_wait_s"] > 0
    whole = reference["ranks"][0]["parameter_bytes"]
    dealt, _ = _measure(tmp_path, "filter", 2)
    assert [rank["parameter_bytes"] for rank in dealt["ranks"]] == [whole // 2] * 2


def test_too_few_rows_are_unsupported_and_the_layer_is_named(tmp_path):
    result, _ = _measure(tmp_path, "spatial", 2)
    assert result["status"] == "unsupported"
    assert "layer features_5 (MaxPool2d) has 1 rows, too few for 2 devices" in result["reason"]
