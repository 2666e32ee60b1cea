"""A replay of one step: when each of its computations and messages begins and ends.

::

    compute    |--B3--|c|---B2----|c|---------B1---------|c|           |c'| U |   c: copies
    link                |--- m0 ----|--- m1 -----|         |-- m2 --|
                                                           exposed

A lane does its tasks in the order of the list, one at a time. A task begins when its lane is free,
what it waits for is there, and the computations before it in the list have ended. A message wants
the core for its processor time (``stolen_s`` of its ``carried_s``). Beside computation it gets at
most half of it: then the message slows down, else computation does. Messages that are fused take
with them all that are ready when the link is free, whole, up to the buffer (Sergeev and Del Balso
2018, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from ddlbench.planning.step import COMPUTE, Compute, Message, Step
from ddlbench.predict.step_costs import MessageCost, StepCosts

FAIR_SHARE = 0.5
"""Of a core that computes, what a message can get."""


_Waiting = tuple[int, Message, float]
"""Place in the list of tasks, the message, and when it is ready."""


@dataclass(frozen=True)
class Span:
    """A task, or messages that were fused, from ``begin_s`` to ``end_s`` on a lane."""

    lane: str
    task: Compute | Message
    begin_s: float
    end_s: float


@dataclass
class _Sent:
    """A message on its way that wants the core.

    Args:
        places: of the messages that it is made of.
        left_s: of its way from ``at_s`` on, without computation beside it.
    """

    message: Message
    places: list[int]
    cost: MessageCost
    begin_s: float
    at_s: float
    left_s: float


@dataclass
class Replay:
    """The times of a step.

    Args:
        step: to replay.
        costs: of its tasks.
    """

    step: Step
    costs: StepCosts
    spans: list[Span] = field(default_factory=list)
    compute_s: float = 0.0
    communication_s: float = 0.0
    _free_s: dict[str, float] = field(default_factory=dict)
    _there_s: dict[int, float] = field(default_factory=dict)
    _waiting: list[_Waiting] = field(default_factory=list)
    _beside: _Sent | None = None
    _unpacked_s: float = 0.0

    def __post_init__(self) -> None:
        for place, task in enumerate(self.step.tasks):
            if isinstance(task, Compute):
                self._compute(place, task)
            elif task.lane == COMPUTE:
                self._hold_up(place, task)
            else:
                self._queue(place, task)
        self._await(range(len(self.step.tasks)))

    @property
    def end_s(self) -> float:
        """When the last task has ended."""
        return max((*self._free_s.values(), *self._there_s.values()), default=0.0)

    @property
    def exposed_s(self) -> float:
        """By which messages make the step longer than the rank's computations."""
        return self.end_s - self.compute_s

    def _compute(self, place: int, task: Compute) -> None:
        seconds = self.costs.compute_s(task)
        begin_s = max(self._free(task.lane), self._free(COMPUTE))
        if task.waits_for:
            self._await(task.waits_for)
            begin_s = max(begin_s, *(self._there_s[other] for other in task.waits_for))
        if task.lane != COMPUTE:
            self._end(task, [place], begin_s, begin_s + seconds)
            return
        if task.waits_for:
            begin_s += self._unpacked_s
            self._unpacked_s = 0.0
        self.compute_s += seconds
        self._end(task, [place], begin_s, self._computed_s(begin_s, seconds))

    def _hold_up(self, place: int, message: Message) -> None:
        self._await(range(place))
        seconds = self.costs.message(message).whole_s
        self.communication_s += seconds
        begin_s = self.end_s
        self._end(message, [place], begin_s, begin_s + seconds)

    def _queue(self, place: int, message: Message) -> None:
        """Copy a message where its library does, and have it wait for its lane."""
        if self.step.fusion_bytes is None:
            copied_s = self.costs.message(message).copied_s / 2
            self._free_s[COMPUTE] = self._computed_s(self._free(COMPUTE), copied_s)
            self._unpacked_s += copied_s
        self._waiting.append((place, message, self._free(COMPUTE)))

    def _computed_s(self, now_s: float, work_s: float) -> float:
        """When ``work_s`` of computation from ``now_s`` on have ended, beside messages."""
        while work_s > 0:
            sent = self._beside
            if sent is None:
                next_s = self._begin_s()
                if next_s <= now_s:
                    self._depart()
                    continue
                alone_s = next_s - now_s
                if work_s <= alone_s:
                    return now_s + work_s
                now_s, work_s = next_s, work_s - alone_s
                continue
            left_s = sent.left_s - (now_s - sent.at_s)  # nothing ran beside it until now
            if left_s <= 0:
                self._arrive(sent.at_s + sent.left_s)
                continue
            wanted = sent.cost.stolen_s / sent.cost.carried_s
            given = min(wanted, FAIR_SHARE)
            whole_s = left_s * wanted / given
            if work_s <= whole_s * (1 - given):
                end_s = now_s + work_s / (1 - given)
                sent.at_s, sent.left_s = end_s, left_s - (end_s - now_s) * given / wanted
                return end_s
            now_s, work_s = now_s + whole_s, work_s - whole_s * (1 - given)
            self._arrive(now_s)
        return now_s

    def _await(self, places: Iterable[int]) -> None:
        """Let messages that wait travel, without computation beside them, until these are there."""
        for place in places:
            while place not in self._there_s:
                if self._beside is None:
                    self._depart()
                else:
                    self._arrive(self._beside.at_s + self._beside.left_s)

    def _begin_s(self) -> float:
        """When the first message that waits can leave; infinite if none waits."""
        if not self._waiting:
            return inf
        _, message, ready_s = self._waiting[0]
        waited_s = [self._there_s[other] for other in message.waits_for]
        return max(ready_s, self._free(message.lane), *waited_s)

    def _depart(self) -> None:
        """Send the first messages that wait."""
        begin_s = self._begin_s()
        count, filled = self._fused(begin_s)
        message = replace(self._waiting[0][1], bytes=filled)
        places = [place for place, _, _ in self._waiting[:count]]
        del self._waiting[:count]
        cost = self.costs.message(message)
        self.communication_s += cost.whole_s
        self._beside = _Sent(message, places, cost, begin_s, begin_s, cost.carried_s)
        if not cost.stolen_s:
            self._arrive(begin_s + cost.carried_s)

    def _arrive(self, end_s: float) -> None:
        sent, self._beside = self._beside, None
        assert sent is not None
        self._end(sent.message, sent.places, sent.begin_s, end_s, sent.cost.later_s)

    def _fused(self, begin_s: float) -> tuple[int, float]:
        """How many messages travel together, and their bytes; the first always fits."""
        filled = self._waiting[0][1].bytes
        for count, (_, message, ready_s) in enumerate(self._waiting[1:], start=1):
            most = self.step.fusion_bytes
            if most is None or filled + message.bytes > most or ready_s > begin_s:
                return count, filled
            filled += message.bytes
        return len(self._waiting), filled

    def _free(self, lane: str) -> float:
        return self._free_s.get(lane, 0.0)

    def _end(
        self,
        task: Compute | Message,
        places: Iterable[int],
        begin_s: float,
        end_s: float,
        later_s: float = 0.0,
    ) -> None:
        """Hold the lane until ``end_s``; the task is there ``later_s`` afterwards."""
        self._free_s[task.lane] = end_s
        self._there_s.update(dict.fromkeys(places, end_s + later_s))
        self.spans.append(Span(task.lane, task, begin_s, end_s))
