"""When each action starts and ends, if passes and messages take what they are said to take.

::

    rank 0   F0 F1 . . . . B0           a pass starts when its rank is free and its input is there;
    channel    a0 a1 . . g0             a message leaves when it is sent and its channel is free,
    rank 1   . . F0 B0 F1 B1            and travels while both ranks go on; a receive waits for it

Sends do not hold up the sender. The replicas of a stage start an all-reduce together, when the
last of them arrives. A channel is one kind of message from one rank to another: messages of
different channels do not slow each other down, so give links that are shared a longer time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddlbench.planning.schedules.action import Action, InvalidSchedule, Schedule

__all__ = ["Durations", "Links", "StageDurations", "TimedAction", "Timeline", "no_links", "replay"]

Durations = Callable[[Action], float]  # seconds of a pass, an all-reduce or an update
Links = Callable[[int, int, Action], float]  # from rank, to rank, the send: seconds of a message

Channel = tuple[str, int, int]
_BACKWARD = ("backward", "backward_input", "backward_weight")


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action and when it happened, in seconds since the start."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """What every rank did when."""

    ranks: tuple[tuple[TimedAction, ...], ...]

    @property
    def end_s(self) -> float:
        """When the last rank was done."""
        return max((timed.end_s for rank in self.ranks for timed in rank), default=0.0)

    def busy_s(self, rank: int) -> float:
        """Seconds that a rank spent in forward and backward passes."""
        return sum(t.end_s - t.start_s for t in self.ranks[rank] if t.action.computes)

    def bubble_share(self) -> float:
        """Share of all ranks' time in which they did not compute; 0 for an empty timeline."""
        whole = self.end_s * len(self.ranks)
        return 1.0 - sum(map(self.busy_s, range(len(self.ranks)))) / whole if whole else 0.0

    def completions_s(self) -> tuple[float, ...]:
        """When each micro-batch had its last backward pass, by its number."""
        last: dict[int, float] = defaultdict(float)
        for rank in self.ranks:
            for timed in rank:
                if timed.action.kind.startswith("backward"):
                    number = timed.action.micro_batch
                    last[number] = max(last[number], timed.end_s)
        return tuple(last[number] for number in sorted(last))


@dataclass(frozen=True)
class StageDurations:
    """Durations that depend on the stage only; one number a stage, in seconds.

    Args:
        forward_s, backward_s: of a pass; the backward pass of inputs and weights together.
        input_share: of the backward pass that gives the gradient of the inputs.
        all_reduce_s, update_s: 0 where left out.
    """

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    input_share: float = 0.5
    all_reduce_s: Sequence[float] = ()
    update_s: Sequence[float] = ()

    def __call__(self, action: Action) -> float:
        """Seconds of an action."""
        passes = {"forward": self.forward_s, **dict.fromkeys(_BACKWARD, self.backward_s)}
        others = {"all_reduce": self.all_reduce_s, "update": self.update_s}
        seconds = {**passes, **others}.get(action.kind)
        if not seconds:
            return 0.0
        shares = {"backward_input": self.input_share, "backward_weight": 1 - self.input_share}
        return seconds[action.stage] * shares.get(action.kind, 1.0)


def no_links(source: int, target: int, send: Action) -> float:
    """Messages that take no time."""
    return 0.0


def replay(schedule: Schedule, durations: Durations, links: Links = no_links) -> Timeline:
    """Go through a schedule as an event after another.

    Raises:
        InvalidSchedule: it deadlocks.
    """
    run = _Replay(schedule, durations, links)
    moved = True
    while moved:
        moved = False
        for rank in range(schedule.world_size):
            while run.step(rank):
                moved = True
    if not run.ended():
        raise InvalidSchedule(f"schedule {schedule.name} deadlocks; check() says where")
    return Timeline(tuple(tuple(rank) for rank in run.done))


class _Replay:
    """Each rank goes as far as its inputs are known; times do not depend on the order of ranks."""

    def __init__(self, schedule: Schedule, durations: Durations, links: Links) -> None:
        self._schedule, self._durations, self._links = schedule, durations, links
        self.done: list[list[TimedAction]] = [[] for _ in schedule.actions]
        self._free_s = [0.0] * schedule.world_size
        self._channel_free_s: dict[Channel, float] = defaultdict(float)
        self._messages: dict[tuple[Channel, int, int], float] = {}  # -> arrival
        self._meetings: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)

    def ended(self) -> bool:
        pairs = zip(self.done, self._schedule.actions, strict=True)
        return all(len(done) == len(actions) for done, actions in pairs)

    def step(self, rank: int) -> bool:
        """Time the next action of a rank; False if that depends on what is not timed yet."""
        actions = self._schedule.actions[rank]
        if len(self.done[rank]) == len(actions):
            return False
        action = actions[len(self.done[rank])]
        now = self._free_s[rank]
        times: tuple[float, float] | None
        if action.kind.startswith("send"):
            times = self._send(rank, action, now)
        elif action.kind.startswith("receive"):
            times = self._receive(rank, action, now)
        elif action.kind == "all_reduce":
            times = self._meet(rank, action, now)
        else:
            times = (now, now + self._durations(action))
        if times is None:
            return False
        self.done[rank].append(TimedAction(action, *times))
        self._free_s[rank] = times[1]
        return True

    def _send(self, rank: int, action: Action, now: float) -> tuple[float, float]:
        assert action.peer is not None
        what = action.kind.removeprefix("send_")
        channel = (what, rank, action.peer)
        leaves = max(now, self._channel_free_s[channel])
        arrives = leaves + self._links(rank, action.peer, action)
        self._channel_free_s[channel] = arrives
        target = action.stage + (1 if what == "activation" else -1)
        self._messages[channel, target, action.micro_batch] = arrives
        return now, now

    def _receive(self, rank: int, action: Action, now: float) -> tuple[float, float] | None:
        assert action.peer is not None
        channel = (action.kind.removeprefix("receive_"), action.peer, rank)
        arrives = self._messages.get((channel, action.stage, action.micro_batch))
        return None if arrives is None else (now, max(now, arrives))

    def _meet(self, rank: int, action: Action, now: float) -> tuple[float, float] | None:
        here = self._meetings[action.stage, action.micro_batch]
        here[rank] = now
        if len(here) < len(self._schedule.stage_ranks[action.stage]):
            return None
        start = max(here.values())
        return start, start + self._durations(action)
