"""PipeDream's runtime gives the weights of a sequential replay of delayed gradients.

All pipelines of up to four ranks run in real gloo processes, under a watchdog; so these tests are
also the proof that none of them deadlocks.
"""

from __future__ import annotations

from math import ceil

import pytest
import torch
from cases.pipedream_replay import RUNS, cell_of, replay

from ddlbench.testing.training import train

COUNT = sum(count for _, count in RUNS)
PIPELINES = {
    1: ["1"],
    2: ["2", "1+1"],
    3: ["3", "2+1", "1+2", "1+1+1"],
    4: ["4", "3+1", "1+3", "2+2", "2+1+1", "1+2+1", "1+1+2", "1+1+1+1"],
}


def warmups(replicas, extra=0):
    """Written out once more, from the end: W_s + 1 = ceil(demand_{s+1} / r_s) + 1."""
    counts, least, demand = [0], replicas[-1], replicas[-1]
    for count in reversed(replicas[:-1]):
        waiting = max(ceil(least / count) + extra, ceil(demand / count))
        least, demand = count * (ceil(least / count) + 1), count * (waiting + 1)
        counts.insert(0, waiting)
    return counts


def stashed(replicas, extra=0, lag=0):
    waiting = warmups(replicas, extra)
    late = [lag if count > 1 else 0 for count in replicas]
    return lambda s, b: max(0, b // replicas[s] - waiting[s] - late[s])


def vertical(replicas):
    """As many mini-batches seen as the first stage's weights, rounded down to whole updates."""
    first = warmups(replicas)[0]
    return lambda s, b: max(0, b // replicas[0] - first) * replicas[0] // replicas[s]


def cases(ranks):
    for text in PIPELINES[ranks]:
        replicas = [int(count) for count in text.split("+")]
        yield cell_of(text), stashed(replicas)
        yield cell_of(text, vertical_sync=True), vertical(replicas)
        yield cell_of(text, extra_warmup=1), stashed(replicas, 1 if len(replicas) > 1 else 0)
        yield cell_of(text, stage_all_reduce="async"), stashed(replicas, 0, 1)
        yield cell_of(text).with_(learning_rate_warmup_steps=7), stashed(replicas)


def assert_equals_replay(cell, version_of, ranks):
    expected, losses = replay(cell, version_of)
    straight = all(len(r) == 1 for r in ranks[0]["details"]["stage_ranks"])
    assert {name for rank in ranks for name in rank["state"]} == set(expected)
    for rank in ranks:
        for name, value in rank["state"].items():
            if straight or ("running" not in name and "num_batches" not in name):
                torch.testing.assert_close(
                    value, expected[name], rtol=1e-12, atol=1e-12, msg=f"{cell.id}: {name}"
                )
        if rank["loss"]:
            torch.testing.assert_close(rank["loss"], losses, rtol=1e-12, atol=1e-12, msg=cell.id)
    assert ranks[-1]["loss"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_pipeline_equals_its_replay(ranks):
    cells, versions = zip(*cases(ranks), strict=True)
    for cell, version_of, reports in zip(cells, versions, train(cells, RUNS), strict=True):
        assert_equals_replay(cell, version_of, reports)
        assert {tuple(rank["ids"]) for rank in reports} == {tuple(range(COUNT))}
        for rank in reports:
            assert rank["steps"] == rank["loads"] == [*(count for _, count in RUNS), 0]
            assert rank["wait_s"] >= 0
        # No more weight versions than the plan says; as many where the run is long enough.
        details = reports[0]["details"]
        for stage, numbers in enumerate(details["stage_ranks"]):
            for number in numbers:
                assert reports[number]["versions"] <= details["weight_versions"][stage], cell.id


def test_weight_versions_and_what_is_kept():
    plain, vertical_sync = train([cell_of("1+1+1+1"), cell_of("1+1+1+1", vertical_sync=True)], RUNS)
    assert [rank["versions"] for rank in plain] == [4, 3, 2, 1]
    assert [rank["versions"] for rank in vertical_sync] == [4, 4, 4, 4]
    for ranks in (plain, vertical_sync):
        for rank in ranks:  # drained: weights, momentum, statistics
            state = rank["state"].items()
            statistics = ("running_mean", "running_var", "num_batches_tracked")
            once = sum(v.nbytes for k, v in state if k.endswith(statistics))
            weights = sum(v.nbytes for k, v in state if not k.endswith(statistics))
            assert rank["kept_bytes"] == 3 * weights + once  # the newest version is a view


def test_spans_tell_what_each_rank_did():
    (ranks,) = train([cell_of("2+1")], RUNS)
    first, count = RUNS[1]
    for number, rank in enumerate(ranks):
        mini_batches = (
            range(first + number, first + count, 2) if number < 2 else range(first, first + count)
        )
        for kind in ("forward", "backward"):
            assert [n for k, n, _, _ in rank["spans"] if k == kind] == list(mini_batches)
        times = [time for _, _, begin, end in rank["spans"] for time in (begin, end)]
        assert times == sorted(times)
    kinds = {kind for rank in ranks for kind, *_ in rank["spans"]}
    assert kinds - {"send_wait"} == {
        "load",
        "forward",
        "backward",
        "receive_wait",
        "all_reduce_wait",
        "update",
    }


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_model_parallelism_equals_sequential_training(devices):
    cell = cell_of("+".join("1" * devices), "model-parallel-p2p")
    (ranks,) = train([cell], RUNS)
    assert_equals_replay(cell, lambda _stage, number: number, ranks)
