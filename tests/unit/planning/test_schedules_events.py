"""Events of schedules: when receives are posted, which sends are waited for, all worked by hand."""

from __future__ import annotations

import pytest

from ddlbench.planning.schedules import (
    EAGER,
    Event,
    Held,
    Messaging,
    Schedule,
    events_of,
    gpipe,
    interleaved_1f1b,
    messaging_of,
    model_parallel,
    one_f_one_b,
    pipedream,
    replicate,
    zero_bubble_v,
)
from ddlbench.planning.schedules.check import check

ON_DEMAND = Messaging(receives_ahead=0)
PAIRED = Messaging(receives_ahead=0, paired=True, waits_for_sends=True)


def _ends(
    schedule: Schedule,
    messaging: Messaging,
    *,
    message_s: float,
    notice_s: float = 0.0,
    sum_s: float = 0.0,
) -> dict[tuple[int, str], float]:
    """(rank, pass) -> when it ends; passes take 1 s, updates nothing."""
    graph = events_of(schedule, messaging)

    def seconds(event: Event) -> float:
        if event.role in ("message", "notice"):
            return message_s if event.role == "message" else notice_s
        if event.action is None or event.action.communicates or event.action.kind == "update":
            return 0.0
        return sum_s if event.action.kind == "all_reduce" else 1.0

    ends = graph.ends_s([seconds(event) for event in graph.events])
    return {
        (rank, str(placed.action)): ends[placed.ends]
        for rank, line in enumerate(graph.lines)
        for placed in line
        if not placed.action.communicates
    }


@pytest.mark.parametrize(
    ("messaging", "forwards"),
    [
        # m0 leaves at 1, m1 when m0 has arrived, and so on: one behind the other on the channel.
        (EAGER, [7, 12, 17]),
        # m1 leaves when rank 1 has done F0 and word of its receive (1 s) is there.
        (ON_DEMAND, [7, 7 + 1 + 5 + 1, 14 + 1 + 5 + 1]),
        # The receive of m1 is posted with that of m0, that of m2 at 7: before they are needed.
        (Messaging(receives_ahead=1), [7, 12, 17]),
    ],
)
def test_receives_posted_ahead_hide_messages(messaging, forwards) -> None:
    ends = _ends(gpipe(2, 3), messaging, message_s=5, notice_s=1)
    actual = [ends[1, f"F{number}"] for number in range(3)]
    assert actual == forwards


def test_1f1b_waits_for_its_sends() -> None:
    """Two stages, two micro-batches, messages of 2 s.

    ::

        rank 0   F0 F1 . . . . . B0 . . . B1        s1 is sent at 3, when s0 has arrived; it is
        rank 1   . . . F0 B0 . . F1 B1              received from 5 on, with g0 under way back
    """
    waiting = _ends(one_f_one_b(2, 2), PAIRED, message_s=2)
    assert (waiting[0, "F1"], waiting[1, "B0"], waiting[0, "B0"]) == (2, 5, 8)
    assert (waiting[1, "B1"], waiting[0, "B1"]) == (9, 12)
    assert waiting[1, "update 0"] == 11  # its last send has arrived
    eager = _ends(one_f_one_b(2, 2), EAGER, message_s=2)
    assert (eager[1, "B1"], eager[0, "B1"]) == (7, 10)


def test_late_sums_hide_behind_the_next_mini_batch() -> None:
    """Three rounds of two replicas that take 2 s, sums of 1.5 s."""
    schedule = pipedream((2,), 6)
    waited = _ends(schedule, EAGER, message_s=0, sum_s=1.5)
    assert waited[0, "update 2"] == 3 * 3.5
    late = _ends(schedule, Messaging(late_sums=True), message_s=0, sum_s=1.5)
    assert [late[0, f"update {number}"] for number in range(3)] == [2, 4, 7.5]


def test_an_update_waits_for_the_sends_of_its_rank() -> None:
    """Rank 1's gradient leaves at 6 and arrives at 9; until then it does not update."""
    schedule = gpipe(2, 1)
    held = _ends(schedule, Messaging(receives_ahead=0, waits_for_sends=True), message_s=3)
    free = _ends(schedule, EAGER, message_s=3)
    assert (free[1, "update 0"], held[1, "update 0"], held[0, "B0"]) == (6, 9, 10)


