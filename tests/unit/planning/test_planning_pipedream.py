"""Where PipeDream cuts, who runs what, and what it refuses, all without torch."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_factory import picture

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.links import Links, write_links
from ddlbench.experiment.paths import links_file, profile_file
from ddlbench.experiment.profile import Profile, write_profile
from ddlbench.experiment.registry import pairs
from ddlbench.planning.block_costs import block_costs
from ddlbench.planning.pipeline_stages import NeedsProfile, even_blocks, even_costs
from ddlbench.planning.planner import make_plan, read_plan
from ddlbench.planning.profiles import device_batches
from ddlbench.planning.schedules import check
from ddlbench.planning.strategy import strategy_of

BOTH = ("pipedream", "model-parallel-p2p")


def _cell(
    geometry: str = "1x4", strategy: str = "pipedream", network: str = "vgg11", **options: Any
) -> Cell:
    nodes, devices = map(int, geometry.split("x"))
    return Cell(
        "mnist",
        network,
        strategy,
        batch_size=16,
        nodes=nodes,
        devices_per_node=devices,
        options=tuple(sorted(options.items())),
    )


def _stages(cell: Cell, site: str | None = None) -> list[list[int]]:
    stages: list[list[int]] = make_plan(cell, site).details["stages"]
    return stages


# Cuts --------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_cuts_are_the_best_of_all(blocks: list[tuple[int, int]], replicas: list[int]) -> None:
    if len(blocks) < len(replicas):
        return
    costs, sent = zip(*blocks, strict=True)

    def judged(ends: tuple[int, ...]) -> tuple[float, float]:
        edges = [0, *ends, len(costs)]
        shares = [
            sum(costs[a:b]) / r
            for (a, b), r in zip(itertools.pairwise(edges), replicas, strict=True)
        ]
        return round(max(shares), 9), sum(sent[end - 1] for end in ends)

    counts = even_costs(costs, sent, replicas)
    assert sum(counts) == len(costs)
    assert min(counts) >= 1
    every = itertools.combinations(range(1, len(costs)), len(replicas) - 1)
    assert judged(tuple(itertools.accumulate(counts[:-1]))) == min(map(judged, every))


def test_blocks_are_dealt_evenly() -> None:
    assert even_blocks(14, (1, 1, 1, 1)) == (4, 4, 3, 3)
    assert even_blocks(14, (2, 1, 1)) == (8, 3, 3)
    assert even_blocks(4, (3, 1)) == (3, 1)


@pytest.mark.parametrize(("network", "dataset"), [(name, spec.name) for name, spec in pairs()])
def test_every_network_on_every_dataset_can_be_cut(network: str, dataset: str) -> None:
    for strategy, balance, (nodes, devices) in itertools.product(
        BOTH, ("work", "size", "blocks"), ((1, 2), (1, 3), (2, 4))
    ):
        cell = _cell(f"{nodes}x{devices}", strategy, network, balance=balance).with_(
            dataset=dataset
        )
        costs = block_costs(cell.network, cell.dataset)
        assert costs is not None
        if len(costs) < cell.devices:
            assert strategy_of(strategy).supports(cell) is not None
            continue
        assert strategy_of(strategy).supports(cell) is None
        stages = _stages(cell)
        edges = [0, *(end for _, end, _ in stages)]
        assert [first for first, _, _ in stages] == edges[:-1]
        assert edges[-1] == len(costs)
        assert all(a < b for a, b in itertools.pairwise(edges))
        assert sum(replicas for *_, replicas in stages) == cell.devices


# Plans -------------------------------------------------------------------------------------------


def test_who_does_what_with_replicas_on_two_nodes() -> None:
    plan = make_plan(_cell("2x2", replicas="2+1+1"))
    assert [
        (p.rank, p.node, p.local_rank, p.stage, p.replica, p.turns) for p in plan.processes
    ] == [
        (0, 0, 0, 0, 0, 2),
        (1, 0, 1, 0, 1, 2),
        (2, 1, 0, 1, 0, 1),
        (3, 1, 1, 2, 0, 1),
    ]
    assert [p.needs for p in plan.processes] == [("inputs",), ("inputs",), (), ("labels",)]
    assert plan.details["stage_ranks"] == [[0, 1], [2], [3]]
    assert plan.details["warmups"] == [1, 1, 0]
    assert plan.details["weight_versions"] == [2, 2, 1]
    assert plan.details["learning_rates"] == [0.01, 0.005, 0.005]
    assert read_plan(json.loads(json.dumps(plan.to_dict()))) == plan


def test_one_stage_of_replicas_reads_all() -> None:
    plan = make_plan(_cell("1x3", replicas=3))
    assert {p.needs for p in plan.processes} == {("inputs", "labels")}
    assert [(p.replica, p.turns) for p in plan.processes] == [(0, 3), (1, 3), (2, 3)]


def test_replicas_take_turns() -> None:
    assert {p["turns"] for p in make_plan(_cell()).to_dict()["processes"]} == {1}
    assert make_plan(_cell(replicas=4)).to_dict()["processes"][0]["turns"] == 4


@pytest.mark.parametrize("strategy", BOTH)
def test_the_schedule_of_a_plan_is_right(strategy: str) -> None:
    descriptor = strategy_of(strategy)
    schedule = descriptor.schedule(make_plan(_cell(strategy=strategy)).details, 9)
    check(schedule)
    assert schedule.micro_batches == 9
    passes = "F0 F1 F2 F3 B0" if strategy == "pipedream" else "F0 B0 F1 B1 F2"
    assert picture(schedule)[0].startswith(passes)


def test_vertical_sync_keeps_the_first_stages_versions_everywhere() -> None:
    details = make_plan(_cell(vertical_sync=True)).details
    assert details["weight_versions"] == [4, 4, 4, 4]
    descriptor = strategy_of("pipedream")
    schedule = descriptor.schedule(details, 9)
    assert [descriptor.version(details, schedule, 3, b) for b in range(9)] == [0] * 4 + [
        1,
        2,
        3,
        4,
        5,
    ]


def test_semantics() -> None:
    assert not strategy_of("pipedream").synchronous
    assert strategy_of("model-parallel-p2p").synchronous


# What it refuses ---------------------------------------------------------------------------------

OWN_NETWORK = "my.module:network"


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (_cell("1x1"), None),
        (_cell("4x4", network="vgg16"), None),
        (_cell("4x4", "model-parallel-p2p", "resnet18"), "14 blocks, too few for 16 stages"),
        (_cell("4x4", network="resnet18", replicas="8+8"), None),
        (_cell("4x4", network="resnet18", replicas="8+8", balance="blocks"), "few for 16 devices"),
        (_cell(replicas="2+1"), "use 3 of 4 devices; write one number for each stage that add up"),
        (_cell(balance="3+20"), "balance 3+20 has 2 parts for 4 stages"),
        (_cell(balance="3+20", replicas="3+1"), None),
        (_cell(balance="3+9", replicas="3+1"), "balance 3+9 deals 12 blocks, vgg11 has 23"),
        (_cell("1x2", network=OWN_NETWORK, balance="3+9"), None),
        (_cell("1x2", network=OWN_NETWORK, balance="profile"), None),
        (_cell("1x2", network=OWN_NETWORK), "balance work reads a table of the built-in networks"),
        (_cell(vertical_sync=True, stage_all_reduce="async"), "use one of the two"),
    ],
)
def test_reasons_of_pipedream(cell: Cell, reason: str | None) -> None:
    actual = strategy_of(cell.strategy).supports(cell)
    assert actual is None if reason is None else reason in str(actual)


# From a profile ----------------------------------------------------------------------------------


def _timings(time_s: float) -> list[dict[str, Any]]:
    return [{"batch_size": b, "time_s": time_s * b / 16, "interval_s": None} for b in (8, 16, 32)]


def _block(index: int, time_s: float, parameter_bytes: int) -> dict[str, Any]:
    return {
        "block": index,
        "name": f"block{index}",
        "parameter_bytes": parameter_bytes,
        "buffer_bytes": 0,
        "input_bytes_per_sample": 100,
        "output_bytes_per_sample": 100,
        "saved_bytes_per_sample": 300,
        "forward": _timings(time_s / 3),
        "backward": _timings(time_s * 2 / 3),
    }


def _write_profile(blocks: list[dict[str, Any]]) -> None:
    write_profile(
        profile_file("here", "mnist/vgg11/fp32-1t"),
        Profile.from_dict(
            {
                "schema_version": 1,
                "site": "here",
                "profile_id": "mnist/vgg11/fp32-1t",
                "dataset": "mnist",
                "network": "vgg11",
                "precision": "fp32",
                "threads_per_device": 1,
                "device_kind": "cpu",
                "batch_sizes": [8, 16, 32],
                "steps": [
                    {
                        "batch_size": 16,
                        "count": 1,
                        "step_s": 1.0,
                        "interval_s": None,
                        "load_s": 0.0,
                        "forward_s": 0.3,
                        "backward_s": 0.6,
                        "optimizer_s": 0.1,
                        "peak_bytes": None,
                    }
                ],
                "layers": [
                    {
                        "name": "layer",
                        "block": 0,
                        "block_name": "block0",
                        "kind": "Linear",
                        "parameter_bytes": 0,
                        "output_bytes_per_sample": 100,
                        "saved_bytes_per_sample": 300,
                        "forward": _timings(1.0),
                        "backward": _timings(1.0),
                    }
                ],
                "blocks": blocks,
                "tensors": [{"name": "w", "block": 0, "bytes": 100, "ready_fraction": 1.0}],
                "node_slowdown": [{"replicas": 1, "slowdown": 1.0, "interval": None}],
                "fixed_memory_bytes": 0,
                "notes": [],
                "provenance": {},
            }
        ),
    )


def _write_links(bandwidth: float, nodes: list[int]) -> None:
    size = range(len(nodes))
    pair = {
        "scope": "world",
        "method": "given",
        "endpoints": [f"device{n}" for n in size],
        "nodes": nodes,
        "bandwidth_bytes_per_s": [[None if r == c else bandwidth for c in size] for r in size],
        "latency_s": [[None if r == c else 1e-5 for c in size] for r in size],
        "repeats": 1,
        "slow_pairs": [],
    }
    write_links(
        links_file("here", "default"),
        Links.from_dict(
            {
                "schema_version": 1,
                "site": "here",
                "fabric": "default",
                "device_kind": "cpu",
                "pairs": [pair],
                "sweeps": [],
                "notes": [],
                "provenance": {},
            }
        ),
    )


def test_a_profile_that_is_not_there_says_what_makes_it(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    cell = _cell(balance="profile")
    with pytest.raises(NeedsProfile, match="no site is given"):
        make_plan(cell)
    with pytest.raises(NeedsProfile, match=r"make it with: snakemake .*fp32-1t/profile.json"):
        make_plan(cell, "here")
    _write_profile([_block(n, 1.0, 100) for n in range(6)])
    with pytest.raises(ConfigError, match=r"measure them with: snakemake .*links.json"):
        make_plan(cell, "here")
    # What to profile for it is known before there is a profile.
    assert device_batches(cell) == {16}


def test_stages_and_replicas_come_from_the_profile(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    # Three quarters of the time in blocks without weights, then one heavy block.
    _write_profile([*(_block(n, 1.0, 0) for n in range(3)), _block(3, 1.0, 10**9)])
    _write_links(1e9, [0, 0, 1, 1])
    cell = _cell("2x2", balance="profile")
    by_profile = make_plan(_cell("1x4", balance="profile"), "here")
    assert _stages(_cell("1x4", balance="profile"), "here") == [[0, 3, 3], [3, 4, 1]]
    assert by_profile.details["planned_period_s"] == pytest.approx(1.0)
    assert [p.turns for p in by_profile.processes] == [3, 3, 3, 1]
    assert make_plan(_cell("1x4", balance="profile"), "here").digest == by_profile.digest
    assert sum(replicas for *_, replicas in _stages(cell, "here")) == 4
    # Times alone, where the replicas are given.
    given_ = _cell("1x4", balance="profile", replicas="1+2+1")
    assert _stages(given_, "here") == [[0, 1, 1], [1, 3, 2], [3, 4, 1]]
    straight = _cell("1x4", "model-parallel-p2p", balance="profile")
    assert _stages(straight, "here") == [[n, n + 1, 1] for n in range(4)]
    with pytest.raises(ConfigError, match="has 4 blocks, too few for 5 stages"):
        make_plan(_cell("1x5", "model-parallel-p2p", balance="profile"), "here")


# What a plan amounts to ---------------------------------------------------------------------------


def test_a_single_stage_is_data_parallelism_with_current_weights() -> None:
    strategy, cell = strategy_of("pipedream"), _cell("1x2", balance="24", replicas=2)
    details = make_plan(cell).details
    assert strategy.is_synchronous(cell, details)
    assert not strategy.is_synchronous(cell)
    assert strategy.ran_as(cell, details) == "data parallel, 32 samples an update"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"balance": "12+12", "replicas": "2+1"}, "32 samples an update"),
        ({"balance": "8+8+8", "replicas": "1+1+1"}, ""),
        ({"balance": "24", "replicas": 3, "stage_all_reduce": "async"}, "48 samples an update"),
    ],
)
def test_replicated_stages_sum_more_samples_and_stay_stale(
    options: dict[str, Any], text: str
) -> None:
    strategy, cell = strategy_of("pipedream"), _cell("1x3", **options)
    details = make_plan(cell).details
    assert not strategy.is_synchronous(cell, details)
    assert strategy.ran_as(cell, details) == text


def test_other_strategies_sum_one_mini_batch() -> None:
    for name in ("ddp", "pipe-1f1b", "parameter-server"):
        cell = _cell("1x4", name) if name != "parameter-server" else _cell("1x3", name)
        assert strategy_of(name).ran_as(cell, strategy_of(name).details(cell)) == ""
