"""Replays of steps with made-up seconds, worked by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ddlbench.planning.step import (
    LINK,
    Compute,
    GradientMessage,
    Message,
    Step,
    blocking,
    summed_gradients,
    worker_tasks,
)
from ddlbench.predict.step_replay import MessageCost, Replay


@dataclass
class Costs:
    """Seconds of phases, and of messages a byte."""

    phases: dict[str, float] = field(default_factory=dict)
    carried_s: float = 1.0
    fixed_s: float = 0.0
    rest: MessageCost = field(default_factory=lambda: MessageCost(0.0))

    def compute_s(self, task: Compute) -> float:
        return task.share * self.phases.get(task.phase, 0.0)

    def message(self, message: Message) -> MessageCost:
        carried_s = self.fixed_s + self.carried_s * message.bytes
        return MessageCost(
            carried_s, self.rest.copied_s, self.rest.stolen_s * carried_s, self.rest.later_s
        )


def replay(tasks, costs, **settings) -> Replay:
    return Replay(Step(tuple(tasks), 1, "gloo", **settings), costs)


def ddp(*ready: float, size: float = 1.0):
    return summed_gradients(worker_tasks(), [GradientMessage(size, share) for share in ready])


def test_messages_queue_behind_each_other() -> None:
    # Ready at 0.5 and 1.0 s; one second each: 0.5..1.5, then 1.5..2.5, backward ends at 1.0.
    assert replay(ddp(0.5, 1.0), Costs({"backward": 1.0})).exposed_s == pytest.approx(1.5)
    short = Costs({"backward": 1.0}, carried_s=0.1)
    assert replay(ddp(0.5, 1.0), short).exposed_s == pytest.approx(0.1)


def test_the_update_follows_all_messages_and_counts_as_computation() -> None:
    done = replay(ddp(1.0), Costs({"forward": 2.0, "backward": 4.0, "update": 3.0}))
    assert (done.compute_s, done.communication_s) == (9.0, 1.0)
    assert done.end_s == pytest.approx(10.0)
    assert [span.begin_s for span in done.spans if span.task.lane == LINK] == [6.0]


def test_copies_are_made_half_before_a_message_and_half_after_all() -> None:
    copies = Costs({"backward": 4.0}, rest=MessageCost(0.0, copied_s=1.0))
    # Copy 2.0..2.5, message 2.5..3.5; backward ends at 4.5, copy ..5.0, message ..6.0, copies 1 s.
    assert replay(ddp(0.5, 1.0), copies).exposed_s == pytest.approx(3.0)


def test_a_message_delays_computation_by_what_it_steals() -> None:
    stolen = Costs({"backward": 4.0}, carried_s=2.0, rest=MessageCost(0.0, stolen_s=0.5))
    # A message 1..3 beside computation steals 1 s: the next is ready at 5, not 4, and ends at 7.
    assert replay(ddp(0.25, 1.0), stolen).exposed_s == pytest.approx(3.0)


def test_a_message_that_needs_the_whole_core_gets_half_of_it_beside_computation() -> None:
    whole = Costs({"backward": 4.0, "update": 1.0}, rest=MessageCost(0.0, stolen_s=1.0))
    # Sent 1..3, beside half of the pass; so the pass ends at 5 and the last message at 6.
    done = replay(ddp(0.25, 1.0), whole)
    spans = [(span.begin_s, span.end_s) for span in done.spans if span.lane == LINK]
    assert spans == [(1.0, 3.0), (5.0, 6.0)]
    assert done.end_s == pytest.approx(done.compute_s + done.communication_s)  # work is conserved


def test_gradients_that_wait_are_fused_up_to_the_buffer() -> None:
    tasks = ddp(0.25, 0.5, 0.75, 1.0)
    slow = Costs({"backward": 4.0}, carried_s=2.0)
    sent = [s.task.bytes for s in replay(tasks, slow, fusion_bytes=10).spans if s.lane == LINK]
    assert sent == [1, 2, 1]  # at 1 s the first, at 3 s two that are ready, at 7 s the last
    sent = [s.task.bytes for s in replay(tasks, slow, fusion_bytes=1).spans if s.lane == LINK]
    assert sent == [1, 1, 1, 1]


def test_pushes_updates_and_pulls_queue_at_three_places() -> None:
    def server(*ready: float):
        tasks, done = [], 0.0
        for share in ready:
            tasks.append(Compute("backward", share - done))
            done, push = share, len(tasks)
            tasks += [
                Message("exchange", 1.0, "out"),
                Compute("update", waits_for=(push,), lane="server"),
                Message("exchange", 1.0, "in", waits_for=(push + 1,)),
            ]
        return [*tasks, Compute("backward", 1 - done)]

    later = MessageCost(0.0, later_s=0.25)
    # Pushed 2, 3; updated 2.75, 3.75; pulled 3.75, 4.75; and home.
    done = replay(server(0.5, 1.0), Costs({"backward": 2.0, "update": 0.5}, rest=later))
    assert done.end_s == pytest.approx(5.0)
    # A slow server: updated 1 + 3, then + 3.
    assert replay(server(0.0, 0.0), Costs({"update": 3.0})).end_s == pytest.approx(8.0)


def shared(seconds: float, gather: float, scatter: float):
    """Two equal blocks of ranks that share the weights, one block ahead.

    ::

        compute   .  F0 F0 F1 F1 B1 B1 B1 B1 B0 B0 B0 B0 .
        link      g0 g1             g0    .  r1 r1       r0 r0
    """
    tasks = [
        Message("all_gather", gather, LINK),
        Message("all_gather", gather, LINK, waits_for=(0,)),
        Compute("forward", seconds, waits_for=(0,)),
        Compute("forward", seconds, waits_for=(1,)),
        Message("all_gather", gather, LINK, waits_for=(1,)),
        Compute("backward", 2 * seconds, waits_for=(1,)),
        Message("reduce_scatter", scatter, LINK),
        Compute("backward", 2 * seconds, waits_for=(4,)),
        Message("reduce_scatter", scatter, LINK),
        Compute("update", waits_for=(6, 8)),
    ]
    return tasks, Costs({"forward": 1.0, "backward": 1.0})


def test_weights_are_gathered_one_block_ahead() -> None:
    assert replay(*shared(2, 1, 2)).end_s == pytest.approx(1 + 4 + 8 + 2)


def test_a_slow_link_is_what_the_step_waits_for() -> None:
    # Gathers 0, 1 and 0 again, scatters 1 and 0; the last gather waits for a block to begin.
    assert replay(*shared(0.1, 10, 10)).end_s == pytest.approx(50.1)


def test_where_nothing_runs_beside_computation_every_message_holds_up_its_rank() -> None:
    tasks, costs = shared(2, 1, 2)
    done = replay(blocking(tasks), costs)
    assert done.end_s == pytest.approx(12 + 3 * 1 + 2 * 2)
    assert done.exposed_s == pytest.approx(done.communication_s)


def test_a_step_of_one_device_has_no_messages() -> None:
    done = replay(summed_gradients(worker_tasks(2), ()), Costs({"forward": 1, "backward": 2}))
    assert (done.compute_s, done.end_s) == (6.0, 6.0)


def test_messages_of_many_tensors_never_starve_the_computation() -> None:
    # Each of 100 tensors could leave alone, and messages want the whole core.
    many = ddp(*((index + 1) / 100 for index in range(100)), size=0.01)
    costs = Costs({"backward": 1.0}, 0.0, fixed_s=0.1, rest=MessageCost(0.0, stolen_s=1.0))
    done = replay(many, costs, fusion_bytes=10)
    sent = [span for span in done.spans if span.lane == LINK]
    # At half speed a message takes 0.2 s, so ten leave in the pass, and the last after it.
    assert len(sent) == 11
    assert done.end_s == pytest.approx(1.0 + 11 * 0.1, abs=0.02)
