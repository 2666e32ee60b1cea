"""Whole cells of PipeDream and of model parallelism, with real processes and real data."""

from __future__ import annotations

import json

import pytest
from local_cells import PIPEDREAM, local_site, odd_cell, run_one

from ddlbench.runtime.supervise import CellFailed


def measure(cell, tmp_path):
    result, folder = run_one(cell, local_site(tmp_path, devices=4), tmp_path)
    assert result["status"] == "ok", result["reason"]
    return result, folder


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.exhaustive), 4])
def test_a_cell_of_pipedream_leaves_a_complete_result(devices, shared_cells):
    cell = PIPEDREAM.with_(devices_per_node=devices)
    run = shared_cells.run(cell)
    result, folder = run.result, run.folder
    assert result["update_semantics"] == "stale"
    assert (result["processes"], result["workers"]) == (devices, devices)
    assert result["plan_details"]["weight_versions"] == list(range(devices, 0, -1))
    assert result["timing"]["step_s"]["count"] == 16
    first, *others = result["ranks"]
    assert first["samples"] == 2 * 8 * 4
    assert [rank["samples"] for rank in others] == [0] * (devices - 1)
    for rank, versions in zip(
        result["ranks"], result["plan_details"]["weight_versions"], strict=True
    ):
        # Weights of every version, one gradient, momentum: more for stages with more in flight.
        assert rank["memory"][0]["peak_bytes"] > (versions + 1) * rank["parameter_bytes"]
        assert rank["communication_wait_s"] > 0
    trace = json.loads((folder / "trace.json").read_text())
    passes = [
        e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] in ("forward", "backward")
    ]
    measured = range(cell.warmup_steps, cell.warmup_steps + 16)
    for kind in ("forward", "backward"):
        for rank in range(devices):
            rank_passes = [e for e in passes if e["cat"] == kind and e["tid"] == rank]
            assert [e["args"]["mini_batch"] for e in rank_passes] == list(measured)
    # On one clock: a mini-batch is done on a stage before it begins on the next.
    ends = {(e["cat"], e["tid"], e["args"]["mini_batch"]): e["ts"] + e["dur"] for e in passes}
    slack = max(rank["uncertainty_s"] for rank in result["plan_details"]["clock"]["ranks"]) * 2e6
    for e in passes:
        before = e["tid"] - 1 if e["cat"] == "forward" else e["tid"] + 1
        done = ends.get((e["cat"], before, e["args"]["mini_batch"]), 0.0)
        assert e["ts"] + e["dur"] > done - slack


def test_replicas_share_the_samples_and_the_readers_read_ahead(tmp_path):
    options = {"balance": "3+2", "replicas": "2+1", "stage_all_reduce": "async"}
    cell = odd_cell("plain", "pipedream", 3, options=options, loader_workers=1, max_steps=5)
    result, _ = measure(cell, tmp_path)
    assert [rank["samples"] for rank in result["ranks"]] == [5 * 8, 5 * 8, 0]
    assert result["timing"]["samples_per_epoch"] == 5 * 8


@pytest.mark.parametrize(
    ("strategy", "devices", "changes"),
    [
        ("model-parallel-p2p", 2, {"options": {"balance": "3+2"}, "loader_workers": 1}),
        pytest.param("pipedream", 1, {"options": {"balance": 5}}, marks=pytest.mark.exhaustive),
    ],
    ids=["model parallelism", "one stage alone"],
)
def test_without_delays_it_learns_what_sequential_training_does(
    strategy, devices, changes, tmp_path, shared_cells
):
    cell = odd_cell("plain", strategy, devices, **changes)
    result, _ = measure(cell, tmp_path)
    assert result["loss"] == pytest.approx(shared_cells.sequential_loss(cell), rel=1e-5)
    if strategy == "model-parallel-p2p":
        assert result["update_semantics"] == "synchronous"


@pytest.mark.exhaustive
def test_a_killed_stage_takes_all_ranks_along(tmp_path):
    options = {"balance": "3+2", "replicas": "2+1"}
    cell = odd_cell("killed", "pipedream", 3, options=options)
    with pytest.raises(CellFailed, match="rank 1: .*killed by signal 9"):
        measure(cell, tmp_path)
