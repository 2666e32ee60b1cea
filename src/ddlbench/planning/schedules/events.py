"""The events of a schedule as its runtime sends and waits, and when each of them happens.

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
``ScheduleGPipe``, ``Schedule1F1B``, and ``_PipelineScheduleRuntime`` for all others.

``_PipelineScheduleRuntime`` is given the passes of each rank and adds the messages itself. In
rounds, each rank takes its next entry if its input is on its list; a pass puts its send on its own
list and the receive on its receiver's::

    round          1     2     3     4                list that comes of it
    rank 0         U     F0    F1    F2               U F0 s0 F1 s1 F2 s2
    rank 1         U     r0    F0    F1   ...         U r0 F0 r1 F1 r2 ...
                         `-- put there by rank 0      r1 is posted once F0 has ended

So a rank that is behind posts its receive late, and a large message that has been sent meanwhile
leaves only then. U stands for entries that do nothing without sharded weights (``UNSHARD``,
``RESHARD``, ``REDUCE_GRAD``), but take a round.

Source: ``torch.distributed.pipelining`` 2.13, ``schedules.py``: ``_add_unshard_reshard``,
``_add_reduce_grad``, ``_add_send_recv``.

The replay times each action for given durations::

    rank 0   F0 F1 . . . . B0           a pass starts when its rank is free and its input is there;
    channel    a0 a1 . . g0             a message leaves when it is sent and its channel is free,
    rank 1   . . F0 B0 F1 B1            and travels while both ranks go on; a receive waits for it

Unless :class:`Messaging` differs, a send does not delay its sender, and receives are posted long
before. An all-reduce starts when the last replica of its stage arrives. A channel is one kind of
message from one rank to another. Messages of different channels do not slow each other down here;
:meth:`EventGraph.ends_sharing_s` has links that they share.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ddlbench.planning.schedules.schedule import (
    LETTERS,
    Action,
    Channel,
    Event,
    EventGraph,
    InvalidSchedule,
    Placed,
    Schedule,
)


@dataclass(frozen=True)
class Messaging:
    """How a runtime waits for messages.

    Args:
        receives_ahead: receives of a channel posted beyond the one that is waited for; 0 posts
            each on demand, None posts all of them at the start.
        lowered: receives are posted where torch's runtime puts them among the passes of a rank.
        paired: a send and the receive of the other kind after it are posted and waited for
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
            ranks = ranks[::-1]  # activations pass all ranks one way, gradients the other
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
        """Posts the receives that the runtime lists after the passes that are done."""
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


_UNSHARDED = 3  # stages whose weights torch keeps at hand


@dataclass
class _Entry:
    """A pass, or an entry that does nothing.

    Attributes:
        needs: receives of each channel that must be on the list before it.
        sends: channels on which it sends.
    """

    computes: bool = False
    needs: Counter[Channel] = field(default_factory=Counter)
    sends: list[Channel] = field(default_factory=list)


def posted_receives(schedule: Schedule) -> tuple[tuple[tuple[int, Channel], ...], ...]:
    """For each rank, its receives as they are posted: passes that it has done by then, channel.

    Raises:
        InvalidSchedule: some pass waits for a message that nobody sends.
    """
    waiting = [deque(_entries(*of)) for of in zip(schedule.actions, schedule.channels, strict=True)]
    done = [0] * schedule.world_size
    posted: list[list[tuple[int, Channel]]] = [[] for _ in waiting]
    listed: Counter[Channel] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, entries in enumerate(waiting):
            if not entries or any(listed[name] < n for name, n in entries[0].needs.items()):
                continue
            entry = entries.popleft()
            done[rank] += entry.computes
            for channel in entry.sends:
                listed[channel] += 1
                posted[channel[2]].append((done[channel[2]], channel))
            moved = True
    if any(waiting):
        raise InvalidSchedule(f"schedule {schedule.name} deadlocks; check() says where")
    return tuple(map(tuple, posted))


def _entries(actions: Sequence[Action], channels: Sequence[Channel | None]) -> Iterator[_Entry]:
    """The list of a rank before messages are added to it."""
    passes = [action for action in actions if action.kind in LETTERS]
    left = Counter(action.stage for action in passes if action.kind.startswith("backward"))
    left -= Counter(action.stage for action in passes if action.kind == "backward_input")
    received: Counter[Channel] = Counter()
    entry, at_hand, place = _Entry(), frozenset[int](), 0
    ready: list[_Entry] = []
    following = _next_stages(passes)
    for action, channel in zip(actions, channels, strict=True):
        if channel is not None and action.kind.startswith("receive"):
            received[channel] += 1
        elif channel is not None:
            entry.sends.append(channel)
        elif action.kind in LETTERS:
            wanted = following[place]
            ready += [_Entry() for stage in at_hand - wanted]
            ready += [_Entry() for stage in wanted - at_hand]
            at_hand, place = wanted, place + 1
            entry = _Entry(True, Counter(received))
            ready.append(entry)
            if action.kind in ("backward", "backward_weight"):
                left[action.stage] -= 1
                if left[action.stage] == 0:
                    ready.append(_Entry())
    yield from ready


def _next_stages(passes: Sequence[Action]) -> list[frozenset[int]]:
    """The stages whose passes come next, from each pass on."""
    stages_ahead: list[frozenset[int]] = []
    nearest: list[int] = []
    for action in reversed(passes):
        stage = action.stage
        if nearest[:1] != [stage]:
            nearest = [stage, *(other for other in nearest if other != stage)][:_UNSHARDED]
        stages_ahead.append(frozenset(nearest))
    return stages_ahead[::-1]


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
    """Durations that depend on the stage only; one number per stage, in seconds.

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


def passes_end_s(schedule: Schedule, durations: Durations) -> float:
    """When the last pass ends if messages take no time.

    The end of :func:`replay` without links, if no stage has replicas and updates take no time. No
    message is followed, so that it takes a fraction of the time of a replay.

    Raises:
        InvalidSchedule: a pass never gets its input.
    """
    lines = [schedule.computations(rank) for rank in range(schedule.world_size)]
    done, ends_s = [0] * len(lines), [0.0] * len(lines)
    ended_s: dict[tuple[str, int, int], float] = {}
    last = schedule.num_stages - 1

    def input_s(action: Action) -> float | None:
        """When the input of a pass is there; None if nobody has made it yet."""
        stage, number = action.stage, action.micro_batch
        if action.kind == "forward":
            return 0.0 if stage == 0 else ended_s.get(("F", stage - 1, number))
        if action.kind == "backward_weight":
            return 0.0
        return 0.0 if stage == last else ended_s.get(("B", stage + 1, number))

    before: list[int] = []
    while before != done:
        before = list(done)
        for rank, line in enumerate(lines):
            for action in line[done[rank] :]:
                ready_s = input_s(action)
                if ready_s is None:
                    break
                ends_s[rank] = max(ends_s[rank], ready_s) + durations(action)
                if action.kind != "backward_weight":
                    letter = "F" if action.kind == "forward" else "B"
                    ended_s[letter, action.stage, action.micro_batch] = ends_s[rank]
                done[rank] += 1
    if done != [*map(len, lines)]:
        raise InvalidSchedule(f"schedule {schedule.name}: a pass never gets its input")
    return max(ends_s, default=0.0)


def _duration_s(event: Event, durations: Durations, links: Links) -> float:
    action = event.action
    if action is None:
        return 0.0
    if event.role == "message":
        assert event.peer is not None
        return links(event.rank, event.peer, action)
    return 0.0 if action.peer is not None else durations(action)
