"""links.json of an emulated fabric: the sweeps run inside its nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlbench.emulation import available
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.links import read_links
from ddlbench.experiment.site import GivenLinks, Interconnect, Slurm, load_site
from ddlbench.interconnect.measure import LinksFailed, measure_links
from ddlbench.interconnect.time_plan import links_geometry, links_request
from ddlbench.runtime import fabric

DELAY_S = 0.003
REASON = available()


def small_site(nodes, devices):
    return replace(
        load_site("local"),
        nodes=nodes,
        devices_per_node=devices,
        cell_timeout_s=240,
        interconnect=Interconnect(largest_bytes=2**12, sweep_budget_s=0.1),
        fabrics={"slow": LinkCondition(DELAY_S, None, loss=0.0)},
    )


@pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")
def test_what_is_measured_is_the_emulated_link(tmp_path):
    measure_links(small_site(2, 1), "slow", tmp_path / "links.json")
    actual = read_links(tmp_path / "links.json").to_dict()
    one_way, both_ways = actual["pairs"]
    assert both_ways["direction"] == "bidirectional"
    # Half a round trip between the nodes is the delay, and what gloo and two processes add.
    for world in (one_way, both_ways):
        assert world["nodes"] == [0, 1]
        for latency_s in (world["latency_s"][0][1], world["latency_s"][1][0]):
            assert latency_s >= 0.9 * DELAY_S
    link = actual["provenance"]["link"]
    assert link["fabric"] == actual["fabric"] == "slow"
    assert link["setting"]["latency_s"] == DELAY_S
    assert link["usage"]["over"] == "whole run"


@pytest.mark.exhaustive
@pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")
def test_devices_share_the_card_of_their_node(tmp_path):
    site = replace(small_site(2, 2), fabrics={"slow": LinkCondition(1e-3, 200e6, loss=0.0)})
    (rate,) = measure_links(site, "slow", tmp_path / "links.json").node_rates
    assert rate.cards < 1.5
    assert rate.node_bytes_per_s < 25e6


def test_a_cluster_measures_an_emulated_fabric_within_one_node():
    site = replace(small_site(3, 4), launcher="slurm", slurm=Slurm())
    assert links_geometry(site, "slow") == (4, 1)
    assert links_geometry(site, "default") == (3, 4)
    request = links_request(site, "slow")
    assert (request.nodes, request.tasks_per_node, request.gres) == (1, 4, "gpu:4")
    assert links_geometry(small_site(3, 2), "slow") == (3, 2)
    given = replace(site, interconnect=Interconnect(links={"slow": GivenLinks()}))
    assert links_geometry(given, "slow") == (1, 1)


def test_a_machine_that_cannot_emulate_says_so_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(fabric, "available", lambda backend: "namespaces are forbidden")
    with pytest.raises(LinksFailed, match="are not measured: fabric slow cannot be emulated here"):
        measure_links(small_site(2, 1), "slow", tmp_path / "links.json")
    assert not (tmp_path / "links.json").exists()
