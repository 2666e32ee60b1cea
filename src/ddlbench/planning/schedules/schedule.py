r"""Schedules as data: the actions of each process, in order, and the graph of their events.

The runtime executes the same list that the replay times and a figure draws.

Messages, updates and replicas are added to the order of a rank's passes::

    passes     F0             F1             B0
    actions    < F0 >         < F1 >         << B0 >>       < receive, > send an activation
                                                            << receive, >> send a gradient

Copies of a synchronous pipeline average their gradients (data parallelism outside)::

    pipeline 0, rank 0..p-1     micro-batches 0, d, 2d, ...        the ranks of one stage
    pipeline 1, rank p..2p-1    micro-batches 1, d+1, 2d+1, ...    all-reduce before the
    ...                                                            update

Source: torch.distributed.pipelining's way to combine pipeline and data parallelism, a mesh of
pipelines; Megatron-LM (Narayanan et al., SC 2021), section 3.

In the graph each event waits for others before it::

    rank 0    start - F0 - F1 ................ wait - B0       each rank's actions in its order
                        \                     /
    messages             m0 --.         .-- m1                 those of a channel follow each other
                      /        \       /
    rank 1    start - n0 ....... wait - F0 - B0                n: the sender knows of the receive

An event ends when the last of the events before it has ended, plus its own duration. The order
does not depend on durations, so a schedule is ordered once and timed for many durations.

Messages may share links. Then each waits until its links are free: the first that is ready goes
first, which depends on durations::

    m0 of rank 0    |== link of the node ==|
    m0 of rank 1       |. . . . . . . . . .|== link of the node ==|
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Literal

from ddlbench.common.errors import ConfigError

Kind = Literal[
    "forward",
    "backward",
    "backward_input",
    "backward_weight",
    "send_activation",
    "receive_activation",
    "send_gradient",
    "receive_gradient",
    "all_reduce",
    "update",
]

LETTERS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
Channel = tuple[str, int, int]  # "activation" or "gradient", from rank, to rank


class InvalidSchedule(ConfigError):  # noqa: N818 - a property of the schedule, shown as such
    """The schedule cannot run, or does not train what it should."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one process.

    Args:
        kind: ``backward`` gives the gradients of inputs and weights; zero-bubble schedules
            split it into ``backward_input`` and ``backward_weight``.
        stage: its stage; the sender's for a send, the receiver's for a receive.
        micro_batch: global number of the micro- or mini-batch; number of the update for
            ``all_reduce`` and ``update``.
        peer: rank of the other side of a message, else None.
    """

    kind: Kind
    stage: int
    micro_batch: int
    peer: int | None = None

    @property
    def computes(self) -> bool:
        return self.kind in LETTERS

    @property
    def communicates(self) -> bool:
        return self.peer is not None

    def __str__(self) -> str:
        letter = LETTERS.get(self.kind)
        return f"{letter}{self.micro_batch}" if letter else f"{self.kind} {self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """The actions of all processes.

    Args:
        name: of the schedule.
        micro_batches: their number; they are numbered from 0.
        stage_ranks: ranks of each stage's replicas; micro-batch g runs on replica
            ``g mod replicas`` of every stage. A rank may hold several stages.
        actions: of each rank, in order.
        in_flight: for each rank, the most forward passes it holds without their backward.
        warmups: of each stage, for schedules that keep weight versions (version
            ``max(0, b - warm-up)`` serves a replica's b-th mini-batch); empty where one is kept.
        receives_ahead: receives that a rank must have posted ahead on each channel for sends that
            wait for their receiver; 0 where posting adjacent messages together is enough.
    """

    name: str
    micro_batches: int
    stage_ranks: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[Action, ...], ...]
    in_flight: tuple[int, ...]
    warmups: tuple[int, ...] = ()
    receives_ahead: int = 0

    @property
    def world_size(self) -> int:
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        return len(self.stage_ranks)

    @cached_property
    def channels(self) -> tuple[tuple[Channel | None, ...], ...]:
        """The channel of each rank's actions; None of one that is no message."""
        return tuple(
            tuple(_channel(action, rank) for action in actions)
            for rank, actions in enumerate(self.actions)
        )

    def computations(self, rank: int) -> tuple[Action, ...]:
        return tuple(action for action in self.actions[rank] if action.computes)

    @cached_property
    def most_held(self) -> tuple[int, ...]:
        """For each rank, the most forward passes whose backward pass has not begun.

        ``in_flight`` counts a pass until its weight gradients exist, too.
        """
        return self.most_held_until("backward", "backward_input")

    def most_held_until(self, *released_by: Kind) -> tuple[int, ...]:
        """For each rank, the most forward passes at a time that no such pass has followed."""
        most = []
        for actions in self.actions:
            steps = ((a.kind == "forward") - (a.kind in released_by) for a in actions)
            most.append(max(accumulate(steps, initial=0)))
        return tuple(most)


def _channel(action: Action, rank: int) -> Channel | None:
    if action.peer is None:
        return None
    direction, content = action.kind.split("_")
    return (content, rank, action.peer) if direction == "send" else (content, action.peer, rank)


def positive(**counts: int) -> None:
    """Raises InvalidSchedule unless every count is at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise InvalidSchedule(f"{name} is {count}; write 1 or more")


def with_messages(
    orders: Sequence[Sequence[Action]], stage_ranks: Sequence[Sequence[int]]
) -> tuple[tuple[Action, ...], ...]:
    """Adds a receive just before each pass that needs one, and a send just after.

    Stages of one rank pass tensors on without a message.
    """
    return tuple(
        tuple(message for action in order for message in _around(action, rank, stage_ranks))
        for rank, order in enumerate(orders)
    )


def _around(action: Action, rank: int, stage_ranks: Sequence[Sequence[int]]) -> Iterator[Action]:
    stage, number = action.stage, action.micro_batch

    def message(kind: Kind, neighbour: int) -> Iterator[Action]:
        if 0 <= neighbour < len(stage_ranks):
            peer = stage_ranks[neighbour][number % len(stage_ranks[neighbour])]
            if peer != rank:
                yield Action(kind, stage, number, peer)

    if action.kind == "forward":
        yield from message("receive_activation", stage - 1)
        yield action
        yield from message("send_activation", stage + 1)
    elif action.kind in ("backward", "backward_input"):
        yield from message("receive_gradient", stage + 1)
        yield action
        yield from message("send_gradient", stage - 1)
    else:
        yield action


def replicate(schedule: Schedule, copies: int, *, summed: bool = False) -> Schedule:
    """Makes ``copies`` pipelines of a schedule with one replica a stage; ranks copy by copy.

    ``summed``: a single copy sums its gradients, too, with pipelines that are not in the schedule.

    Raises:
        InvalidSchedule: stages are replicated already, or ``copies`` is below 1.
    """
    positive(copies=copies)
    if any(len(ranks) > 1 for ranks in schedule.stage_ranks):
        raise InvalidSchedule(f"{schedule.name} replicates stages already; choose its replicas")
    if copies == 1 and not summed:
        return schedule
    size = schedule.world_size

    def copied(action: Action, copy: int) -> Iterator[Action]:
        if action.kind == "update":
            yield Action("all_reduce", action.stage, action.micro_batch)
            yield action
        else:
            peer = None if action.peer is None else action.peer + copy * size
            yield replace(action, micro_batch=action.micro_batch * copies + copy, peer=peer)

    return replace(
        schedule,
        micro_batches=schedule.micro_batches * copies,
        stage_ranks=tuple(
            tuple(rank + copy * size for copy in range(copies)) for (rank,) in schedule.stage_ranks
        ),
        actions=tuple(
            tuple(new for action in actions for new in copied(action, copy))
            for copy in range(copies)
            for actions in schedule.actions
        ),
        in_flight=schedule.in_flight * copies,
    )


Role = Literal["start", "action", "wait", "message", "notice", "meeting"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that ends at one moment.

    Args:
        role: ``start`` of a rank; ``action`` of a rank (an all-reduce of several is one event);
            ``wait``, which takes no time of its own; ``message``; ``notice`` to the sender that a
            receive is posted; ``meeting`` of replicas before an all-reduce.
        rank: its rank; the source of a message or notice.
        action: what is done; for a message, its send.
        peer: target of a message or notice.
    """

    role: Role
    rank: int
    action: Action | None = None
    peer: int | None = None

    @property
    def key(self) -> Event:
        """The same event for micro-batch 0; events with one key take equally long."""
        action = self.action
        if action is None or action.micro_batch == 0:
            return self
        return Event(self.role, self.rank, Action(action.kind, action.stage, 0), self.peer)


@dataclass(frozen=True, slots=True)
class Placed:
    """An action of a rank, and the events with which it begins and ends."""

    action: Action
    begins: int
    ends: int


@dataclass(frozen=True, slots=True)
class Held:
    """Links that a message holds while its bytes are on them.

    Args:
        links: any names; equal names are one link.
        seconds: as long as no other message may use them.
    """

    links: tuple[Hashable, ...]
    seconds: float


@dataclass(frozen=True)
class EventGraph:
    """Events in topological order.

    Args:
        events: the ``start`` of each rank first.
        before: for each event, the numbers of those that it waits for.
        lines: the actions of each rank, in order.
    """

    events: tuple[Event, ...]
    before: tuple[tuple[int, ...], ...]
    lines: tuple[tuple[Placed, ...], ...]

    @cached_property
    def _numbered(self) -> tuple[tuple[Event, ...], tuple[int, ...]]:
        place: dict[Event, int] = {}
        numbers = tuple(place.setdefault(event.key, len(place)) for event in self.events)
        return tuple(place), numbers

    @property
    def keys(self) -> tuple[Event, ...]:
        return self._numbered[0]

    @property
    def key_numbers(self) -> tuple[int, ...]:
        """For each event, the index of its key in ``keys``."""
        return self._numbered[1]

    @cached_property
    def key_counts(self) -> tuple[int, ...]:
        counts = Counter(self.key_numbers)
        return tuple(counts[number] for number in range(len(self.keys)))

    @cached_property
    def first_ranks(self) -> frozenset[int]:
        """The ranks that hold the first stage."""
        lines = enumerate(self.lines)
        return frozenset(rank for rank, line in lines if any(p.action.stage == 0 for p in line))

    @cached_property
    def _after(self) -> tuple[tuple[int, ...], ...]:
        after: list[list[int]] = [[] for _ in self.events]
        for number, before in enumerate(self.before):
            for earlier in before:
                after[earlier].append(number)
        return tuple(map(tuple, after))

    def ends_sharing_s(
        self,
        durations_s: Sequence[float],
        holds: Sequence[Held | None],
        starts_s: Sequence[float] | None = None,
    ) -> list[float]:
        """When each event ends, if some hold a link that others need: first come, first served.

        ``durations_s`` count from when an event has its links; ``starts_s`` as in :meth:`ends_s`.
        """
        waits = [len(before) for before in self.before]
        ends = [0.0] * len(self.events)
        free: dict[Hashable, float] = {}
        ready = [
            (starts_s[number] if starts_s else 0.0, number)
            for number, before in enumerate(self.before)
            if not before
        ]
        heapify(ready)
        while ready:
            begin, number = heappop(ready)
            held = holds[number]
            if held is not None:
                begin = max([begin, *(free.get(link, 0.0) for link in held.links)])
                free.update(dict.fromkeys(held.links, begin + held.seconds))
            ends[number] = begin + durations_s[number]
            for later in self._after[number]:
                waits[later] -= 1
                if not waits[later]:
                    before_s = max([ends[earlier] for earlier in self.before[later]])
                    heappush(ready, (before_s, later))
        return ends

    def ends_s(
        self, durations_s: Sequence[float], starts_s: Sequence[float] | None = None
    ) -> list[float]:
        """When each event ends; the ``start`` of a rank takes its duration after ``starts_s``."""
        ends: list[float] = []
        add = ends.append
        for before, duration in zip(self.before, durations_s, strict=True):
            if len(before) == 1:
                add(ends[before[0]] + duration)
            elif before:
                add(max([ends[number] for number in before]) + duration)
            else:
                add(duration + (starts_s[len(ends)] if starts_s else 0.0))
        return ends
