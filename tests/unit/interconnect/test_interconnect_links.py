"""From raw times or the site file to links.json; groups of ranks, slow pairs, requests."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.links import Links, PairMatrix, read_links, write_links
from ddlbench.experiment.site import Interconnect, Site, load_site
from ddlbench.interconnect.collectives import PASSES, Repeat, Sweep
from ddlbench.interconnect.measure import (
    LinksFailed,
    measure_links,
    node_type_pairs,
    points_of,
    sweeps_of,
)
from ddlbench.interconnect.pair_matrix import median_of_runs, pair_matrix, slow_pairs
from ddlbench.interconnect.time_plan import (
    LIMIT,
    buffer_bytes,
    links_request,
    message_sizes,
    worlds,
)

TABLE = {  # as a site file has it
    "node": {"latency_s": 5e-6, "bandwidth_bytes_per_s": 12e9},
    "network": {"latency_s": 3e-5, "bandwidth_bytes_per_s": 1.25e9},
}


def by_hand(**links) -> Interconnect:
    return Interconnect.from_dict({"links": links})


def matrix(bandwidth, nodes=None, latency=1e-6, **others):
    size = len(bandwidth)
    return pair_matrix(
        scope="world",
        method="gloo",
        endpoints=[f"rank {rank}" for rank in range(size)],
        nodes=nodes or [0] * size,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=[[None if i == j else latency for j in range(size)] for i in range(size)],
        **others,
    )


def even(size, value=10e9):
    return [[None if i == j else value for j in range(size)] for i in range(size)]


def links(pairs, **others):
    return {
        "schema_version": 1,
        "site": "here",
        "fabric": "default",
        "device_kind": "cpu",
        "pairs": pairs,
        "sweeps": [],
        "notes": [],
        "provenance": {},
        **others,
    }


def site(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "mine.yaml"
    path.write_text(f"device: cpu\nlauncher: local\n{text}\n")
    return load_site(str(path))


# Groups of ranks and messages


@pytest.mark.parametrize(
    ("nodes", "devices", "expected"),
    [
        (1, 1, []),
        (1, 4, [(1, 2), (1, 3), (1, 4)]),
        (4, 1, [(2, 1), (3, 1), (4, 1)]),
        (2, 2, [(1, 2), (2, 1), (2, 2)]),
        (20, 1, [(n, 1) for n in (2, 3, 4, 5, 6, 7, 8, 16, 20)]),
        (16, 1, [(n, 1) for n in (2, 3, 4, 5, 6, 7, 8, 16)]),
    ],
)
def test_groups(nodes, devices, expected):
    assert worlds(nodes, devices) == expected


def test_where_time_is_short_numbers_double():
    assert worlds(2, 4, every=False) == [(1, 2), (1, 4), (2, 1), (2, 4)]
    assert worlds(1, 6, every=False) == [(1, 2), (1, 4), (1, 6)]
    assert worlds(1, 1, every=False) == []


def test_messages_reach_the_largest():
    sizes = message_sizes(256 * 2**20)
    assert (sizes[0], sizes[-1]) == (1024, 256 * 2**20)
    assert {b // a for a, b in itertools.pairwise(sizes)} == {2}
    assert buffer_bytes("all_gather", 1024, 4) == 4096


# Repeats


class Link:
    """A link of alpha and beta whose clock is its own; remembers what it was asked."""

    def __init__(self, alpha_s, beta_s_per_byte):
        self.alpha_s, self.beta_s_per_byte = alpha_s, beta_s_per_byte
        self.spent_s, self.requests = 0.0, []

    def run(self, size, count):
        self.requests.append((size, count))
        time_s = self.alpha_s + self.beta_s_per_byte * size
        self.spent_s += count * time_s
        return [Repeat(time_s, time_s / 2, time_s)] * count


def swept(link, budget_s):
    sweep = Sweep(message_sizes(2**26), link.run)
    sweep.probe(budget_s)
    for turn in range(PASSES):
        sweep.take(turn)
    return sweep


def test_a_fast_link_gets_many_repeats_of_every_size():
    link = Link(1e-5, 1e-10)
    sweep = swept(link, 3.0)
    assert list(sweep.repeats) == message_sizes(2**26)
    assert sweep.ended == ""
    assert min(len(times) for times in sweep.repeats.values()) >= 6
    assert link.spent_s <= 3.0


def test_a_slow_link_ends_the_sweep_within_three_budgets():
    link = Link(0.01, 1e-6)  # 1 MB/s
    sweep = swept(link, 3.0)
    assert link.spent_s <= 9.0
    assert max(sweep.repeats) < 2**26
    assert sweep.ended == f"no message above {max(sweep.repeats)} bytes, to keep within the budget"
    assert all(len(times) >= 4 for times in sweep.repeats.values())


def test_what_time_is_left_goes_to_long_messages():
    link = Link(0.03, 17e-9)  # as Horovod between nodes of 0.4 core
    sweep = swept(link, 2.5)
    assert max(sweep.repeats) == 2**26  # 16 MiB, were short messages to come first
    assert link.spent_s <= 1.05 * LIMIT * 2.5


def test_a_slow_but_flat_transport_has_few_sizes_up_to_the_largest():
    link = Link(0.1, 1e-10)  # as Horovod's negotiation on a crowded machine
    sweep = swept(link, 1.5)
    assert max(sweep.repeats) == 2**26
    assert sweep.ended == ""
    assert 3 <= len(sweep.repeats) < len(message_sizes(2**26))
    assert list(sweep.repeats) == sorted(sweep.repeats)
    assert link.spent_s <= 4.5


def test_a_sweep_without_time_has_as_many_sizes_as_a_fit_needs():
    sweep = swept(Link(0.3, 1e-9), 0.1)
    assert len(sweep.repeats) == 3
    assert all(len(times) >= 2 for times in sweep.repeats.values())


def test_barriers_count_as_time_of_a_sweep():
    link = Link(1e-5, 1e-10)
    barrier_s, held_s = 0.05, 0.0

    def run(size, count):
        nonlocal held_s
        repeats = [
            repeat._replace(held_s=barrier_s + repeat.time_s) for repeat in link.run(size, count)
        ]
        held_s += sum(repeat.held_s for repeat in repeats)
        return repeats

    sweep = Sweep(message_sizes(2**26), run)
    sweep.probe(1.0)
    for turn in range(PASSES):
        sweep.take(turn)
    assert held_s <= 1.2 * LIMIT * 1.0


def test_sizes_are_measured_in_passes():
    link = Link(1e-5, 1e-10)
    swept(link, 3.0)
    smallest = [index for index, (size, _) in enumerate(link.requests) if size == 1024]
    assert len(smallest) == 2 + PASSES  # the probe looks at the first repeat before it goes on
    assert smallest[3] - smallest[2] == len(message_sizes(2**26))


# Points, fits, matrices


def raw(times_of, **others):
    return {
        "operation": "all_reduce",
        "transport": "gloo",
        "nodes": 2,
        "devices_per_node": 1,
        "ranks": 2,
        "points": [
            {"message_bytes": size, "times_s": times_of(size)} for size in message_sizes(2**26)
        ],
        "ended": "",
        **others,
    }


def test_fits_recover_what_was_planted():
    random = np.random.default_rng(1)

    def times(size):
        return [(2e-4 + size / 1.25e9) * random.normal(1, 0.02) for _ in range(20)]

    (sweep,), notes = sweeps_of([raw(times)])
    (piece,) = sweep.fit.pieces
    assert piece.alpha_s == pytest.approx(2e-4, rel=0.03)
    assert piece.beta_s_per_byte == pytest.approx(1 / 1.25e9, rel=0.03)
    assert sweep.level == "network"
    assert notes == []


def test_intervals_need_six_repeats():
    few, many = points_of(
        [
            {"message_bytes": 1, "times_s": [3.0, 1.0, 2.0]},
            {"message_bytes": 2, "times_s": [float(n) for n in range(1, 10)]},
        ]
    )
    assert (few.time_s, few.interval_s, few.repeats) == (2.0, None, 3)
    assert (many.time_s, many.interval_s, many.repeats) == (5.0, (2.0, 8.0), 9)


def test_what_is_missing_is_noted():
    raw_sweep = raw(lambda _: [1.0])
    raw_sweep["points"] = raw_sweep["points"][:1]
    _, notes = sweeps_of([raw(lambda size: [1e-9 * size] * 6, ended="too slow"), raw_sweep])
    assert notes == [
        "all_reduce over 2x1 with gloo: too slow",
        "all_reduce over 2x1 with gloo: left out, as fewer than two sizes cannot be fitted",
    ]


def test_each_type_of_node_is_kept_once():
    reports = [
        {"rank": rank, "node_type": kind, "pairs": [matrix(even(2, rank + 1.0))]}
        for rank, kind in ((2, "b"), (0, "a"), (1, "a"))
    ]
    assert [p.bandwidth_bytes_per_s[0][1] for p in node_type_pairs(reports)] == [1.0, 3.0]


def test_medians_skip_what_a_run_has_not():
    runs = [[matrix([[None, a], [b, None]])] for a, b in ((1.0, None), (5.0, None), (2.0, 4.0))]
    (merged,) = median_of_runs(runs)
    assert merged["bandwidth_bytes_per_s"] == [[None, 2.0], [4.0, None]]
    assert merged["repeats"] == 3
    with pytest.raises(ConfigError, match="run 2 measured other devices"):
        median_of_runs([runs[0], [matrix(even(3))]])


# Slow pairs


def test_a_pair_is_judged_by_its_own_level():
    bandwidth = [
        [None if i == j else (12e9 if i // 2 == j // 2 else 1e9) for j in range(4)]
        for i in range(4)
    ]
    bandwidth[0][1] = 6e9
    bandwidth[2][1] = 0.79e9
    bandwidth[1][3] = 0.81e9
    actual = slow_pairs(PairMatrix.from_dict(matrix(bandwidth, nodes=[0, 0, 1, 1])))
    assert [(entry.sender, entry.receiver) for entry in actual] == [(0, 1), (2, 1)]
    assert actual[0].bandwidth_ratio == pytest.approx(0.5)


def test_of_two_pairs_none_is_slow():
    assert slow_pairs(PairMatrix.from_dict(matrix([[None, 1e9], [9e9, None]]))) == ()


# Links given by hand


def test_links_of_a_site_file(tmp_path):
    given = replace(load_site("local"), nodes=2, devices_per_node=2)
    given = replace(given, interconnect=by_hand(slow=TABLE))
    path = tmp_path / "slow" / "links.json"
    measure_links(given, "slow", path)
    actual = read_links(path).to_dict()
    assert actual["provenance"]["source"] == "given"
    (world,) = actual["pairs"]
    assert (world["method"], world["nodes"]) == ("given", [0, 0, 1, 1])
    assert world["bandwidth_bytes_per_s"][0] == [None, 12e9, 1.25e9, 1.25e9]
    assert world["latency_s"][3] == [3e-5, 3e-5, 5e-6, None]
    fits = {sweep["level"]: sweep["fit"]["pieces"] for sweep in actual["sweeps"]}
    for level, link in TABLE.items():
        (piece,) = fits[level]
        assert piece["alpha_s"] == link["latency_s"]
        assert 1 / piece["beta_s_per_byte"] == pytest.approx(link["bandwidth_bytes_per_s"])


def test_a_site_file_says_what_a_node_sends(tmp_path):
    given = replace(load_site("local"), nodes=3, devices_per_node=4)
    shared = by_hand(default={**TABLE, "node_bytes_per_s": 2.5e9})
    links = measure_links(replace(given, interconnect=shared), "default", tmp_path / "links.json")
    (rate,) = links.node_rates
    assert (rate.devices_per_node, rate.cards) == (4, 2.0)
    lone = replace(given, devices_per_node=1, interconnect=shared)
    with pytest.raises(ConfigError, match="node_bytes_per_s is for several nodes of several"):
        measure_links(lone, "default", tmp_path / "links.json")


def test_a_level_that_is_missing_is_one_sentence(tmp_path):
    given = replace(load_site("local"), nodes=2, devices_per_node=1)
    given = replace(given, interconnect=by_hand(default={"node": TABLE["node"]}))
    with pytest.raises(ConfigError, match="interconnect.links.default: 'network' is missing"):
        measure_links(given, "default", tmp_path / "links.json")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{latency_s: 0.1, bandwidth_bytes_per_s: -1}", "-1 is too small; write more than 0"),
        ("{latency_s: -1, bandwidth_bytes_per_s: 1}", "-1 is too small; write at least 0"),
        ("{latency_s: 0.1}", "'bandwidth_bytes_per_s' is missing"),
        ("{latency_s: 5e-6, bandwidth_bytes_per_s: 1}", "'5e-6' is not a number; write 5.0e-06"),
        ("{latency: 1}", "'latency' is not a key here; did you mean 'latency_s'"),
    ],
)
def test_wrong_links_by_hand_are_one_sentence(tmp_path, text, sentence):
    with pytest.raises(ConfigError) as caught:
        site(tmp_path, f"interconnect: {{links: {{default: {{node: {text}}}}}}}")
    message = str(caught.value)
    assert "interconnect.links.default.node" in message
    assert sentence in message
    assert "\n" not in message


def test_defaults_of_the_site_file(tmp_path):
    actual = site(tmp_path, "").interconnect
    assert actual.to_dict() == {
        "p2p_binary": None,
        "cuda_samples": None,
        "nvbandwidth": None,
        "largest_bytes": None,
        "budget_s": None,
        "sweep_budget_s": 3,
        "links": {},
    }


# What cannot be


@pytest.mark.parametrize(
    ("bandwidth", "latency", "sentence"),
    [
        ([[None, -1.0], [1.0, None]], 1e-6, "bandwidth_bytes_per_s.0.1: -1.0 is too small"),
        ([[None, 1.0], [None, None]], 1e-6, "a hole at row 1, column 0"),
        ([[None, 1.0], [1.0]], 1e-6, "not 2 rows of 2 numbers"),
        (even(2), -1e-6, "latency_s.0.1: -1e-06 is too small"),
    ],
)
def test_bad_matrices_are_one_sentence(tmp_path, bandwidth, latency, sentence):
    with pytest.raises(ValueError, match=sentence):
        content = Links.from_dict(links([matrix(bandwidth, latency=latency)]))
        write_links(tmp_path / "links.json", content)
    assert not (tmp_path / "links.json").exists()


def test_one_device_has_no_links(tmp_path):
    alone = replace(load_site("local"), nodes=1, devices_per_node=1)
    with pytest.raises(LinksFailed, match="has one device: there is no link to measure"):
        measure_links(alone, "default", tmp_path / "links.json")


# What is asked of the scheduler, and imported on a login node


def test_the_job_holds_the_whole_site_unless_links_are_given():
    cluster = load_site("slurm-example", as_example=True)
    job = links_request(cluster, "default")
    assert (job.nodes, job.mpi, job.tasks_per_node, job.gres) == (4, "srun", 4, "gpu:4")
    given = replace(cluster, interconnect=by_hand(default=TABLE))
    job = links_request(given, "default")
    assert (job.nodes, job.mpi, job.gres) == (1, None, "gpu:1")
