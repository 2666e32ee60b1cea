"""A slow device or node is named with the ratio that was planted, and a quiet run names none."""

from __future__ import annotations

import json

import numpy as np
import pytest
from report_factory import result as made_up

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Result
from ddlbench.experiment.spans import Piece, chrome_trace
from ddlbench.report.slow_ranks import failed_nodes, paces_of, slow_devices, slow_lines

RANKS = 4


@pytest.fixture
def result():
    """A cell of four ranks on four nodes."""
    values = made_up(Cell("mnist", "vgg11", "ddp", batch_size=16, nodes=RANKS))
    for place, rank in enumerate(values["ranks"]):
        rank |= {"host": f"n{place + 1}", "local_rank": 0, "node": place}
    return lambda **changes: Result.from_dict({**values, **changes})


def trace(factors, steps=1, spread=0.0, seed=0) -> str:
    """Steps of ranks that compute for a second times their factor, then wait for the slowest."""
    random, pieces = np.random.default_rng(seed), []
    for step in range(steps):
        own_s = np.array(factors) * random.lognormal(0.0, spread, len(factors))
        for rank, seconds in enumerate(own_s):
            begin = 100.0 * step
            for kind, start_s, end_s in (
                ("forward", 0.0, 0.3 * seconds),
                ("backward", 0.3 * seconds, 0.9 * seconds),
                ("all_reduce_bucket", 0.5 * seconds, own_s.max()),
                ("all_reduce_wait", 0.9 * seconds, own_s.max()),
                ("update", own_s.max(), own_s.max() + 0.1 * seconds),
            ):
                pieces.append(
                    Piece(f"{kind} {step}", kind, rank, rank, begin + start_s, begin + end_s)
                )
    threads = {(rank, rank): f"rank {rank}" for rank in range(len(factors))}
    return json.dumps(chrome_trace(pieces, dict.fromkeys(range(len(factors)), "node"), threads))


def test_the_planted_ratio_is_recovered_though_all_steps_are_equally_long(result):
    paces = paces_of(result(), trace([1.0, 1.6, 1.0, 1.0]))
    assert [pace.ratio for pace in paces] == pytest.approx([1.0, 1.6, 1.0, 1.0])
    assert [pace.slow for pace in paces] == [False, True, False, False]


def test_a_rank_is_compared_for_one_sample(result):
    values = result().to_dict()
    values["ranks"][1]["samples"] = 160
    paces = paces_of(Result.from_dict(values), trace([1.0, 1.6, 1.0, 1.0]))
    assert [pace.ratio for pace in paces] == pytest.approx([1.0] * 4)


def test_stages_and_processors_of_other_kinds_are_not_compared(result):
    values = result().to_dict()
    values["ranks"][1]["stage"] = 1
    values["ranks"][2]["cpu_model"] = "an older one"
    paces = paces_of(Result.from_dict(values), trace([1.0, 5.0, 3.0, 1.0]))
    assert [pace.host for pace in paces] == ["n1", "n4"]


def test_waits_of_the_measured_region_tell_where_no_trace_is(result):
    epoch = {"epoch": 1, "steps": 8, "samples": 400, "elapsed_s": 20.0, "load_s": 0.0}
    values = result().to_dict()
    values["timing"]["epochs"] = [epoch]
    for rank, wait_s in zip(values["ranks"], (10.0, 5.0, 10.0, 10.0), strict=True):
        rank["communication_wait_s"] = wait_s
    ratios = [pace.ratio for pace in paces_of(Result.from_dict(values))]
    assert ratios == pytest.approx([1.0, 1.5, 1.0, 1.0])


def test_nothing_is_said_of_a_cell_that_records_nothing(result):
    assert paces_of(result()) == []
    assert slow_devices([]) == []


def test_a_node_that_is_slow_in_most_cells_is_chronic(result):
    cells = [paces_of(result(), trace([1, 1, 1.6, 1], spread=0.03, seed=s)) for s in range(6)]
    (node,) = slow_devices(cells)
    assert (node.name, node.when, node.cells, node.slow_cells) == ("n3", "always", 6, 6)
    assert node.ratio == pytest.approx(1.6, rel=0.1)


def test_a_node_that_is_slow_in_some_cells_is_so_at_times(result):
    cells = [
        paces_of(result(), trace([1, 1, 2 if s % 3 == 0 else 1, 1], spread=0.03, seed=s))
        for s in range(12)
    ]
    (node,) = slow_devices(cells)
    assert (node.name, node.when, node.slow_cells) == ("n3", "at times", 4)


def test_one_slow_device_of_a_node_is_not_the_node(result):
    values = result().to_dict()
    for place, rank in enumerate(values["ranks"]):
        rank |= {"host": f"n{place // 2 + 1}", "local_rank": place % 2}
    cells = [paces_of(Result.from_dict(values), trace([1, 1, 1, 2])) for _ in range(3)]
    assert [row.name for row in slow_devices(cells)] == ["n2 device 1"]


@pytest.mark.parametrize("seed", range(5))
def test_equal_ranks_raise_no_alarm(result, seed):
    cells = [
        paces_of(result(), trace([1] * RANKS, spread=0.1, seed=100 * seed + s)) for s in range(40)
    ]
    assert slow_devices(cells) == []


def test_two_slow_cells_are_chance(result):
    cells = [paces_of(result(), trace([1, 1, 2 if s < 2 else 1, 1])) for s in range(5)]
    assert slow_devices(cells) == []


def test_a_node_under_which_two_jobs_failed_is_proposed():
    reasons = [
        "a node of job 12 failed (n3)",
        "a node of job 13_4 did not boot (n3)",
        "a node of job 14 failed (n4)",
        "a node of job 15 failed (n[5-6])",  # which of them, SLURM does not say
        "a node of job 16 failed (n[5-6])",
        "rank 1: a bug",
    ]
    assert [(row.name, row.slow_cells) for row in failed_nodes(reasons)] == [("n3", 2)]


def test_the_line_names_the_key_on_a_cluster_only():
    from dataclasses import replace

    from ddlbench.experiment.site import load_site

    rows = failed_nodes(["a node of job 1 failed (n3)"] * 2)
    cluster = load_site("slurm-example", as_example=True)
    assert "exclude: [n3]" in slow_lines(rows, cluster)[-1]
    held = replace(cluster, slurm=replace(cluster.slurm, exclude=("n3",)))
    assert len(slow_lines(rows, held)) == len(slow_lines(rows, load_site("local"))) == 1
