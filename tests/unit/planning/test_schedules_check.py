"""Every schedule is proved right, and the proof finds what is wrong with a broken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_factory import picture, released_warmups

from ddlbench.planning.schedules import (
    Action,
    InvalidSchedule,
    Schedule,
    blocked,
    check,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    model_parallel,
    one_f_one_b,
    pipedream,
    replicate,
    zero_bubble_v,
)

CONFIGURATIONS = [
    replicas
    for stages in range(2, 5)
    for replicas in product(range(1, 8), repeat=stages)
    if sum(replicas) <= 8
]


@pytest.mark.parametrize("mini_batches", [1, 7, 24, 25])
def test_pipedream_on_up_to_eight_ranks(mini_batches) -> None:
    assert len(CONFIGURATIONS) == 154
    for replicas in CONFIGURATIONS:
        check(pipedream(replicas, mini_batches))


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=7).map(tuple),
    st.integers(1, 50),
    st.integers(0, 3),
)
def test_pipedream_beyond(replicas, mini_batches, extra) -> None:
    check(pipedream(replicas, mini_batches, extra))


def _reduced_first(schedule: Schedule) -> Schedule:
    """The all-reduce within the backward pass, before its gradient is sent: torch's DDP."""
    ranks = []
    for actions in schedule.actions:
        order = list(actions)
        for place, (a, b) in enumerate(pairwise(actions)):
            if (a.kind, b.kind) == ("send_gradient", "all_reduce"):
                order[place : place + 2] = [b, a]
        ranks.append(tuple(order))
    return replace(schedule, actions=tuple(ranks))


def test_the_released_warmup_deadlocks_where_replicas_meet_in_the_backward_pass() -> None:
    """25 of the 154 with routing by global number, the smallest 1-3-1; ours in none."""
    dead = []
    for replicas in CONFIGURATIONS:
        theirs = pipedream(replicas, 48, warmup_counts=released_warmups(replicas))
        if blocked(_reduced_first(theirs), synchronous=False):
            dead.append(replicas)
        ours = _reduced_first(pipedream(replicas, 48))
        assert not blocked(ours, synchronous=False)
        assert not blocked(ours, synchronous=True)
    assert len(dead) == 25
    assert {(1, 3, 1), (1, 4, 1), (2, 3, 1), (1, 1, 3, 1)} <= set(dead)
    assert not [replicas for replicas in dead if sum(replicas) <= 4]


@pytest.mark.parametrize("ranks", range(1, 7))
def test_flush_schedules(ranks) -> None:
    for micro_batches in (1, 2, 5, 12):
        check(model_parallel(ranks, micro_batches))
        for make in (gpipe, one_f_one_b, zero_bubble_v):
            schedule = make(ranks, micro_batches)
            check(schedule)
            check(replicate(schedule, 3))
    for chunks in (1, 2, 3):
        for micro_batches in (ranks, 2 * ranks, 5 * ranks, max(1, ranks - 1)):
            check(interleaved_1f1b(ranks, chunks, micro_batches))
            check(replicate(interleaved_zero_bubble(ranks, chunks, micro_batches), 2))


def test_copies_share_the_micro_batches() -> None:
    schedule = replicate(one_f_one_b(2, 3), 2)
    assert schedule.stage_ranks == ((0, 2), (1, 3))
    assert picture(schedule)[2] == "F1 F3 B1 F5 B3 B5"
    with pytest.raises(InvalidSchedule, match="replicates stages already"):
        replicate(pipedream((2, 1), 4), 2)


def test_in_flight_bounds_are_reached() -> None:
    """A bound is worth stating only if it is the least one."""
    for schedule in (
        gpipe(4, 8),
        one_f_one_b(4, 8),
        interleaved_1f1b(4, 2, 16),
        interleaved_zero_bubble(4, 2, 16),
        zero_bubble_v(4, 16),
        pipedream((2, 3, 1), 40),
    ):
        check(schedule)
        for rank, bound in enumerate(schedule.in_flight):
            tighter = list(schedule.in_flight)
            tighter[rank] = bound - 1
            with pytest.raises(InvalidSchedule, match=f"rank {rank} holds {bound} passes"):
                check(replace(schedule, in_flight=tuple(tighter)))


def test_every_mini_batch_counts_in_the_tail() -> None:
    """7 mini-batches on 3 replicas: three updates on each, the last with one gradient."""
    schedule = pipedream((3, 1), 7)
    updates = [
        [action.micro_batch for action in actions if action.kind == "update"]
        for actions in schedule.actions
    ]
    assert updates == [[0, 1, 2]] * 3 + [list(range(7))]


def _edited(rank: int, edit: Callable[[list[Action]], object]) -> Schedule:
    schedule = pipedream((2, 1), 6)
    ranks = [list(actions) for actions in schedule.actions]
    edit(ranks[rank])
    return replace(schedule, actions=tuple(tuple(actions) for actions in ranks))


def _index(actions: list[Action], kind: str, number: int) -> int:
    return next(n for n, a in enumerate(actions) if (a.kind, a.micro_batch) == (kind, number))


@pytest.mark.parametrize(
    ("rank", "edit", "says"),
    [
        (2, lambda a: a.pop(_index(a, "backward", 3)), "micro-batch 3 passes stage 1"),
        (2, lambda a: a.append(a[_index(a, "forward", 3)]), "micro-batch 3 passes stage 1"),
        (0, lambda a: a.append(Action("forward", 0, 1)), "rank 0 has F1"),
        (2, lambda a: a.append(Action("forward", 1, 6)), r"unknown .* \[\(1, 6\)\]"),
        (0, lambda a: a.pop(_index(a, "send_activation", 2)), "sent but not received|awaited"),
        (2, lambda a: a.pop(_index(a, "receive_activation", 2)), r"not received \[\(1, 2\)\]"),
        (0, lambda a: a.pop(_index(a, "update", 1)), "different times"),
        (2, lambda a: a.pop(), "does not end with an update"),
        (
            0,
            lambda a: a.insert(0, a.pop(_index(a, "receive_gradient", 0))),
            "deadlock with buffered sends: rank 0 at receive_gradient 0",
        ),
    ],
)
def test_broken_schedules_are_found(rank, edit, says) -> None:
    with pytest.raises(InvalidSchedule, match=says):
        check(_edited(rank, edit))


def test_messages_in_another_order_are_found() -> None:
    schedule = gpipe(2, 2)
    first, second = (list(actions) for actions in schedule.actions)
    places = [n for n, a in enumerate(second) if a.kind == "receive_activation"]
    second[places[0]], second[places[1]] = second[places[1]], second[places[0]]
    with pytest.raises(InvalidSchedule, match="another order"):
        check(replace(schedule, actions=(tuple(first), tuple(second))))


def test_sends_that_wait_need_receives_ahead() -> None:
    schedule = interleaved_1f1b(2, 2, 4)
    check(schedule)
    with pytest.raises(InvalidSchedule, match="deadlock with synchronous sends"):
        check(replace(schedule, receives_ahead=0))


def test_an_all_reduce_of_a_stage_that_the_rank_does_not_hold_is_refused() -> None:
    schedule = pipedream((2, 1), 4)
    first, second, third = schedule.actions
    foreign = (*third[:-1], Action("all_reduce", 0, 0), third[-1])
    with pytest.raises(InvalidSchedule, match="deadlock with buffered sends"):
        check(replace(schedule, actions=(first, second, foreign)))
