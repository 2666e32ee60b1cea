"""The tools really run: copies, gloo and Horovod between local processes."""

import importlib.util
import math
from dataclasses import replace

import pytest

from ddlbench.experiment.links import read_links
from ddlbench.experiment.site import Interconnect, load_site
from ddlbench.interconnect.measure import LinksFailed, measure_links
from ddlbench.report.drawing import make_links_figures

LARGEST = 2**16


def small_site(nodes, devices):
    return replace(
        load_site("local"),
        nodes=nodes,
        devices_per_node=devices,
        cell_timeout_s=240,
        interconnect=Interconnect(largest_bytes=LARGEST, sweep_budget_s=0.1),
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("links") / "links.json"
    measure_links(small_site(1, 2), "default", path)
    return path


def test_both_scopes_have_all_pairs(measured):
    actual = read_links(measured).to_dict()
    assert [(p["scope"], p["method"], p["direction"]) for p in actual["pairs"]] == [
        ("node", "device-copies", "unidirectional"),
        ("world", "gloo", "unidirectional"),
        ("world", "gloo", "bidirectional"),
    ]
    for pair in actual["pairs"]:
        for key in ("bandwidth_bytes_per_s", "latency_s"):
            values = [pair[key][0][1], pair[key][1][0]]
            assert all(0 < value < math.inf for value in values)
    assert actual["pairs"][0]["node_type"]


def test_every_operation_is_swept_and_fitted(measured):
    actual = read_links(measured).to_dict()
    kinds = {(sweep["operation"], sweep["transport"]) for sweep in actual["sweeps"]}
    wanted = {
        (operation, "gloo")
        for operation in ("p2p", "all_reduce", "broadcast", "all_gather", "reduce_scatter")
    }
    wanted |= {("all_reduce", "ddp"), ("all_gather", "fsdp"), ("reduce_scatter", "fsdp")}
    if importlib.util.find_spec("horovod"):
        wanted.add(("all_reduce", "horovod"))
    assert kinds == wanted
    for sweep in actual["sweeps"]:
        assert (sweep["level"], sweep["ranks"]) == ("node", 2)
        sizes = [point["message_bytes"] for point in sweep["points"]]
        assert sizes == sorted(sizes)
        part = (sweep["operation"], sweep["transport"]) == ("all_gather", "fsdp")
        assert sizes[0] == (512 if part else 1024)  # of a message of 1024 bytes, cut in two
        assert sweep["fit"]["pieces"]
        # On a machine that is busy a sweep may end early, but never in silence.
        name = f"{sweep['operation']} over 1x2 with {sweep['transport']}"
        if not any(note.startswith(name) for note in actual["notes"]):
            gathers = sweep["operation"] == "all_gather"
            assert sizes[-1] == (LARGEST // 2 if gathers else LARGEST)


def test_the_cost_of_a_tensor_was_measured(measured):
    costs = read_links(measured).tensor_costs
    assert [cost.operation for cost in costs] == ["all_gather", "reduce_scatter"]
    assert {(cost.library, cost.nodes, cost.ranks) for cost in costs} == {("fsdp", 1, 2)}
    assert max(cost.tensor_s for cost in costs) > 0


def test_messages_were_timed_after_a_computation(measured):
    delays = read_links(measured).delays
    collectives = {(name, "gloo") for name in ("all_reduce", "all_gather", "reduce_scatter")}
    sharded = {("all_gather", "fsdp"), ("reduce_scatter", "fsdp")}
    actual = {(delay.operation, delay.transport) for delay in delays}
    assert actual == {("p2p", "gloo"), *collectives, *sharded}
    assert {(delay.nodes, delay.devices_per_node, delay.ranks) for delay in delays} == {(1, 2, 2)}
    assert [delay.operation for delay in delays if delay.alone_s] == ["p2p"]


def test_an_all_reduce_was_timed_beside_computation(measured):
    (overlap,) = read_links(measured).overlaps
    assert (overlap.nodes, overlap.devices_per_node, overlap.ranks) == (1, 2, 2)
    assert 0 <= overlap.hidden_share <= 1
    assert min(overlap.alone_s, overlap.compute_s, overlap.both_s) > 0


def test_processor_times_and_what_idle_horovod_costs_are_known(measured):
    links = read_links(measured)
    assert all(
        point.cpu_s is not None and point.cpu_s >= 0
        for sweep in links.sweeps
        for point in sweep.points
    )
    if importlib.util.find_spec("horovod"):
        (background,) = links.backgrounds
        assert (background.library, background.ranks) == ("horovod", 2)
        assert min(background.alone_s, background.beside_s) > 0


def test_figures_lie_beside(measured):
    make_links_figures(read_links(measured), measured.parent)
    names = {path.name for path in measured.parent.iterdir() if path.is_file()}
    wanted = {f"{name}.{kind}" for name in ("links", "sweeps") for kind in ("png", "pdf", "csv")}
    assert wanted <= names


@pytest.mark.parametrize(
    ("nodes", "devices", "wanted"),
    [
        (3, 1, {(2, 1, 2, "network"), (3, 1, 3, "network")}),
        pytest.param(
            *(2, 2, {(1, 2, 2, "node"), (2, 1, 2, "network"), (2, 2, 4, "network")}),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_groups_of_ranks_within_and_between_nodes(nodes, devices, wanted, tmp_path):
    """Local processes stand for nodes: every group joins anew."""
    site = small_site(nodes, devices)
    few = replace(site.interconnect, largest_bytes=2**12)
    site = replace(site, interconnect=few)
    actual = measure_links(site, "emulated", tmp_path / "links.json").to_dict()
    groups = {(s["nodes"], s["devices_per_node"], s["ranks"], s["level"]) for s in actual["sweeps"]}
    assert groups == wanted
    world = next(pair for pair in actual["pairs"] if pair["scope"] == "world")
    assert world["nodes"] == [node for node in range(nodes) for _ in range(devices)]
    assert len(world["bandwidth_bytes_per_s"]) == nodes * devices
    assert actual["fabric"] == "emulated"


def test_a_gpu_site_without_a_gpu_is_one_sentence(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    broken = replace(small_site(1, 2), device="cuda")
    with pytest.raises(LinksFailed, match="torch finds no GPU on this node") as caught:
        measure_links(broken, "default", tmp_path / "links.json")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "links.json").exists()


def test_a_failed_link_test_is_one_sentence(tmp_path):
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho \"Cuda failure x.cu:610: 'driver version is insufficient'\"\n")
    fake.chmod(0o755)
    broken = replace(small_site(1, 2), device="cuda")
    broken = replace(broken, interconnect=replace(broken.interconnect, p2p_binary=str(fake)))
    with pytest.raises(LinksFailed, match="the test failed: driver version is insufficient"):
        measure_links(broken, "default", tmp_path / "links.json")
