"""Whole cells with real processes in emulated nodes."""

from __future__ import annotations

import dataclasses
import importlib.util
import threading

import pytest
from local_cells import running

from ddlbench.emulation import EmulatedNodes, available
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.result import read_result
from ddlbench.experiment.site import load_site
from ddlbench.runtime import fabric as fabric_module
from ddlbench.runtime.fabric import FabricUnfit, fabric_up
from ddlbench.runtime.rank_job import RankJobFailed, run_rank_job
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell

DELAY_S = 0.01  # ten percent of it is more than a busy machine adds
REASON = available()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")


@pytest.fixture(autouse=True, scope="module")
def _probed_once():
    """Links between so many nodes are probed once; what a probe sees is test_emulation_nodes.py's.

    A probe takes longer than the rest of a test.
    """
    probe, passed = EmulatedNodes.probe, {}

    def first_probe(nodes):
        links = tuple(nodes.hosts)
        report = passed.get(links) or probe(nodes)
        if report["ok"]:
            passed[links] = report
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedNodes, "probe", first_probe)
        yield


@pytest.fixture
def site(tmp_path):
    return dataclasses.replace(
        load_site("local"),
        scratch=str(tmp_path / "scratch"),
        nodes=3,
        devices_per_node=2,
        fabrics={"slow": LinkCondition(DELAY_S, 100e6, loss=0.0)},
    )


def cell_of(network: str, strategy: str = "ddp", **changes) -> Cell:
    return Cell(
        dataset="mnist",
        network=f"odd_networks:{network}",
        strategy=strategy,
        batch_size=6,
        nodes=2,
        fabric="slow",
        epochs=1,
        max_steps=3,
        warmup_steps=1,
        data_scale=0.0008,
    ).with_(**changes)


def measure(cell, site, tmp_path, **site_changes):
    site = dataclasses.replace(site, **site_changes)
    folder = tmp_path / "cells" / cell.id
    return run_cell(cell, site, folder, stage_cell(cell, site, tmp_path)).to_dict(), folder


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell_of("plain", strategy, nodes=nodes, devices_per_node=devices, batch_size=12),
            marks=marks,
            id=f"{strategy} on {nodes}x{devices}",
        )
        for strategy, nodes, devices, marks in (
            ("horovod", 2, 1, ()),
            ("horovod", 2, 2, pytest.mark.exhaustive),
            ("ddp", 2, 1, pytest.mark.exhaustive),
            ("ddp", 3, 1, pytest.mark.exhaustive),
        )
    ],
)
def test_ranks_train_over_the_link_as_they_do_without(cell, site, tmp_path, shared_cells):
    if cell.strategy == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    result, folder = measure(cell, site, tmp_path)
    assert read_result(folder / "result.json").to_dict() == result
    assert result["status"] == "ok"
    # Gradients go there and back at least once, and that takes a round trip.
    assert result["timing"]["step_s"]["median_s"] >= 2 * DELAY_S
    assert len(result["provenance"]["hosts"]) == cell.nodes
    assert [rank["node"] for rank in result["ranks"]] == [
        node for node in range(cell.nodes) for _ in range(cell.devices_per_node)
    ]
    link = result["link"]
    assert link["fabric"] == "slow"
    assert link["setting"] == site.fabrics["slow"].to_dict()
    assert link["usage"]["over"] == "measured steps"
    assert link["host"] not in result["provenance"]["hosts"]
    assert result["provenance"]["tcp_congestion_control"] == "cubic"
    assert result["staging"]["nodes"] == 1
    alone = shared_cells.sequential_loss(cell)
    assert result["loss"]["last"] == pytest.approx(alone["last"], rel=1e-4)
    assert not running()


