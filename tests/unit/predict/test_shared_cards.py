"""Devices of a node that send to other nodes at once, over one network card or over several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import predict_factory as make
import pytest

from ddlbench.experiment.links import Links, NodeRate
from ddlbench.planning.step import Group
from ddlbench.predict.collective_times import Library
from ddlbench.predict.hardware import DeviceSheet, Fabric, System
from ddlbench.predict.links import LinkTable
from ddlbench.predict.planned_cluster import PlannedCluster, PlannedLinks
from ddlbench.predict.prediction import Prediction, ask, predictor_of

NODES = [0] * 4 + [1] * 4
HSDP_SWEEPS = (
    make.sweep(1e-3, 1e9, 4, operation="all_gather"),
    make.sweep(1e-3, 1e9, 4, operation="reduce_scatter"),
    make.sweep(0.0, 1e9, 2, level="network", nodes=2, devices_per_node=1),
)


def rate(device: float, node: float, devices: int = 4) -> dict[str, Any]:
    """What one device, and all of a node, send."""
    return {
        "nodes": 2,
        "devices_per_node": devices,
        "ranks": 2 * devices,
        "transport": "gloo",
        "message_bytes": 2**20,
        "device_bytes_per_s": device,
        "node_bytes_per_s": node,
    }


def table(*rates: dict[str, Any], sweeps: tuple[dict[str, Any], ...] = ()) -> LinkTable:
    values = make.links(make.pair(NODES, method="gloo"), sweeps=sweeps)
    values["node_rates"] = list(rates)
    return LinkTable(Links.from_dict(values))


@pytest.mark.parametrize(
    ("node", "cards"), [(0.7e9, 1.0), (1e9, 1.0), (2.5e9, 2.5), (4e9, 4.0), (4.4e9, 4.0)]
)
def test_cards_are_one_to_all_devices(node: float, cards: float) -> None:
    assert NodeRate.from_dict(rate(1e9, node)).cards == pytest.approx(cards)
    assert table(rate(1e9, node)).cards(4) == pytest.approx(cards)


def test_some_devices_of_a_node_have_their_part_of_its_cards() -> None:
    measured = table(rate(1e9, 2e9, 8))
    assert [measured.cards(devices) for devices in (1, 2, 4, 8)] == [1.0, 1.0, 1.0, 2.0]


def test_a_rate_that_was_not_measured_is_unknown() -> None:
    assert table().cards(4) == 1.0
    assert table().node_bytes_per_s(4) == float("inf")


def hsdp(*rates: dict[str, Any]) -> Prediction:
    """Four ranks of each node share the weights; each sums its share with its twin's."""
    plan = make.plan("hsdp", "2x4", 32)
    return ask(predictor_of("sharded"), make.workload(), table(*rates, sweeps=HSDP_SWEEPS), plan)


def test_sums_of_groups_take_turns_on_the_cards_that_they_share() -> None:
    without_s = hsdp(rate(1e9, 4e9)).exposed_communication_s
    # 100 MB of gradients: a quarter in each sum, at 1 s a GB.
    assert hsdp(rate(1e9, 2e9)).exposed_communication_s == pytest.approx(without_s + 0.025)
    assert hsdp(rate(1e9, 1e9)).exposed_communication_s == pytest.approx(without_s + 0.075)
    assert hsdp() == hsdp(rate(1e9, 1e9))


@pytest.mark.parametrize(
    ("geometry", "ranks", "widest"),
    [
        ("2x4", range(4), Group(1, 4)),
        ("2x4", range(0, 8, 4), Group(2, 1, sharing=4)),
        ("4x4", range(8), Group(2, 4)),
        # Ranks 3 to 5 are on two nodes, the second of which sends for 6 to 8, too.
        ("3x4", range(3), Group(3, 1, sharing=2)),
        ("2x6", range(4), Group(2, 2)),
        ("2x3", range(0, 6, 2), Group(3, 1, sharing=2)),
    ],
)
def test_a_step_waits_for_the_group_over_the_most_nodes(
    geometry: str, ranks: range, widest: Group
) -> None:
    assert Group.widest(make.plan("ddp", geometry, 48), ranks) == widest


