"""Our own test of pairs of GPUs: on a CUDA that is only named so, as no test machine has two GPUs.

Each copy is really made, in order, from one buffer into another; only times are not measured.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
from p2p_printer import printed

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect import node_pairs
from ddlbench.interconnect.p2p import parse_p2p


class Stream:
    """Does at once what it is given."""

    def __init__(self, *_: object) -> None: ...

    def wait_event(self, _: object) -> None: ...

    def wait_stream(self, _: object) -> None: ...

    def record_event(self, event: object = None) -> object:
        return event or object()


class Event:
    def __init__(self, **_: object) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, _: object) -> float:
        return 16.0  # ms


@pytest.fixture
def cuda(monkeypatch):
    """Sets how many GPUs there are, and which reach each other."""
    monkeypatch.setattr(node_pairs, "_on", lambda _: torch.device("cpu"))
    monkeypatch.setattr(node_pairs, "_pinned", lambda size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(node_pairs, "_LARGE_BYTES", 1600)
    monkeypatch.setattr(node_pairs, "_PIECE_BYTES", 100)

    def gpus(count: int, reach=lambda i, j: True) -> None:
        fake = SimpleNamespace(
            device_count=lambda: count,
            can_device_access_peer=reach,
            get_device_name=lambda index: f"GPU of type {index % 2}",
            Stream=Stream,
            Event=Event,
            stream=lambda _: contextlib.nullcontext(),
            synchronize=lambda _: None,
            _sleep=lambda _: None,
        )
        monkeypatch.setattr(node_pairs.torch, "cuda", fake)

    return gpus


def test_the_matrices_are_those_of_nvidias_test(cuda):
    cuda(3)
    pairs = node_pairs.gpu_pairs()
    theirs = parse_p2p(printed(3))["pairs"]
    assert {(pair["direction"], pair["access"]) for pair in pairs} == {
        (pair["direction"], pair["access"]) for pair in theirs
    }
    for pair in pairs:
        assert set(pair) == set(theirs[0])
        for matrix in (pair["bandwidth_bytes_per_s"], pair["latency_s"]):
            assert [[value is None for value in row] for row in matrix] == [
                [i == j for j in range(3)] for i in range(3)
            ]
    one_way, both_ways = pairs[0], pairs[1]
    assert one_way["bandwidth_bytes_per_s"][0][1] == pytest.approx(1600 / 16e-3)
    assert both_ways["bandwidth_bytes_per_s"][0][1] == pytest.approx(2 * 1600 / 16e-3)
    assert one_way["latency_s"][2][0] == pytest.approx(16e-3 / 100)


def test_gpus_that_do_not_reach_each_other_have_no_second_way(cuda):
    cuda(2, reach=lambda i, j: False)
    assert {pair["access"] for pair in node_pairs.gpu_pairs()} == {"staged"}
    assert len(node_pairs.gpu_pairs()) == 2


def test_where_some_reach_each_other_the_first_way_has_no_one_name(cuda):
    cuda(3, reach=lambda i, j: {i, j} == {0, 1})
    assert [pair["access"] for pair in node_pairs.gpu_pairs()] == [None, None, "staged", "staged"]


@pytest.mark.parametrize("size", [1, 99, 100, 101, 250, 1600])
def test_a_copy_through_the_host_moves_every_byte(cuda, size):
    cuda(2)
    copy = node_pairs._HostCopy(0, 1, size)
    copy.source.copy_(torch.arange(size) % 251)
    for _ in range(2):  # both pieces are used again
        copy.target.zero_()
        copy.enqueue()
        assert torch.equal(copy.target, copy.source)


def context(interconnect):
    return SimpleNamespace(settings={"interconnect": interconnect}, process=SimpleNamespace(node=0))


@pytest.fixture
def node(cuda, monkeypatch):
    """A node of two GPUs, without NVIDIA's programs."""
    cuda(2)
    monkeypatch.setattr(node_pairs, "is_shared", lambda: False)
    provenance = {"gpu_models": ["H100", "H100"], "cpu_model": "", "cpu_count": 1}
    monkeypatch.setattr(node_pairs, "rank_provenance", lambda: provenance)
    for name in ("find_or_build_p2p", "find_nvbandwidth"):
        monkeypatch.setattr(node_pairs, name, lambda _: None)
    return monkeypatch


def test_without_nvidias_test_a_node_copies_itself_and_says_how_to_get_it(node):
    report = node_pairs.work(context({}))
    assert {pair["method"] for pair in report["pairs"]} == {"device-copies"}
    assert "make p2p" in report["notes"][0]
    assert report["notes"][1] == "pairs within the node: our own copies"


def test_a_test_that_fails_is_a_note_and_the_next_one_measures(node):
    def fails(_):
        raise ConfigError("p2pBandwidthLatencyTest on n1 (run 1 of 5): failed: no driver")

    node.setattr(node_pairs, "find_or_build_p2p", lambda _: "binary")
    node.setattr(node_pairs, "run_p2p", fails)
    report = node_pairs.work(context({}))
    assert {pair["method"] for pair in report["pairs"]} == {"device-copies"}
    assert "failed: no driver" in report["notes"][0]
    theirs = parse_p2p(printed(2))["pairs"]
    node.setattr(node_pairs, "find_nvbandwidth", lambda _: "other")
    node.setattr(node_pairs, "run_nvbandwidth", lambda _: theirs)
    report = node_pairs.work(context({}))
    assert (len(report["pairs"]), len(report["notes"])) == (len(theirs), 1)


def test_a_wrong_path_in_the_site_does_not_end_the_job(node):
    node.setattr(
        node_pairs,
        "find_or_build_p2p",
        lambda _: (_ for _ in ()).throw(ConfigError("interconnect.p2p_binary: /x is no program")),
    )
    report = node_pairs.work(context({"p2p_binary": "/x"}))
    assert "/x is no program" in report["notes"][0]
    assert report["pairs"]


def test_with_nvidias_test_there_is_no_note(node):
    node.setattr(node_pairs, "find_or_build_p2p", lambda _: "binary")
    node.setattr(node_pairs, "run_p2p", lambda _: parse_p2p(printed(2))["pairs"])
    report = node_pairs.work(context({}))
    assert report["notes"] == []
    assert {pair["method"] for pair in report["pairs"]} == {"p2pBandwidthLatencyTest"}
