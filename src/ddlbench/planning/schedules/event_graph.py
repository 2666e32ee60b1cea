r"""A schedule as a graph of events: each event waits for others before it.

::

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
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Literal

from ddlbench.planning.schedules.action import Action

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
        """Those that hold the first stage."""
        lines = enumerate(self.lines)
        return frozenset(rank for rank, line in lines if any(p.action.stage == 0 for p in line))

    @cached_property
    def _after(self) -> tuple[tuple[int, ...], ...]:
        """For each event, the numbers of those that wait for it."""
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

        Args:
            durations_s: of each event, from when it has its links.
            holds: the links that an event holds, and how long; None for none.
            starts_s: as in :meth:`ends_s`.
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
