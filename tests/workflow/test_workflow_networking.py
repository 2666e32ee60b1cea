"""Cells over emulated links, from the experiment file to the tables."""

from __future__ import annotations

import json

import pytest

from ddlbench.emulation import available

DELAY_S = 0.01
CONDITION = {"latency_ms": DELAY_S * 1e3, "bandwidth_mbit_per_s": 200}
REASON = available()


def site(workflow, **changes):
    values = {
        "device": "cpu",
        "launcher": "local",
        "nodes": 2,
        "devices_per_node": 2,
        "scratch": str(workflow.scratch),
        "cell_timeout_s": 120,
        "fabrics": {"slow": CONDITION},
        **changes,
    }
    workflow.write("config/sites/slowbox.yaml", values)
    return "slowbox"


def experiment(workflow, strategies=("sequential", "ddp"), **changes):
    matrix = {"strategy": list(strategies), "geometry": ["2x1"], "fabric": ["slow"]}
    return workflow.experiment("slow.yaml", matrix=matrix, **changes)


@pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")
@pytest.mark.parametrize(
    "strategies",
    [
        ("sequential", "ddp"),
        # It speaks over gloo, as DDP does.
        pytest.param(("parameter-server",), marks=pytest.mark.exhaustive),
    ],
    ids=lambda strategies: strategies[-1],
)
def test_cells_run_over_an_emulated_link(workflow, strategies):
    config = experiment(workflow, strategies, site=site(workflow))
    ended = workflow.snakemake("cells", config=config)
    assert ended.code == 0, ended.text
    assert "Traceback" not in ended.text
    results = {}
    for path in (workflow.folder / "results" / "slowbox" / "cells").rglob("result.json"):
        result = json.loads(path.read_bytes())
        results[result["cell"]["strategy"]] = result
    assert {name: results[name]["status"] for name in strategies} == dict.fromkeys(strategies, "ok")
    for name in strategies:
        if name == "sequential":
            assert results[name]["link"] is None
            continue
        result = results[name]
        assert result["cell"]["fabric"] == "slow"
        assert result["link"]["setting"]["latency_s"] == pytest.approx(DELAY_S)
        # At least one message there and one back in every step.
        assert result["timing"]["step_s"]["median_s"] >= 2 * DELAY_S
        assert len(result["provenance"]["hosts"]) == 2


def test_a_cell_of_one_node_has_no_link_to_emulate(workflow):
    matrix = {"strategy": ["sequential", "ddp"], "geometry": ["1x2"], "fabric": ["slow"]}
    config = workflow.experiment("one.yaml", matrix=matrix, site=site(workflow))
    ended = workflow.ddlbench("plan", "--configfile", config, "--json")
    assert ended.code == 0, ended.text
    (reason,) = json.loads(ended.stdout)["unsupported_reasons"]
    assert "no link that slow could shape" in reason


def test_a_wrong_condition_is_one_sentence_before_any_job(workflow):
    wrong = {"slow": {"latency_ms": 10, "bandwith_mbit_per_s": 5}}
    config = experiment(workflow, site=site(workflow, fabrics=wrong))
    ended = workflow.snakemake(config=config)
    assert ended.code != 0
    assert "fabrics.slow: 'bandwith_mbit_per_s' is not a key here" in ended.text
    assert "Traceback" not in ended.text
