"""Pairs of many ranks: a declared sample; its holes are read as holes; sweeps outlive the pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations

import pytest
import torch
from torch import distributed as dist

from ddlbench.common.errors import ConfigError
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.links import (
    Links,
    NodeRate,
    read_links,
    write_links,
)
from ddlbench.experiment.site import load_site
from ddlbench.interconnect import measure as measure_module
from ddlbench.interconnect.measure import world_pairs
from ddlbench.interconnect.pair_matrix import with_slow_pairs
from ddlbench.interconnect.rank_pairs import MOST_PAIRS, chosen_pairs
from ddlbench.planning.partition.stages import bandwidth_of
from ddlbench.planning.plan import a_worker_each
from ddlbench.predict.links import LinkTable
from ddlbench.runtime.rank_job import RankJobFailed


def ranks_on(nodes: int, devices: int) -> list[int]:
    return [node for node in range(nodes) for _ in range(devices)]


# Which pairs


@pytest.mark.parametrize("nodes", [ranks_on(2, 2), ranks_on(1, 22)])
def test_few_ranks_have_all_their_pairs(nodes):
    assert chosen_pairs(nodes) == list(permutations(range(len(nodes)), 2))


def test_of_many_ranks_a_sample_is_measured():
    nodes = ranks_on(32, 8)
    chosen = chosen_pairs(nodes)
    assert len(set(chosen)) == len(chosen) == MOST_PAIRS  # of 65 280
    assert all(sender != receiver for sender, receiver in chosen)
    assert set(permutations(range(8), 2)) <= set(chosen)
    for first, second in pairwise(range(0, 256, 8)):
        assert {(first, second), (second, first)} <= set(chosen)
    assert {(rank, (rank + 1) % 256) for rank in range(256)} <= set(chosen)
    by_lot = [pair for pair in chosen if abs(pair[0] - pair[1]) not in (1, 8, 255)]
    assert len({nodes[sender] for sender, _ in by_lot}) > 16  # from all over the site
    assert chosen == chosen_pairs(nodes)  # every rank finds the same


def test_however_many_ranks_the_sample_is_no_larger():
    for nodes in (ranks_on(1000, 1), ranks_on(2, 32), ranks_on(300, 8)):
        chosen = chosen_pairs(nodes)
        assert len(set(chosen)) == len(chosen) == MOST_PAIRS
        assert all(0 <= rank < len(nodes) for pair in chosen for rank in pair)


# Measured, by real processes


def pairs_here(most: int, rank: int, store: dist.Store, *, budget_s: float) -> dict:
    from ddlbench.interconnect import rank_pairs
    from ddlbench.interconnect.collectives import Group, joined

    rank_pairs.chosen_pairs = lambda nodes: chosen_pairs(nodes, most)
    members = a_worker_each(1, 3, 3)
    group = Group(members, members[rank], store, torch.device("cpu"), "lo")
    with joined(group):
        report = rank_pairs.measure_pairs(group, budget_s)
        dist.barrier()
    return report


def measured(budget_s: float = 60, most: int = MOST_PAIRS) -> list[dict]:
    return run_ranks(partial(pairs_here, budget_s=budget_s), [most], 3)[0]


def test_three_ranks_measure_all_pairs_in_three_passes():
    first, *others = measured()
    assert others == [{}, {}]
    pairs = [pair.to_dict() for pair in world_pairs(first)]
    assert [pair["direction"] for pair in pairs] == ["unidirectional", "bidirectional"]
    for pair in pairs:
        assert pair["sampled"] is None
        assert pair["repeats"] == 3
        for key in ("latency_s", "bandwidth_bytes_per_s"):
            assert all((value is None) == (i == j) for i, row in enumerate(pair[key])
                       for j, value in enumerate(row))  # fmt: skip


def test_a_sample_leaves_holes_and_says_so():
    pair = world_pairs(measured(most=4)[0])[0].to_dict()
    assert pair["sampled"]["measured_pairs"] == 4
    assert pair["sampled"]["all_pairs"] == 6
    holes = [(i, j) for i, j in permutations(range(3), 2) if pair["latency_s"][i][j] is None]
    assert set(holes) == set(permutations(range(3), 2)) - set(chosen_pairs([0, 0, 0], 4))


def test_when_time_is_over_no_pair_is_begun():
    pair = world_pairs(measured(budget_s=-1)[0])[0].to_dict()
    assert pair["sampled"]["measured_pairs"] == 0
    assert pair["sampled"]["rule"] == "all pairs; time was over after 0 of 6"
    assert all(value is None for row in pair["latency_s"] for value in row)


def node_rates_here(devices: int, rank: int, store: dist.Store) -> list[dict]:
    from ddlbench.interconnect.collectives import Group, joined
    from ddlbench.interconnect.rank_pairs import measure_node_rates

    members = a_worker_each(4 // devices, devices, devices)
    group = Group(members, members[rank], store, torch.device("cpu"), "lo")
    with joined(group):
        rates = measure_node_rates(group)
        dist.barrier()
    return rates


def test_all_devices_of_a_node_send_to_another_at_once():
    first, *others = run_ranks(node_rates_here, [2], 4)[0]
    assert others == [[], [], []]
    rate = NodeRate.from_dict(*first)
    assert (rate.nodes, rate.devices_per_node, rate.ranks, rate.transport) == (2, 2, 4, "gloo")
    assert 2**20 <= rate.message_bytes <= 2**24
    # Two devices are neither ten times as fast as one, nor ten times as slow.
    assert 0.1 < rate.node_bytes_per_s / rate.device_bytes_per_s < 10


@pytest.mark.parametrize("devices", [1, 4])
def test_devices_that_share_no_card_have_no_rate_of_a_node(devices):
    assert run_ranks(node_rates_here, [devices], 4)[0] == [[]] * 4


# Holes in links.json and in what reads it


def sampled_links(**changes) -> Links:
    """Two nodes of two ranks; (0, 3) is the slowest link that was measured between nodes."""
    known = {(0, 1): 8e9, (1, 0): 9e9, (0, 2): 2e9, (2, 0): 2e9, (0, 3): 1e9, (1, 2): 2e9}
    matrix = [[known.get((i, j)) for j in range(4)] for i in range(4)]
    pair, _ = world_pairs(
        {
            "hosts": ["a", "a", "b", "b"],
            "nodes": [0, 0, 1, 1],
            "method": "gloo",
            "repeats": 1,
            "bandwidth_bytes_per_s": matrix,
            "both_ways_bytes_per_s": matrix,
            "latency_s": [[value and 1e-5 for value in row] for row in matrix],
            "sampled": {"measured_pairs": 6, "all_pairs": 12, "rule": "some"},
        }
    )
    return Links(
        site="here",
        fabric="default",
        device_kind="cpu",
        pairs=(with_slow_pairs(replace(pair, **changes)),),
        sweeps=(),
        notes=(),
        provenance={},
    )


def test_a_sample_is_written_read_and_drawn(tmp_path):
    from ddlbench.report.figures.links import draw_links  # ranks import this module, too

    links = sampled_links()
    write_links(tmp_path / "links.json", links)
    assert read_links(tmp_path / "links.json") == links
    assert [(s.sender, s.receiver) for s in links.pairs[0].slow_pairs] == [(0, 3)]
    figure, table = draw_links(links)
    assert len(table) == 6
    assert table["latency_s"].notna().all()
    words = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    assert "6 of 12 measured (some); the others are empty" in words


def test_what_was_not_measured_is_taken_as_the_slowest_that_was():
    table = LinkTable(sampled_links())
    assert table.hop("transport", (0, 0), (1, 0))[0].bandwidth_bytes_per_s == 2e9
    hop, remark = table.hop("transport", (1, 0), (0, 1))
    assert hop.bandwidth_bytes_per_s == 1e9
    assert "not measured" in remark
    assert bandwidth_of(sampled_links(), "network", "here") == 1e9
    assert bandwidth_of(sampled_links(), "node", "here") == 8e9


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sampled": None}, "bandwidth_bytes_per_s: a hole at row 1, column 3: measure that pair"),
        ({"latency_s": [[1e-5] * 4] * 4}, "bandwidth_bytes_per_s: a hole at row 1, column 3"),
        ({"bandwidth_bytes_per_s": [[1e9] * 4] * 4}, "latency_s: a hole at row 1, column 3"),
    ],
)
def test_only_a_whole_hole_of_a_sample_is_one(changes, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        write_links(tmp_path / "links.json", sampled_links(**changes))


def test_sweeps_are_kept_when_the_pairs_fail(tmp_path, monkeypatch):
    """Pairs come last, and whatever happens to them is a note."""
    modules = []

    def run_rank_job(_site, _geometry, module, _settings, _folder, **_named):
        modules.append(module.rpartition(".")[2])
        if modules[-1] == "rank_pairs":
            raise RankJobFailed("rank 3: the network is down")
        report = {"rank": 0, "status": "ok", "node_type": "x", "pairs": [], "provenance": {}}
        return [
            {
                **report,
                "sweeps": [],
                "overlaps": [],
                "backgrounds": [],
                "tensor_costs": [],
                "delays": [],
                "notes": ["swept"],
            }
        ]

    monkeypatch.setattr(measure_module, "run_rank_job", run_rank_job)
    site = replace(load_site("local"), nodes=1, devices_per_node=2)
    actual = measure_module.measure_links(site, "default", tmp_path / "links.json")
    assert modules == ["sweep", "rank_pairs"]
    assert actual.notes == ("swept", "no pairs of ranks: rank 3: the network is down")
    assert read_links(tmp_path / "links.json").pairs == ()
