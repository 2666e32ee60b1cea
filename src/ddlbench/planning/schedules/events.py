"""Orders the events of a schedule, as its runtime sends and waits.

:class:`Messaging` states when a runtime posts its receives, and which sends it waits for. gloo and
NCCL send no large message before its receive is posted. So a receive that is posted only when it is
waited for hides nothing of the message::

    posted ahead       receiver  | pass ----------- | pass            the message came meanwhile
                       message        |------|
    posted on demand   receiver  | pass ---- |waits.......| pass      it leaves with the receive
                       message                |..|------|

=============================  =======================  ===========================================
schedule                       receives posted          sends waited for
=============================  =======================  ===========================================
``pipedream``                  one ahead on each        never (their number is bounded by the
                               channel                  warm-up)
``model-parallel``             on demand                never
``gpipe``                      on demand                at the end of the step
``1f1b``                       on demand                in the steady state together with the next
                                                        receive, else before the next send; at the
                                                        end of the step
all others                     where torch's runtime    at the end of the step
                               lists them
=============================  =======================  ===========================================

Sources: this project's PipeDream runtime; ``torch.distributed.pipelining`` 2.13, ``schedules.py``:
``ScheduleGPipe``, ``Schedule1F1B``, and ``_PipelineScheduleRuntime`` for all others
(:mod:`ddlbench.planning.schedules.lowering`).
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ddlbench.planning.schedules.action import LETTERS, Action, Channel, InvalidSchedule, Schedule
from ddlbench.planning.schedules.event_graph import Event, EventGraph, Placed
from ddlbench.planning.schedules.lowering import posted_receives


@dataclass(frozen=True)
class Messaging:
    """How a runtime waits for messages.

    Args:
        receives_ahead: receives of a channel posted beyond the one that is waited for; 0 posts
            each on demand, None posts all of them at the start.
        lowered: receives are posted where torch's runtime puts them among the passes of a rank
            (:mod:`ddlbench.planning.schedules.lowering`).
        paired: a send and the receive of the other kind behind it are posted and waited for
            together, and a send is waited for before the next one.
        waits_for_sends: an update, or the all-reduce before it, waits for all sends of its rank.
        late_sums: an update waits for the all-reduce of the update before; the last one for its
            own, too.
    """

    receives_ahead: int | None = None
    lowered: bool = False
    paired: bool = False
    waits_for_sends: bool = False
    late_sums: bool = False


EAGER = Messaging()

_OF_SCHEDULE = {
    "pipedream": Messaging(receives_ahead=1),
    "model-parallel": Messaging(receives_ahead=0),
    "gpipe": Messaging(receives_ahead=0, waits_for_sends=True),
    "1f1b": Messaging(receives_ahead=0, paired=True, waits_for_sends=True),
}


def messaging_of(schedule: Schedule) -> Messaging:
    """How the runtime of a schedule waits for messages."""
    return _OF_SCHEDULE.get(schedule.name, Messaging(lowered=True, waits_for_sends=True))


def events_of(schedule: Schedule, messaging: Messaging = EAGER) -> EventGraph:
    """Orders a schedule.

    Raises:
        InvalidSchedule: it deadlocks.
    """
    # A large schedule makes millions of objects, none of which is garbage yet.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _Builder(schedule, messaging).build()
    finally:
        if collecting:
            gc.enable()


@dataclass
class _Channel:
    """Messages of one kind from one rank to another, in order.

    Attributes:
        issued: event on the sender's line, and the send.
        posted: event on the receiver's line.
        messages: events of the messages that are issued and posted.
        awaited: number of messages that the sender has waited for.
        taken: number of messages received.
    """

    issued: list[tuple[int, Action]] = field(default_factory=list)
    posted: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    awaited: int = 0
    taken: int = 0


class _Builder:
    """Orders events: each rank advances until it waits for an event that does not exist yet."""

    def __init__(self, schedule: Schedule, messaging: Messaging) -> None:
        self._schedule, self._messaging = schedule, messaging
        self._events: list[Event] = []
        self._before: list[tuple[int, ...]] = []
        ranks = range(schedule.world_size)
        self._line = [self._add(Event("start", rank)) for rank in ranks]
        self._placed: list[list[Placed]] = [[] for _ in ranks]
        self._begun = [False for _ in ranks]  # posted and issued, but not ended
        self._channels: dict[Channel, _Channel] = defaultdict(_Channel)
        self._sending: dict[int, dict[Channel, _Channel]] = defaultdict(dict)
        self._here: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}  # -> meeting, sum
        self._to_receive = Counter(
            channel
            for actions, channels in zip(schedule.actions, schedule.channels, strict=True)
            for action, channel in zip(actions, channels, strict=True)
            if channel is not None and action.kind.startswith("receive")
        )
        for channel, count in self._to_receive.items():
            self._post(channel, min(count, messaging.receives_ahead or 0))
        listed = posted_receives(schedule) if messaging.lowered else [()] * schedule.world_size
        self._unposted = [deque(receives) for receives in listed]
        self._passes = [0 for _ in ranks]
        for rank in ranks:
            self._post_listed(rank)
        self._do: dict[str, Callable[[int, Action], bool]] = {
            "send_activation": self._send,
            "send_gradient": self._send,
            "receive_activation": self._receive,
            "receive_gradient": self._receive,
            "all_reduce": self._all_reduce,
            "update": self._update,
        }

    def build(self) -> EventGraph:
        moved, ranks = True, range(self._schedule.world_size)
        while moved:
            moved = False
            for rank in ranks:
                while self._step(rank):
                    moved = True
        pairs = zip(self._placed, self._schedule.actions, strict=True)
        if not all(len(placed) == len(actions) for placed, actions in pairs):
            raise InvalidSchedule(f"schedule {self._schedule.name} deadlocks; check() says where")
        lines = tuple(tuple(line) for line in self._placed)
        return EventGraph(tuple(self._events), tuple(self._before), lines)

    def _add(self, event: Event, *before: int) -> int:
        self._events.append(event)
        self._before.append(before)
        return len(self._events) - 1

    def _step(self, rank: int) -> bool:
        """Does the next action of a rank; False if it depends on a later event."""
        actions, place = self._schedule.actions[rank], len(self._placed[rank])
        if place == len(actions):
            return False
        action, begins = actions[place], self._line[rank]
        if not self._do.get(action.kind, self._compute)(rank, action):
            return False
        self._begun[rank] = False
        if action.kind == "all_reduce" and not self._messaging.late_sums:
            begins = self._sums[action.stage, action.micro_batch][0]
        self._placed[rank].append(Placed(action, begins, self._line[rank]))
        return True

    def _compute(self, rank: int, action: Action) -> bool:
        self._line[rank] = self._add(Event("action", rank, action), self._line[rank])
        self._passes[rank] += action.kind in LETTERS
        self._post_listed(rank)
        return True

    def _post_listed(self, rank: int) -> None:
        """Posts the receives that the runtime lists behind the passes that are done."""
        unposted = self._unposted[rank]
        while unposted and unposted[0][0] <= self._passes[rank]:
            _, channel = unposted.popleft()
            self._post(channel, len(self._channels[channel].posted) + 1)

    def _send(self, rank: int, action: Action) -> bool:
        name, answer = self._name(rank), self._paired_receive(rank)
        channel = self._channels[name]
        if not self._begun[rank]:
            if self._messaging.paired and not self._await_sends(rank):
                return False
            self._begun[rank] = True
            self._sending[rank][name] = channel
            channel.issued.append((self._line[rank], action))
            self._deliver(name)
            if answer is not None:
                self._post(answer, self._channels[answer].taken + 1)
        return answer is None or self._await_sends(rank)

    def _receive(self, rank: int, action: Action) -> bool:
        name = self._name(rank)
        channel = self._channels[name]
        if not self._begun[rank] and self._messaging.receives_ahead is not None:
            self._begun[rank] = True
            ahead = channel.taken + 1 + self._messaging.receives_ahead
            self._post(name, min(self._to_receive[name], ahead))
        if len(channel.messages) == channel.taken:
            return False
        message = channel.messages[channel.taken]
        self._line[rank] = self._add(Event("action", rank, action), self._line[rank], message)
        channel.taken += 1
        return True

    def _all_reduce(self, rank: int, action: Action) -> bool:
        key = (action.stage, action.micro_batch)
        if self._messaging.waits_for_sends and not self._await_sends(rank):
            return False
        here = self._here[key]
        here[rank] = self._line[rank]
        if key not in self._sums and len(here) == len(self._schedule.stage_ranks[action.stage]):
            meeting = self._add(Event("meeting", rank), *here.values())
            self._sums[key] = (meeting, self._add(Event("action", rank, action), meeting))
        if self._messaging.late_sums:
            return True
        if key not in self._sums:
            return False
        self._line[rank] = self._sums[key][1]
        return True

    def _update(self, rank: int, action: Action) -> bool:
        if self._messaging.waits_for_sends and not self._await_sends(rank):
            return False
        if self._messaging.late_sums and len(self._schedule.stage_ranks[action.stage]) > 1:
            numbers = self._summed_before(rank, action)
            if any((action.stage, number) not in self._sums for number in numbers):
                return False
            sums = [self._sums[action.stage, number][1] for number in numbers]
            self._line[rank] = self._add(Event("wait", rank), self._line[rank], *sums)
        return self._compute(rank, action)

    def _summed_before(self, rank: int, action: Action) -> list[int]:
        """Numbers of the sums that a late update needs: the one before; at the end its own, too."""
        last = self._schedule.actions[rank][-1]
        numbers = [action.micro_batch - 1] if action.micro_batch else []
        return [*numbers, action.micro_batch] if action is last else numbers

    def _name(self, rank: int) -> Channel:
        """The channel of a rank's next action, a message."""
        name = self._schedule.channels[rank][len(self._placed[rank])]
        assert name is not None
        return name

    def _paired_receive(self, rank: int) -> Channel | None:
        """The channel of the receive that is posted together with the send that comes next."""
        actions, place = self._schedule.actions[rank], len(self._placed[rank])
        if not self._messaging.paired or place + 1 == len(actions):
            return None
        other = {"send_activation": "receive_gradient", "send_gradient": "receive_activation"}
        paired = actions[place + 1].kind == other[actions[place].kind]
        return self._schedule.channels[rank][place + 1] if paired else None

    def _post(self, name: Channel, until: int) -> None:
        """Posts receives of a channel up to ``until`` in all."""
        channel = self._channels[name]
        if len(channel.posted) < until:
            channel.posted += [self._line[name[2]]] * (until - len(channel.posted))
            self._deliver(name)

    def _deliver(self, name: Channel) -> None:
        channel, (_, source, target) = self._channels[name], name
        rendezvous = self._messaging.lowered or self._messaging.receives_ahead is not None
        ready = len(channel.issued)
        if rendezvous:
            ready = min(ready, len(channel.posted))
        for number in range(len(channel.messages), ready):
            issued, send = channel.issued[number]
            before = [issued, *channel.messages[-1:]]
            if rendezvous:
                posted = channel.posted[number]
                if self._events[posted].role != "start":  # else known long before it is needed
                    posted = self._add(Event("notice", target, None, source), posted)
                before.append(posted)
            message = self._add(Event("message", source, send, target), *before)
            channel.messages.append(message)

    def _await_sends(self, rank: int) -> bool:
        """Makes a rank wait for all its messages; False if one of them does not exist yet."""
        open_ = [c for c in self._sending[rank].values() if c.awaited < len(c.issued)]
        if any(len(channel.messages) < len(channel.issued) for channel in open_):
            return False
        if open_:
            latest = [channel.messages[-1] for channel in open_]
            self._line[rank] = self._add(Event("wait", rank), self._line[rank], *latest)
        for channel in open_:
            channel.awaited = len(channel.issued)
        return True
