"""The replay: known bounds of known schedules, and links that take time."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_factory import bubble_share

from ddlbench.planning.schedules import (
    InvalidSchedule,
    StageDurations,
    Timeline,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    model_parallel,
    one_f_one_b,
    passes_end_s,
    pipedream,
    replay,
    replicate,
    zero_bubble_v,
)


def _equal(stages: int, forward_s: float = 1.0, backward_s: float = 2.0) -> StageDurations:
    return StageDurations([forward_s] * stages, [backward_s] * stages)


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 4), (4, 16), (3, 5)])
def test_flush_schedules_reach_their_bound(make, stages, micro_batches) -> None:
    timeline = replay(make(stages, micro_batches), _equal(stages))
    bound = micro_batches / (micro_batches + stages - 1)
    assert 1 - bubble_share(timeline) == pytest.approx(bound)
    assert timeline.end_s == pytest.approx(3 * (micro_batches + stages - 1))


@pytest.mark.parametrize(("chunks", "micro_batches"), [(2, 8), (4, 8), (2, 16)])
def test_chunks_shorten_the_bubble(chunks, micro_batches) -> None:
    """Megatron: bubble over work is (p - 1) / (v m)."""
    timeline = replay(interleaved_1f1b(4, chunks, micro_batches), _equal(4 * chunks))
    work = 3 * chunks * micro_batches
    assert timeline.end_s - work == pytest.approx(3 * 3)


@pytest.mark.parametrize("micro_batches", [8, 16])
def test_zero_bubble(micro_batches) -> None:
    """With F = I = W, ZB-H1's bubble is (p - 1)(F + I - W); ZB-V has one only at its ends."""
    timeline = replay(interleaved_zero_bubble(4, 1, micro_batches), _equal(4))
    assert timeline.end_s - 3 * micro_batches == pytest.approx(3)
    timeline = replay(zero_bubble_v(4, micro_batches), _equal(8))
    for rank in timeline.ranks:
        passes = [timed for timed in rank if timed.action.computes]
        assert passes[-1].end_s - passes[0].start_s == pytest.approx(6 * micro_batches)


def test_model_parallel_uses_one_rank_at_a_time() -> None:
    timeline = replay(model_parallel(4, 3), _equal(4))
    assert timeline.end_s == 3 * 4 * 3
    assert bubble_share(timeline) == pytest.approx(3 / 4)


def _completions_s(timeline: Timeline) -> list[float]:
    """When each micro-batch ended its last backward pass, in order of time."""
    ends_s: dict[int, float] = {}
    for timed in itertools.chain(*timeline.ranks):
        if timed.action.kind.startswith("backward"):
            number = timed.action.micro_batch
            ends_s[number] = max(ends_s.get(number, 0.0), timed.end_s)
    return sorted(ends_s.values())


def _steady_share(replicas, **options) -> float:
    """Share of the ideal in the steady state; stages balanced, backward twice as long."""
    schedule = pipedream(replicas, 240, **options)
    times = StageDurations([1.0 * r for r in replicas], [2.0 * r for r in replicas])
    done = _completions_s(replay(schedule, times))
    return 3 * 120 / (done[179] - done[59])


@pytest.mark.parametrize(
    ("replicas", "options", "share"),
    [
        ((1, 1, 1, 1), {}, 1.0),
        ((3, 1), {}, 1.0),
        ((15, 1), {}, 1.0),
        ((2, 2), {}, 1.0),
        ((2, 1, 1), {}, 2 / 3),
        ((2, 1, 1), {"extra_warmup": 1}, 1.0),
        ((4, 2, 1, 1), {}, 4 / 7),
        ((4, 2, 1, 1), {"extra_warmup": 1}, 1.0),
        ((1, 3), {}, 3 / 4),
        ((1, 3), {"extra_warmup": 2}, 1.0),
        ((2, 4, 2), {}, 4 / 5),
        ((2, 4, 2), {"extra_warmup": 2}, 4 / 5),
    ],
)
def test_what_synchronous_replicas_cost(replicas, options, share) -> None:
    """One more mini-batch in flight cures narrowing pipelines, not every shape."""
    assert _steady_share(replicas, **options) == pytest.approx(share)


def test_links_hold_up_the_receiver_and_each_other_but_not_the_sender() -> None:
    schedule = gpipe(2, 3)
    timeline = replay(schedule, _equal(2, 1.0, 1.0), lambda source, target, send: 5.0)
    first = [t for t in timeline.ranks[0] if t.action.kind == "forward"]
    second = [t for t in timeline.ranks[1] if t.action.kind == "forward"]
    assert [t.end_s for t in first] == [1.0, 2.0, 3.0]
    assert [t.start_s for t in second] == [6.0, 11.0, 16.0]
    receive = next(t for t in timeline.ranks[1] if t.action.kind == "receive_activation")
    assert (receive.start_s, receive.end_s) == (0.0, 6.0)


def test_replicas_meet() -> None:
    schedule = replicate(gpipe(1, 1), 2)
    timeline = replay(schedule, StageDurations([1.0], [2.0], all_reduce_s=[4.0], update_s=[0.5]))
    assert timeline.end_s == 7.5
    meetings = [t for rank in timeline.ranks for t in rank if t.action.kind == "all_reduce"]
    assert {(t.start_s, t.end_s) for t in meetings} == {(3.0, 7.0)}


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 20),
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.integers(0, 9),
)
def test_time_goes_forward(replicas, mini_batches, times, link) -> None:
    schedule = pipedream(replicas, mini_batches)
    durations = StageDurations(times, times[::-1])
    timeline = replay(schedule, durations, lambda source, target, send: float(link))
    assert [len(rank) for rank in timeline.ranks] == [len(a) for a in schedule.actions]
    for rank, number in zip(timeline.ranks, range(schedule.world_size), strict=True):
        assert [t.action for t in rank] == list(schedule.actions[number])
        for before, after in itertools.pairwise(rank):
            assert before.start_s <= before.end_s <= after.start_s
    longest = max(
        sum(durations(a) for a in schedule.actions[rank]) for rank in range(schedule.world_size)
    )
    assert timeline.end_s >= longest
    assert len(_completions_s(timeline)) == mini_batches


def test_a_deadlock_is_said() -> None:
    schedule = pipedream((1, 2), 4, warmup_counts=(0, 1))
    with pytest.raises(InvalidSchedule, match="deadlocks"):
        replay(schedule, _equal(2))


@pytest.mark.parametrize(
    "schedule",
    [
        gpipe(4, 6),
        one_f_one_b(4, 8),
        interleaved_1f1b(3, 2, 6),
        interleaved_zero_bubble(3, 2, 6),
        zero_bubble_v(4, 8),
        model_parallel(4, 6),
    ],
    ids=lambda schedule: schedule.name,
)
def test_passes_alone_end_as_a_replay_with_free_messages(schedule) -> None:
    stages = range(schedule.num_stages)
    durations = StageDurations([0.3 + 0.1 * s for s in stages], [0.7 + 0.3 * s for s in stages])
    assert passes_end_s(schedule, durations) == replay(schedule, durations).end_s


def test_passes_that_wait_for_each_other_are_said() -> None:
    made = gpipe(2, 2)
    schedule = replace(made, actions=(made.actions[0][::-1], made.actions[1]))
    with pytest.raises(InvalidSchedule, match="never gets its input"):
        passes_end_s(schedule, _equal(2))