def test_ranks_of_one_node_train_over_links_inside_it(site, tmp_path, shared_cells):
    pcie = LinkCondition(0.0, None, 0.0, inside=LinkCondition(DELAY_S, 100e6, 0.0))
    cell = cell_of("plain", nodes=1, devices_per_node=2, batch_size=12)
    result, _ = measure(cell, site, tmp_path, fabrics={"slow": pcie})
    assert result["status"] == "ok"
    assert result["timing"]["step_s"]["median_s"] >= 2 * DELAY_S
    assert result["provenance"]["hosts"] == ["node0"]
    assert [(rank["node"], rank["local_rank"]) for rank in result["ranks"]] == [(0, 0), (0, 1)]
    assert result["link"]["setting"] == pcie.to_dict()
    alone = shared_cells.sequential_loss(cell)
    assert result["loss"]["last"] == pytest.approx(alone["last"], rel=1e-4)
    assert not running()


def test_on_a_cluster_neither_ranks_nor_data_need_srun(site, tmp_path):
    """There is no job here, so an srun would fail."""
    cluster = dataclasses.replace(site, launcher="slurm", nodes=1)
    cell = cell_of("plain")
    assert cluster.supports(cell) is None
    result, _ = measure(cell, cluster, tmp_path)
    assert result["status"] == "ok"
    assert result["link"]["fabric"] == "slow"


def test_a_cell_that_hangs_leaves_the_stacks_of_every_node_and_no_process(
    site, tmp_path, hang_begins_limits
):
    hang_begins_limits(ranks=2)
    cell = cell_of("hang")
    folder = tmp_path / "cells" / cell.id
    with pytest.raises(CellFailed, match="no step finished"):
        measure(cell, site, tmp_path, hang_timeout_s=600, cell_timeout_s=1e6)
    log = (folder / "log.txt").read_text()
    for rank in ("[0]", "[1]"):
        where = [line for line in log.splitlines() if line.startswith(rank)]
        assert any("odd_networks.py" in line for line in where), log
    assert not running()


@pytest.mark.exhaustive  # as without a fabric, in test_runtime_cells.py
def test_a_step_that_takes_too_long_is_the_result_timeout(site, tmp_path, hang_begins_limits):
    hang_begins_limits(ranks=2)
    result, folder = measure(cell_of("hang"), site, tmp_path, cell_timeout_s=600)
    assert result["status"] == "timeout"
    assert result["link"]["fabric"] == "slow"
    assert read_result(folder / "result.json").to_dict()["link"] == result["link"]
    assert not running()


@pytest.mark.exhaustive
def test_a_rank_that_is_killed_in_its_node_ends_the_others(site, tmp_path):
    cell = cell_of("killed", devices_per_node=2, batch_size=8)
    with pytest.raises(CellFailed, match="killed by signal 9"):
        measure(cell, site, tmp_path)
    assert not running()


def test_tools_run_in_the_nodes_too_one_after_the_other(site, tmp_path):
    site = dataclasses.replace(site, cell_timeout_s=90)
    with fabric_up(site, "slow", (2, 1)) as fabric:
        reports = run_rank_job(
            site, (2, 1), "tool_samples", {"mode": "report"}, tmp_path, fabric=fabric
        )
        assert [report["status"] for report in reports] == ["ok", "ok"]
        with pytest.raises(RankJobFailed, match="rank 1 had enough"):
            run_rank_job(site, (2, 1), "tool_samples", {"mode": "crash"}, tmp_path, fabric=fabric)
        assert fabric.report()["usage"]["over"] == "whole run"
    assert not running()


def test_a_relay_that_ends_ends_the_ranks(site, tmp_path, monkeypatch):
    monkeypatch.setattr(fabric_module, "_CHECK_RELAY_S", 0.5)

    def kill_the_relay_once_ranks_run():
        while not finished.wait(0.2):
            if running("tool_samples"):
                running("emulation.relay")[0].kill()
                return

    finished = threading.Event()
    killer = threading.Thread(target=kill_the_relay_once_ranks_run)
    with pytest.raises(FabricUnfit, match="relay"), fabric_up(site, "slow", (2, 1)) as fabric:
        if fabric.report()["usage"]["backend"] != "relay":
            pytest.skip("this kernel makes the links itself")
        killer.start()
        try:
            run_rank_job(site, (2, 1), "tool_samples", {"mode": "hang"}, tmp_path, fabric=fabric)
        finally:
            finished.set()
            killer.join()
    assert not running()
