"""A replay of one step: when each of its computations and messages begins and ends.

::

    compute    |--B3--|c|--B2--|c|------B1------|c|           |c'| U |   c: copies of a message
    link                |--- m0 ---|--- m1 ---|     |-- m2 --|
                                                     exposed

A lane does its tasks in the order of the list, one at a time. A task begins when its lane is free,
what it waits for is there, and the computations before it in the list have ended. A message beside
computation delays what follows on the rank by the processor time that it takes (its ``stolen_s``,
as far as computation runs beside it). Messages that are fused take with them all that are ready
when the link is free, whole, up to the buffer (Sergeev and Del Balso 2018, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ddlbench.planning.step import COMPUTE, Compute, Message, Step
from ddlbench.predict.step_costs import StepCosts


@dataclass(frozen=True)
class Span:
    """A task, or messages that were fused, from ``begin_s`` to ``end_s`` on a lane."""

    lane: str
    task: Compute | Message
    begin_s: float
    end_s: float


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
    _waiting: list[tuple[int, float]] = field(default_factory=list)
    _unpacked_s: float = 0.0

    def __post_init__(self) -> None:
        tasks = self.step.tasks
        self._seconds = [
            self.costs.compute_s(task) if isinstance(task, Compute) else 0.0 for task in tasks
        ]
        self._left_s = self._to_come(tasks)
        for place, task in enumerate(tasks):
            if isinstance(task, Compute):
                self._compute(place, task)
            elif task.lane == COMPUTE:
                self._hold_up(place, task)
            else:
                self._send(place)
        self._flush(len(tasks))

    @property
    def end_s(self) -> float:
        """When the last task has ended."""
        return max((*self._free_s.values(), *self._there_s.values()), default=0.0)

    @property
    def exposed_s(self) -> float:
        """By which messages make the step longer than the rank's computations."""
        return self.end_s - self.compute_s

    def _to_come(self, tasks: Sequence[Compute | Message]) -> list[float]:
        """Seconds of computation from each place on, up to a task that waits for messages."""
        left = [0.0] * (len(tasks) + 1)
        for place in reversed(range(len(tasks))):
            task = tasks[place]
            waits = task.lane == COMPUTE and (isinstance(task, Message) or task.waits_for)
            own_s = self._seconds[place] if task.lane == COMPUTE else 0.0
            left[place] = 0.0 if waits else left[place + 1] + own_s
        return left

    def _compute(self, place: int, task: Compute) -> None:
        begin_s = max(self._free(task.lane), self._free(COMPUTE))
        if task.waits_for:
            self._flush(place)
            begin_s = max(begin_s, *(self._there_s[other] for other in task.waits_for))
            if task.lane == COMPUTE:
                begin_s += self._unpacked_s
                self._unpacked_s = 0.0
        if task.lane == COMPUTE:
            self.compute_s += self._seconds[place]
        self._occupy(task.lane, task, begin_s, self._seconds[place])
        self._there_s[place] = self._free_s[task.lane]

    def _hold_up(self, place: int, message: Message) -> None:
        self._flush(place)
        cost = self.costs.message(message)
        self.communication_s += cost.whole_s
        self._occupy(COMPUTE, message, self.end_s, cost.whole_s)
        self._there_s[place] = self._free_s[COMPUTE]

    def _send(self, place: int) -> None:
        """Queue a message, and send those before it that do not wait for it."""
        ready_s = self._free(COMPUTE)
        while self._waiting and self._begin_s() < ready_s:
            ready_s += self._depart(place)
        self._waiting.append((place, ready_s))
        if self.step.fusion_bytes is None:
            self._flush(place)

    def _flush(self, place: int) -> None:
        """Send all messages that wait, as ``place`` of the list is reached."""
        while self._waiting:
            self._depart(place)

    def _begin_s(self) -> float:
        """When the first message that waits can leave."""
        place, ready_s = self._waiting[0]
        task = self.step.tasks[place]
        waited_s = [self._there_s[other] for other in task.waits_for]
        return max(ready_s, self._free(task.lane), *waited_s)

    def _depart(self, place: int) -> float:
        """Send the first messages that wait, as ``place`` of the list is reached.

        Returns:
            seconds by which the rank's next computations are delayed.
        """
        begin_s = self._begin_s()
        first = self.step.tasks[self._waiting[0][0]]
        assert isinstance(first, Message)
        together = self._fused(begin_s)
        message = replace(first, bytes=sum(self._bytes(other) for other in together))
        cost = self.costs.message(message)
        copied_s = cost.copied_s / 2
        self._free_s[COMPUTE] = self._free(COMPUTE) + copied_s
        self._unpacked_s += copied_s
        begin_s = max(begin_s, self._free_s[COMPUTE]) if copied_s else begin_s
        computing_s = self._free_s[COMPUTE] + self._left_s[place]
        beside_s = max(0.0, min(cost.carried_s, computing_s - begin_s))
        stolen_s = cost.stolen_s * beside_s / cost.carried_s if cost.carried_s else 0.0
        self._free_s[COMPUTE] += stolen_s
        self.communication_s += cost.whole_s
        self._occupy(message.lane, message, begin_s, cost.carried_s)
        for other in together:
            self._there_s[other] = self._free_s[message.lane] + cost.later_s
        del self._waiting[: len(together)]
        return copied_s + stolen_s

    def _fused(self, begin_s: float) -> list[int]:
        """Places of the messages that travel together; the first always fits."""
        if self.step.fusion_bytes is None:
            return [self._waiting[0][0]]
        filled = 0.0
        together: list[int] = []
        for place, ready_s in self._waiting:
            filled += self._bytes(place)
            if together and (filled > self.step.fusion_bytes or ready_s > begin_s):
                break
            together.append(place)
        return together

    def _bytes(self, place: int) -> float:
        task = self.step.tasks[place]
        return task.bytes if isinstance(task, Message) else 0.0

    def _free(self, lane: str) -> float:
        return self._free_s.get(lane, 0.0)

    def _occupy(self, lane: str, task: Compute | Message, begin_s: float, seconds: float) -> None:
        self._free_s[lane] = begin_s + seconds
        self.spans.append(Span(lane, task, begin_s, begin_s + seconds))
