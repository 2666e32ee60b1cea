"""Whole cells of a parameter server, with real processes and real data."""

from __future__ import annotations

import json

import pytest
from local_cells import PARAMETER_SERVER, local_site, run_one

from ddlbench.experiment.cell import Cell
from ddlbench.runtime.supervise import CellFailed


def cell_of(devices, network="mlp", options=None, **changes) -> Cell:
    return PARAMETER_SERVER.with_(
        network=network,
        devices_per_node=devices,
        options=tuple((options or {}).items()),
        **changes,
    )


def measure(cell, tmp_path):
    result, folder = run_one(cell, local_site(tmp_path, devices=5), tmp_path)
    assert result["status"] == "ok", result["reason"]
    return result, folder


def test_a_cell_leaves_a_complete_result_and_learns_what_sequential_training_does(shared_cells):
    run = shared_cells.run(PARAMETER_SERVER)
    result, folder = run.result, run.folder
    assert result["update_semantics"] == "synchronous"
    assert (result["processes"], result["devices"], result["workers"]) == (4, 4, 2)
    assert result["loss"] == pytest.approx(shared_cells.sequential_loss(run.cell), rel=1e-4)
    assert result["timing"]["step_s"]["count"] == 20
    assert result["timing"]["samples_per_epoch"] == 120
    ranks = result["ranks"]
    assert [rank["role"] for rank in ranks] == ["server", "server", "worker", "worker"]
    assert [rank["samples"] for rank in ranks] == [0, 0, 120, 120]
    weight_bytes = 109_386 * 4
    assert [rank["parameter_bytes"] for rank in ranks[2:]] == [weight_bytes] * 2
    assert result["plan_details"]["server_bytes"] == [r["parameter_bytes"] for r in ranks[:2]]
    assert sum(r["parameter_bytes"] for r in ranks[:2]) == pytest.approx(weight_bytes, rel=1e-3)
    for rank in ranks:
        assert rank["communication_wait_s"] > 0
    for rank in ranks[:2]:  # weights, momentum, a buffer for each of two workers
        assert rank["memory"][0]["peak_bytes"] >= 4 * rank["parameter_bytes"]
    for rank in ranks[2:]:  # weights and gradients
        assert rank["memory"][0]["peak_bytes"] > 2 * weight_bytes
    assert [server["rank"] for server in result["plan_details"]["service"]] == [0, 1]
    trace = json.loads((folder / "trace.json").read_text())
    kinds = {(e["tid"], e["cat"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    assert {(0, "update"), (1, "receive_wait"), (2, "forward"), (3, "backward")} <= kinds


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_out_of_step_it_learns(servers, tmp_path):
    options = {"mode": "async", "message_bytes": 65_536}
    cell = cell_of(
        servers + 3,
        options=options if servers == 1 else {**options, "servers": servers},
        data_scale=0.01,  # 600 images
        epochs=4,
    )
    result, _ = measure(cell, tmp_path)
    assert result["update_semantics"] == "stale"
    assert result["workers"] == 3
    assert result["loss"]["first"] > 1
    assert result["loss"]["mean_last_epoch"] < 0.1 * result["loss"]["first"]
    for server in result["plan_details"]["service"]:
        assert 0 < server["mean_staleness"] <= server["max_staleness"]


@pytest.mark.exhaustive  # as those of DDP in test_runtime_cells.py
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_killed_worker_takes_all_ranks_along(mode, tmp_path):
    options = {} if mode == "sync" else {"mode": mode}
    with pytest.raises(CellFailed, match="rank 1: .*killed by signal 9"):
        measure(cell_of(3, "odd_networks:killed", options, max_steps=8), tmp_path)
