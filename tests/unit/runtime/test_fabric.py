"""The network of a run: what the site's own is, and what becomes of a cell over an emulated one."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import nullcontext

import pytest
from cases.rank_reports import rank_failure, rank_report

from ddlbench.emulation import namespaces, netem
from ddlbench.emulation.namespaces import Held, HelperKilled, Space
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.result import read_result
from ddlbench.experiment.site import load_site
from ddlbench.planning.plan import Process
from ddlbench.planning.planner import make_plan
from ddlbench.runtime import fabric, supervise
from ddlbench.runtime.fabric import (
    EmulatedFabric,
    RelayMeter,
    SiteFabric,
    cpu_shares,
    fabric_up,
    fault_of,
)
from ddlbench.runtime.result import assemble
from ddlbench.runtime.supervise import CellFailed, _judge, run_cell
from ddlbench.runtime.watchdog import MARK, Outcome

CONDITION = LinkCondition(latency_s=0.01, bandwidth_bits_per_s=1e9, loss=0.0)
CELL = Cell("mnist", "resnet18", "ddp", batch_size=8, nodes=2, fabric="lat10")


class Nodes:
    """Emulated nodes that are not there; each usage is a count."""

    interface = "eth0"

    def __init__(self, condition=CONDITION, nodes=2, devices_per_node=1):
        self.count = 0
        self.is_up = False
        self.missed: list[list[str]] = []
        self.calibrated = 0

    def __enter__(self):
        self.is_up = True
        return self

    def __exit__(self, *_):
        self.is_up = False

    def address(self, node):
        return f"10.0.0.{node + 1}"

    def command(self, node, command, device=0):
        return ["inside", str(node), str(device), *command]

    def probe(self):
        misses = self.missed.pop(0) if self.missed else []
        return {"ok": not misses, "misses": misses}

    def calibrate(self):
        self.calibrated += 1

    def reset_usage(self):
        self.count = 0

    def usage(self):
        self.count += 1
        return {
            "backend": "relay",
            "saturated": False,
            "share_of_core": 0.5,
            "count": self.count,
        }


@pytest.fixture
def site(tmp_path):
    return dataclasses.replace(
        load_site("local"),
        scratch=str(tmp_path / "scratch"),
        nodes=2,
        devices_per_node=2,
        fabrics={"lat10": CONDITION},
    )


def link(**usage):
    network = EmulatedFabric("lat10", CONDITION, Nodes(), {"ok": True}, "cpu")
    report = network.report()
    return {**report, "usage": {**report["usage"], **usage}}


def test_a_name_that_the_site_does_not_emulate_is_its_own_network(site):
    for name in ("default", "somebody-set-this"):
        with fabric_up(site, name, (2, 1)) as network:
            assert isinstance(network, SiteFabric)
            assert network.report() is None
            meeting = network.rendezvous()
            assert meeting.listener is not None
            assert meeting.listener.getsockname() == (meeting.host, meeting.port)
            meeting.listener.close()


def test_an_emulated_fabric_is_up_inside_and_gone_outside(site, monkeypatch):
    made = []
    monkeypatch.setattr(fabric, "available", lambda backend: None)
    monkeypatch.setattr(
        fabric, "EmulatedNodes", lambda *given: made.append(Nodes(*given)) or made[-1]
    )
    with pytest.raises(ZeroDivisionError), fabric_up(site, "lat10", (2, 1)) as network:
        meeting = network.rendezvous()
        assert (meeting.host, meeting.interface, meeting.listener) == ("10.0.0.1", "eth0", None)
        assert made[0].is_up
        raise ZeroDivisionError
    assert not made[0].is_up


@pytest.mark.parametrize("missed", [[], [["late"]], [["late"], ["later"]]])
def test_links_of_a_machine_that_was_busy_for_a_moment_are_set_and_probed_again(
    missed, site, monkeypatch
):
    nodes = Nodes()
    nodes.missed = list(missed)
    monkeypatch.setattr(fabric, "_PAUSE_S", 0.0)
    monkeypatch.setattr(fabric, "available", lambda backend: None)
    monkeypatch.setattr(fabric, "EmulatedNodes", lambda *given: nodes)
    with fabric_up(site, "lat10", (2, 1)) as network:
        probe = network.report()["probe"]
    assert probe == {"ok": True, "misses": [], "earlier_misses": missed}
    assert nodes.calibrated == len(missed)


@pytest.mark.parametrize(
    ("cores", "backend", "ranks", "relay", "shared"),
    [
        ({0, 1}, "relay", (0, 1), (1,), True),
        ({0}, "relay", (0,), (0,), True),
        ({0, 1, 2}, "relay", (0, 1), (2,), False),
        ({9, 4, 6, 5}, "relay", (4, 5, 6), (9,), False),
        ({0, 1, 2}, "netem", (0, 1, 2), (), False),
    ],
)
def test_the_relay_has_a_core_of_its_own_where_there_are_three(
    cores, backend, ranks, relay, shared
):
    actual = cpu_shares(cores, backend)
    assert (actual.ranks, actual.relay, actual.shared) == (ranks, relay, shared)


def test_usage_is_that_of_the_measured_steps():
    nodes = Nodes()
    meter = RelayMeter(nodes)
    meter.see("[0] loading")
    assert meter.usage()["over"] == "whole run"
    nodes.count = 40
    meter.see(f'[0] {MARK}{{"phase": "measured"}}')
    assert meter.usage() == {**nodes.usage(), "count": 1, "over": "measured steps, not all of them"}
    nodes.count = 6
    meter.see(f'[0] {MARK}{{"step": 3, "total": 5, "samples_per_s": 1.0}}')
    meter.see(f'[0] {MARK}{{"phase": "done"}}')
    nodes.count = 90
    assert meter.usage()["count"] == 7
    assert meter.usage()["over"] == "measured steps"


def test_a_mark_that_is_cut_is_no_mark():
    meter = RelayMeter(Nodes())
    for line in (f"[0] {MARK}", f'[0] {MARK}{{"phase": "mea', f"[0] {MARK}3", "phase: measured"):
        meter.see(line)
    assert meter.usage()["over"] == "whole run"


@pytest.mark.parametrize(
    ("seen", "node", "visible"),
    [(None, 0, "0,1"), (None, 1, "2,3"), ("", 1, "2,3"), ("4,5,6,7", 1, "6,7"), ("4,5", 1, "")],
)
def test_each_node_sees_its_own_gpus(monkeypatch, seen, node, visible):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    process = Process(0, "worker", node, 1, (1,))
    inside = fabric._Inside(Nodes(), devices_per_node=2, device_kind="cuda")
    assert inside.environment(process)["CUDA_VISIBLE_DEVICES"] == visible
    assert fabric._Inside(Nodes(), 2, "cpu").environment(process) == {}
    shared = fabric._Inside(Nodes(), 2, "cuda", share_gpu=True).environment(process)
    assert shared == {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}


def test_a_process_runs_at_the_links_of_its_device_and_nccl_takes_no_other_way():
    process = Process(3, "worker", 1, 1, (1,))
    inside = fabric._Inside(Nodes(), 2, "cuda", links_inside=True)
    assert inside.command(process, ["train"]) == ["inside", "1", "1", "train"]
    environment = inside.environment(process)
    assert (environment["NCCL_P2P_DISABLE"], environment["NCCL_SHM_DISABLE"]) == ("1", "1")


def test_a_process_with_several_devices_says_that_its_copies_are_not_shaped(site):
    pcie = dataclasses.replace(CONDITION, inside=CONDITION)
    remark = "copies between devices of one process are not shaped by fabric pcie"
    inside = dataclasses.replace(site, fabrics={"pcie": pcie})
    for strategy, notes in (("gpipe", [remark]), ("pipe-gpipe", [])):
        cell = Cell("mnist", "resnet18", strategy, batch_size=8, devices_per_node=2, fabric="pcie")
        result = assemble(make_plan(cell), inside, "timeout", "late", reports=[], staging=None)
        assert [note for note in result.notes if "not shaped" in note] == notes


def test_cores_are_confined_only_for_what_is_started_inside():
    before = os.sched_getaffinity(0)
    with fabric._confined((min(before),)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_a_saturated_relay_spoils_a_measurement_and_nothing_else():
    plan = make_plan(CELL)
    done = [rank_report(rank=rank) for rank in (0, 1)]
    busy = link(saturated=True, busiest_second_share=0.98)
    assert _judge(plan, done, Outcome(), link()) == ("ok", None)
    assert _judge(plan, done, Outcome(), None) == ("ok", None)
    status, reason = _judge(plan, done, Outcome(), busy)
    assert status == "failed"
    assert "relay of fabric lat10 used 98% of its core" in reason
    assert _judge(plan, [], Outcome(timed_out=True), busy)[0] == "failed"
    assert _judge(plan, [], Outcome(timed_out=True), link())[0] == "timeout"
    memory = [rank_failure("no room", status="out_of_memory", reason_code="out_of_memory_host")]
    assert _judge(plan, memory, Outcome(), busy)[0] == "out_of_memory"
    crash = [rank_failure("a bug")]
    assert _judge(plan, crash, Outcome(), busy) == ("failed", "rank 1: a bug")
    assert fault_of(None) is None


@pytest.mark.parametrize("saturated", [True, False])
def test_no_step_that_a_saturated_relay_made_slow_is_gone_on_from(
    saturated, site, tmp_path, monkeypatch
):
    class Up:
        def report(self):
            return link(saturated=saturated)

    def crash(*_):
        (tmp_path / ".checkpoint" / "step-00000002-1").mkdir()
        return Outcome()

    monkeypatch.setattr(supervise, "fabric_up", lambda *_: nullcontext(Up()))
    monkeypatch.setattr(supervise, "_launch_and_watch", crash)
    with pytest.raises(CellFailed):
        run_cell(CELL.with_(checkpoint_every_steps=2), site, tmp_path)
    assert (tmp_path / ".checkpoint" / "step-00000002-1").exists() == (not saturated)


def test_a_result_says_which_congestion_control_was_in_force(site):
    plan = make_plan(CELL)
    parts = {"reports": [], "staging": None}
    assert assemble(plan, site, "timeout", "late", **parts).link is None
    result = assemble(plan, site, "timeout", "late", **parts, link=link())
    assert result.link.setting["latency_s"] == 0.01
    assert result.provenance.tcp_congestion_control == "cubic"


def test_a_machine_that_cannot_emulate_says_unsupported(site, tmp_path, monkeypatch):
    monkeypatch.setattr(fabric, "available", lambda backend: "namespaces are forbidden")
    result = run_cell(CELL, site, tmp_path)
    assert result.status == "unsupported"
    assert result.reason == "fabric lat10 cannot be emulated here: namespaces are forbidden"
    assert read_result(tmp_path / "result.json") == result
    assert not (tmp_path / "log.txt").exists()


def test_a_trial_that_a_signal_ended_is_a_failure_and_no_result(site, tmp_path, monkeypatch):
    kill = tmp_path / "kill"
    kill.write_text("#!/bin/sh\nkill -9 $$\n")
    kill.chmod(0o700)
    for module in (namespaces, netem):
        monkeypatch.setattr(module, "tool", lambda name: str(kill))
    for ended in (
        lambda: Held([str(kill)], ("net",)),
        Space().__enter__,
        lambda: netem.missing_netem(Space()),
    ):
        with pytest.raises(HelperKilled, match="^kill was ended by signal 9$"):
            ended()
    folder = tmp_path / "cell"
    with pytest.raises(CellFailed, match="fabric lat10: kill was ended by signal 9"):
        run_cell(CELL, site, folder)
    assert json.loads((folder / "failure.json").read_text())["cause"] == "infrastructure"
    assert not (folder / "result.json").exists()


def test_a_link_that_misses_its_setting_is_refused_before_any_rank_starts(
    site, tmp_path, monkeypatch
):
    nodes = Nodes()
    nodes.missed = [["12 ms"], ["13 ms"], ["delay 14 ms instead of 10 ms"], ["not looked at"]]
    monkeypatch.setattr(fabric, "_PROBES", 3)
    monkeypatch.setattr(fabric, "_PAUSE_S", 0.0)
    monkeypatch.setattr(fabric, "available", lambda backend: None)
    monkeypatch.setattr(fabric, "EmulatedNodes", lambda *given: nodes)
    with pytest.raises(CellFailed, match=r"fabric lat10: delay 14 ms instead of 10 ms$"):
        run_cell(CELL, site, tmp_path)
    assert not nodes.is_up
    assert nodes.missed == [["not looked at"]]
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["status"], failure["cause"]) == ("failed", "infrastructure")
    assert not (tmp_path / "result.json").exists()
