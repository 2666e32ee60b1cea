"""Schedules equal their published pictures, and torch's own generators."""

from __future__ import annotations

import pytest
from planning_factory import picture

from ddlbench.planning.schedules import (
    InvalidSchedule,
    Schedule,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    model_parallel,
    one_f_one_b,
    pipedream,
    weight_version,
    zero_bubble_v,
)

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")

LETTERS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


def test_gpipe_figure_2c() -> None:
    assert picture(gpipe(4, 4)) == ["F0 F1 F2 F3 B3 B2 B1 B0"] * 4


def test_megatron_figure_4_above() -> None:
    assert picture(one_f_one_b(4, 8)) == [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
    ]


def test_megatron_figure_4_below() -> None:
    """Device 1 of the figure: chunk 1, then chunk 2, four micro-batches each, then 1F1B."""
    line = picture(interleaved_1f1b(4, 2, 8))[0]
    assert line.startswith(
        "F0.0 F1.0 F2.0 F3.0 F0.4 F1.4 F2.4 F3.4 F4.0 F5.0 F6.0 B0.4 F7.0 B1.4 F4.4 B2.4"
    )


def test_pipedream_figure_4() -> None:
    """Four workers, the paper's triangle of warm-ups, an update after every backward pass."""
    schedule = pipedream((1, 1, 1, 1), 6)
    assert picture(schedule) == [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]
    for actions in schedule.actions:
        kinds = [a.kind for a in actions if a.computes or a.kind == "update"]
        after = [kinds[n + 1] for n, kind in enumerate(kinds) if kind == "backward"]
        assert after == ["update"] * 6


def test_pipedream_figure_8() -> None:
    """2-1: even mini-batches on the first replica, odd ones on the second, all on stage 1."""
    assert picture(pipedream((2, 1), 6)) == [
        "F0 F2 B0 F4 B2 B4",
        "F1 F3 B1 F5 B3 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]


def test_weight_versions() -> None:
    schedule = pipedream((1, 1, 1), 5)
    assert [weight_version(schedule, 0, b) for b in range(5)] == [0, 0, 0, 1, 2]
    assert [weight_version(schedule, 2, b) for b in range(5)] == [0, 1, 2, 3, 4]
    assert [weight_version(pipedream((2, 1), 6), 0, b) for b in range(6)] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("replicas", [(1, 1, 1), (2, 1, 1), (1, 3), (2, 3, 2)])
def test_a_forward_pass_sees_the_version_it_says(replicas) -> None:
    schedule = pipedream(replicas, 20)
    for actions in schedule.actions:
        updates = 0
        for action in actions:
            updates += action.kind == "update"
            if action.kind == "forward":
                assert weight_version(schedule, action.stage, action.micro_batch) == updates


def test_model_parallel_has_one_mini_batch_at_a_time() -> None:
    assert picture(model_parallel(3, 2)) == ["F0 B0 F1 B1"] * 3


def _of_torch(name: str, ranks: int, micro_batches: int, chunks: int | None = None):
    orders = visualizer.get_schedule_ops(name, ranks, micro_batches, chunks)
    return [
        [
            (LETTERS[a.computation_type.value], a.stage_index, a.microbatch_index)
            for a in order
            if a is not None and a.computation_type.value in LETTERS
        ]
        for order in orders
    ]


def _of_ours(schedule: Schedule):
    return [
        [(a.kind, a.stage, a.micro_batch) for a in schedule.computations(rank)]
        for rank in range(schedule.world_size)
    ]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 4), (4, 9)])
def test_gpipe_equals_torch(ranks, micro_batches) -> None:
    ours = gpipe(ranks, micro_batches, last_first=False)
    assert _of_ours(ours) == _of_torch("GPipe", ranks, micro_batches)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 4), (4, 9)])
def test_1f1b_equals_torch(ranks, micro_batches) -> None:
    theirs = _of_torch("1F1B", ranks, micro_batches)
    for order in theirs:  # torch 2.13 draws the last rank's forward passes from 1 on
        first = min(number for kind, _, number in order if kind == "forward")
        order[:] = [(k, s, n - first if k == "forward" else n) for k, s, n in order]
    assert _of_ours(one_f_one_b(ranks, micro_batches)) == theirs


LOOPED = [(2, 2, 4), (3, 2, 6), (4, 2, 8), (4, 3, 8), (4, 2, 3), (4, 2, 10), (2, 4, 8)]


@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), LOOPED)
def test_looped_schedules_equal_torch(ranks, chunks, micro_batches) -> None:
    for ours, name in (
        (interleaved_1f1b, "Interleaved1F1B"),
        (interleaved_zero_bubble, "InterleavedZeroBubble"),
    ):
        theirs = _of_torch(name, ranks, micro_batches, chunks)
        assert _of_ours(ours(ranks, chunks, micro_batches)) == theirs, name


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (2, 2), (2, 8), (4, 8), (4, 3)])
def test_zero_bubble_v_equals_torch(ranks, micro_batches) -> None:
    theirs = _of_torch("ZBVZeroBubble", ranks, micro_batches, 2)
    assert _of_ours(zero_bubble_v(ranks, micro_batches)) == theirs


@pytest.mark.parametrize(
    "make",
    [
        lambda: gpipe(0, 4),
        lambda: one_f_one_b(2, 0),
        lambda: interleaved_1f1b(4, 2, 9),
        lambda: interleaved_zero_bubble(2, 0, 4),
        lambda: zero_bubble_v(0, 1),
        lambda: model_parallel(0, 1),
        lambda: pipedream((1, 1), 0),
        lambda: pipedream((1, 1), 4, warmup_counts=(1,)),
    ],
)
def test_bad_counts(make) -> None:
    with pytest.raises(InvalidSchedule):
        make()