@pytest.mark.parametrize(
    "schedule",
    [
        gpipe(4, 8, last_first=False),
        one_f_one_b(4, 8),
        interleaved_1f1b(4, 2, 8),
        zero_bubble_v(4, 8),
        replicate(one_f_one_b(2, 4), 2),
        pipedream((2, 1, 1), 9),
        model_parallel(3, 4),
    ],
    ids=lambda schedule: schedule.name,
)
def test_every_runtime_ends_and_waiting_never_saves_time(schedule) -> None:
    check(schedule)
    real = _ends(schedule, messaging_of(schedule), message_s=0.5, notice_s=0.1, sum_s=0.3)
    eager = _ends(schedule, EAGER, message_s=0.5, sum_s=0.3)
    assert real.keys() == eager.keys()
    assert all(real[key] >= eager[key] - 1e-9 for key in real)


def test_events_stand_behind_what_they_wait_for_and_have_keys() -> None:
    graph = events_of(pipedream((2, 1), 8), messaging_of(pipedream((2, 1), 8)))
    assert all(number < place for place, numbers in enumerate(graph.before) for number in numbers)
    assert sum(graph.key_counts) == len(graph.events)
    forwards = [key for key in graph.keys if key.action and str(key.action) == "F0"]
    assert len(forwards) == 3  # one a rank, whatever the mini-batch


def test_a_rank_starts_when_it_is_told_to() -> None:
    graph = events_of(gpipe(2, 1))
    durations = [0.0] * len(graph.events)
    ends = graph.ends_s(durations, [3.0, 5.0])
    assert [ends[line[-1].ends] for line in graph.lines] == [5.0, 5.0]


def test_one_rank_alone_has_the_same_actions() -> None:
    whole, part = pipedream((2, 1), 7), pipedream((2, 1), 7, only_rank=1)
    assert part.actions == ((), whole.actions[1], ())
    assert (part.in_flight, part.warmups, part.stage_ranks) == (
        whole.in_flight, whole.warmups, whole.stage_ranks
    )  # fmt: skip
    assert model_parallel(2, 3, only_rank=0).actions[0] == model_parallel(2, 3).actions[0]


def test_looped_schedules_wait_for_receives_that_torch_posts_late() -> None:
    schedule = interleaved_1f1b(2, 1, 2)
    early = _ends(schedule, Messaging(waits_for_sends=True), message_s=1, notice_s=0.5)
    late = _ends(schedule, messaging_of(schedule), message_s=1, notice_s=0.5)
    # F0 of rank 1: 2 to 3. The receive of m1 is posted then, its word takes 0.5, m1 itself 1.
    assert early[1, "F1"] == 5  # behind B0, which ends at 4
    assert late[1, "F1"] == max(3 + 0.5 + 1, 4) + 1


def test_messages_of_one_link_take_turns() -> None:
    # Two pipelines of two stages; both first stages share the link out of their node.
    schedule = replicate(gpipe(2, 1), 2)
    graph = events_of(schedule, EAGER)
    durations = [
        {"message": 2.0, "action": 1.0}.get(event.role, 0.0)
        if event.action is None or not event.action.communicates or event.role == "message"
        else 0.0
        for event in graph.events
    ]
    holds = [
        Held((event.action.kind,), 2.0) if event.role == "message" and event.action else None
        for event in graph.events
    ]
    apart, sharing = graph.ends_s(durations), graph.ends_sharing_s(durations, holds)
    sent = [n for n, e in enumerate(graph.events) if e.role == "message"]
    kinds = ["send_activation", "send_gradient"]
    by_kind = [[n for n in sent if graph.events[n].action.kind == kind] for kind in kinds]
    assert [sorted(apart[n] for n in numbers) for numbers in by_kind] == [[3, 3], [7, 7]]
    assert [sorted(sharing[n] for n in numbers) for numbers in by_kind] == [[3, 5], [7, 9]]


def test_links_of_their_own_change_nothing() -> None:
    graph = events_of(zero_bubble_v(4, 8), EAGER)
    durations = [0.1 * (number % 7) for number in range(len(graph.events))]
    assert graph.ends_sharing_s(durations, [None] * len(durations)) == graph.ends_s(durations)
    starts = [0.3, 0.0, 0.2, 0.1]
    alone = graph.ends_sharing_s(durations, [None] * len(durations), starts)
    assert alone == graph.ends_s(durations, starts)