def test_groups_that_do_not_fill_nodes_gather_over_the_network() -> None:
    cluster = PlannedCluster.named("h100-sxm", "gigabit", [(3, 4)])
    links = PlannedLinks(cluster.system, cluster.library)

    def waits_s(group: int) -> float:
        plan = make.plan("hsdp", "3x4", 48, options={"group": group})
        prediction = ask(predictor_of("ddlbench"), make.workload(), links, plan)
        return prediction.exposed_communication_s

    assert waits_s(4) < waits_s(12) < waits_s(3)


def test_servers_send_no_faster_than_their_node() -> None:
    def server(*rates: dict[str, Any]) -> Prediction:
        plan = make.plan("parameter-server", "2x4", 56, options={"servers": 1})
        return ask(predictor_of("parameter-server"), make.workload(), table(*rates), plan)

    alone, shared = server(rate(1e9, 4e9)), server(rate(1e9, 0.4e9))
    # Seven workers send 100 MB each to one server: 0.7 s at its link; four of them pass the cards.
    assert alone.exposed_communication_s == pytest.approx(2 * (7 * 1e-4 + 0.7))
    assert shared.exposed_communication_s == pytest.approx(2 * (7 * 1e-4 + 4 * 0.1 / 0.4))
    assert "do not share" not in " ".join(alone.limits)
    assert "do not share" in " ".join(server().limits)


def test_servers_are_no_nearer_if_links_within_nodes_are_slower() -> None:
    """The latency is that of the network, whichever links take longest."""
    sheet = DeviceSheet.load("a30")
    fabric = Fabric.load("infiniband-100")

    def step_s(inside: float) -> float:
        device = replace(sheet, link=replace(sheet.link, bytes_per_s=inside))
        links = PlannedLinks(System(device, fabric, 4, 3), Library.load("nccl"))
        plan = make.plan("parameter-server", "4x3", 80, options={"servers": 2})
        return ask(predictor_of("ddlbench"), make.workload(device_kind="cuda"), links, plan).step_s

    steps_s = [step_s(inside) for inside in (100e9, 50e9, 20e9, 10e9, 5e9, 2e9, 1e9)]
    assert steps_s == sorted(steps_s)


def test_messages_of_two_pipelines_wait_for_each_other_on_one_card() -> None:
    """Three devices each on nodes of two: the node in the middle sends for both pipelines."""
    nodes = [0, 0, 1, 1, 2, 2]
    options = {"chunks": 4, "replicas": 2, "balance": "2+1+1"}
    plan = make.plan("pipe-1f1b", "3x2", 64, options=options)
    sums = make.sweep(0.006, 1e9, 2, level="network", nodes=2, devices_per_node=1)

    def step_s(cards: int) -> float:
        values = make.links(make.pair(nodes, bandwidth=1e5), sweeps=(sums,))
        values["node_rates"] = [rate(1e5, cards * 1e5, 2)]
        links = LinkTable(Links.from_dict(values))
        return ask(predictor_of("ddlbench"), make.workload(), links, plan).step_s

    assert step_s(2) < step_s(1)


def test_sums_of_stages_take_turns_on_the_cards_that_they_share() -> None:
    """Two pipelines of two stages, a node each: both stages sum their gradients over the nodes."""
    options = {"chunks": 2, "replicas": 2, "balance": "2+2"}
    plan = make.plan("pipe-gpipe", "2x2", 64, options=options)
    sums = make.sweep(0.0, 1e7, 2, level="network", nodes=2, devices_per_node=1)

    def step_s(cards: int) -> float:
        values = make.links(make.pair([0, 0, 1, 1]), sweeps=(sums,))
        values["node_rates"] = [rate(1e9, cards * 1e9, 2)]
        links = LinkTable(Links.from_dict(values))
        return ask(predictor_of("ddlbench"), make.workload(), links, plan).step_s

    # 30 and 70 MB at 100 s a GB: the second sum begins when the first has ended.
    assert step_s(1) - step_s(2) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    ("fabric", "cards"), [("infiniband-400", 8), ("infiniband-800-node", 1), ("ethernet-100", 1)]
)
def test_data_sheets_tell_whose_cards_they_are(fabric: str, cards: int) -> None:
    cluster = PlannedCluster.named("h100-sxm", fabric, [(8, 8)])
    assert PlannedLinks(cluster.system, cluster.library).cards(8) == cards
