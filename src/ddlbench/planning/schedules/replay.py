"""Times a schedule: when each action starts and ends, for given durations.

::

    rank 0   F0 F1 . . . . B0           a pass starts when its rank is free and its input is there;
    channel    a0 a1 . . g0             a message leaves when it is sent and its channel is free,
    rank 1   . . F0 B0 F1 B1            and travels while both ranks go on; a receive waits for it

Unless :class:`~ddlbench.planning.schedules.events.Messaging` differs, a send does not delay its
sender, and receives are posted long before. An all-reduce starts when the last replica of its stage
arrives. A channel is one kind of message from one rank to another. Messages of different channels
do not slow each other down here; :meth:`EventGraph.ends_sharing_s` has links that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddlbench.planning.schedules.action import Action, Schedule
from ddlbench.planning.schedules.events import EAGER, Event, Messaging, events_of

Durations = Callable[[Action], float]  # seconds of a pass, an all-reduce or an update
Links = Callable[[int, int, Action], float]  # from rank, to rank, the send: seconds of a message


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action and when it happened, in seconds since the start."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """The timed actions of every rank."""

    ranks: tuple[tuple[TimedAction, ...], ...]

    @property
    def end_s(self) -> float:
        return max((timed.end_s for rank in self.ranks for timed in rank), default=0.0)

    def busy_s(self, rank: int) -> float:
        return sum(t.end_s - t.start_s for t in self.ranks[rank] if t.action.computes)


@dataclass(frozen=True)
class StageDurations:
    """Durations that depend on the stage only; one number a stage, in seconds.

    Args:
        forward_s, backward_s: of a pass; the backward pass of inputs and weights together.
        input_share: share of the backward pass that computes the gradient of the inputs.
        all_reduce_s, update_s: 0 where left out.
    """

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    input_share: float = 0.5
    all_reduce_s: Sequence[float] = ()
    update_s: Sequence[float] = ()

    def __call__(self, action: Action) -> float:
        seconds, share = {
            "forward": (self.forward_s, 1.0),
            "backward": (self.backward_s, 1.0),
            "backward_input": (self.backward_s, self.input_share),
            "backward_weight": (self.backward_s, 1 - self.input_share),
            "all_reduce": (self.all_reduce_s, 1.0),
            "update": (self.update_s, 1.0),
        }.get(action.kind, ((), 0.0))
        return seconds[action.stage] * share if seconds else 0.0


def no_links(source: int, target: int, send: Action) -> float:
    """Messages that take no time."""
    return 0.0


def replay(
    schedule: Schedule, durations: Durations, links: Links = no_links, messaging: Messaging = EAGER
) -> Timeline:
    """Times all actions of a schedule; a notice of a posted receive takes no time.

    Raises:
        InvalidSchedule: it deadlocks.
    """
    graph = events_of(schedule, messaging)
    ends = graph.ends_s([_duration_s(event, durations, links) for event in graph.events])
    return Timeline(
        tuple(
            tuple(TimedAction(p.action, ends[p.begins], ends[p.ends]) for p in line)
            for line in graph.lines
        )
    )


def _duration_s(event: Event, durations: Durations, links: Links) -> float:
    action = event.action
    if action is None:
        return 0.0
    if event.role == "message":
        assert event.peer is not None
        return links(event.rank, event.peer, action)
    return 0.0 if action.peer is not None else durations(action)
