"""A replay of one step: what its computations and messages cost, and when each begins and ends.

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

Seconds are from a profile and measured links:

* A computation is its share of that part of a sequential step (``workload``), times k, the
  slow-down of silent replicas of a node, and q, that of computation beside an idle library:
  Horovod's thread runs in every cycle.
* A message is a sweep of its operation at the shape of its group. Groups that share a network card
  of a node each take as long as one with so many times the bytes. It is longer by ``delays`` of
  links.json where it follows a computation on CPUs: gloo's threads wait for a core that computes.
  Swaps and broadcasts, whose delays are not measured, have those of an all-gather; of broadcasts
  that take turns only the first one.
* A library's own sweep holds its copies. Beside computation they are what it takes longer than a
  bare all-reduce over the devices of one node, half before a message and half after all of them.
* A message beside computation takes the core for its processor time (``cpu_s`` and ``overlaps``):
  on a core that computes and sends all of it, on an accelerator next to nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import inf

from ddlbench.experiment.profile import LoneRun
from ddlbench.planning.step import COMPUTE, Compute, Group, Message, Step
from ddlbench.planning.workload import Step as Phases
from ddlbench.predict.links import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    CollectiveTimes,
    Contention,
    Hop,
    LinkTable,
    Place,
    places_of,
)
from ddlbench.predict.prediction import CellInputs, joined


@dataclass(frozen=True)
class Terms:
    """Which measured terms a model counts.

    Args:
        ring: an all-reduce is a ring over the slowest hop (DDLBench, Eq. 1) in place of its sweep,
            and replicas do not slow each other down.
        all: copies, delays, stolen processor time, idle libraries, costs of tensors, and replicas
            that never make each other faster; else bare sweeps.
    """

    ring: bool = False
    all: bool = True


ALL_TERMS = Terms()


@dataclass(frozen=True)
class MessageCost:
    """Seconds of a message.

    Args:
        carried_s: for which it holds its lane.
        copied_s: of copies around it, by the rank that computes.
        stolen_s: by which it delays computation beside all of it.
        later_s: from the end on its lane until it is there.
    """

    carried_s: float
    copied_s: float = 0.0
    stolen_s: float = 0.0
    later_s: float = 0.0

    @property
    def whole_s(self) -> float:
        """All that it costs a rank that waits for it."""
        return self.carried_s + self.copied_s


class _Ends:
    """Places of one role, counted by class (:meth:`LinkTable.class_of`) and node."""

    def __init__(self, places: Iterable[Place], links: LinkTable) -> None:
        self._at: dict[Hashable, dict[int, Place]] = {}
        self._count: Counter[tuple[Hashable, int]] = Counter()
        self._whole: Counter[Hashable] = Counter()
        for place in places:
            group, node = links.class_of(place), place[0]
            self._at.setdefault(group, {}).setdefault(node, place)
            self._count[group, node] += 1
            self._whole[group] += 1

    @property
    def different(self) -> list[Place]:
        """A place of each class on each node."""
        return [place for of_nodes in self._at.values() for place in of_nodes.values()]

    def beside(self, node: int) -> tuple[int, ...]:
        """How many of each class are on a node."""
        return tuple(self._count[group, node] for group in self._at)

    def met_by(self, place: Place) -> Iterator[tuple[Place, int]]:
        """For each class a place on the same node, and one elsewhere, with how many there are."""
        node = place[0]
        for group, of_nodes in self._at.items():
            beside = self._count[group, node]
            if beside:
                yield of_nodes[node], beside
            if elsewhere := self._whole[group] - beside:
                yield next(other for at, other in of_nodes.items() if at != node), elsewhere


@dataclass(frozen=True)
class Exchange:
    """What the workers and the servers of a cell send each other in a step.

    Args:
        workers, servers: their numbers.
        latency_s: the longest of a hop between a worker and a server.
        server_s: seconds in which the busiest server gets the gradients of all workers.
        worker_s: seconds in which the slowest worker sends its gradients to all servers.
        node_s: seconds in which the cards of the busiest node carry the gradients of all workers;
            0 where they are unknown.
        remarks: on the links.
    """

    workers: int
    servers: int
    latency_s: float
    server_s: float
    worker_s: float
    node_s: float
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, inputs: CellInputs) -> Exchange:
        """Each pair by the slower of its ways, as push and pull take equally long here."""
        links, roles = inputs.links, ("server", "worker")
        places: dict[str, list[Place]] = {role: [] for role in roles}
        for process in inputs.plan.processes:
            places[process.role].append((process.node, process.devices[0]))
        servers, workers = (_Ends(places[role], links) for role in roles)
        share = inputs.workload.parameter_bytes / len(places["server"])
        hops: dict[Hop, None] = {}
        remarks: dict[str, None] = {}
        alike: dict[Hashable, float] = {}

        def seconds(place: Place, others: _Ends) -> float:
            """Equal for places of one class that have equally many of each class beside them."""
            key = (id(others), links.class_of(place), others.beside(place[0]))
            if key in alike:
                return alike[key]
            whole_s = 0.0
            for other, count in others.met_by(place):
                both = [links.hop("transport", *ends) for ends in ((place, other), (other, place))]
                hops.update((hop, None) for hop, _ in both)
                remarks.update((remark, None) for _, remark in both if remark)
                whole_s += count * (share / min(hop.bandwidth_bytes_per_s for hop, _ in both))
            alike[key] = whole_s
            return whole_s

        return cls(
            workers=len(places["worker"]),
            servers=len(places["server"]),
            worker_s=max(seconds(place, servers) for place in workers.different),
            server_s=max(seconds(place, workers) for place in servers.different),
            node_s=share
            * _most_crossing(places["server"], places["worker"])
            / links.node_bytes_per_s(inputs.cell.devices_per_node),
            latency_s=max(hop.latency_s for hop in hops),
            remarks=tuple(remarks),
        )

    def transfer_s(self, workers: int) -> float:
        """Seconds of all gradients or weights one way, without latency, of ``workers`` at once."""
        return max(self.all_s, self.worker_s) if workers > 1 else self.worker_s

    @property
    def all_s(self) -> float:
        """Seconds in which the busiest server, and the cards of its node, serve all workers."""
        return max(self.server_s, self.node_s)

    def latencies_s(self, workers: int) -> float:
        """Latencies of a message between each server and each of ``workers``.

        A process sends or receives them one by one (Thakur, Rabenseifner and Gropp 2005,
        section 3).
        """
        return max(workers, self.servers) * self.latency_s


def _most_crossing(servers: Sequence[Place], workers: Sequence[Place]) -> int:
    """Pairs of a worker and a server whose messages pass the cards of the busiest node one way."""
    served, working = (Counter(node for node, _ in places) for places in (servers, workers))
    return max(
        max(
            served[node] * (len(workers) - working[node]),
            working[node] * (len(servers) - served[node]),
        )
        for node in served | working
    )


class StepCosts:
    """The costs of one step of a cell."""

    def __init__(self, inputs: CellInputs, step: Step, terms: Terms) -> None:
        self._inputs, self._step, self._terms = inputs, step, terms
        self._remarks: dict[str, None] = {}
        self._collectives: dict[tuple[str, int, int, str], CollectiveTimes] = {}
        self._shape = inputs.cell.nodes, inputs.cell.devices_per_node
        self._through, self._further_s = cache(self._swept_through), cache(self._measured_further_s)
        self.message = cache(self._message)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which inputs were replaced or carried over, in order of occurrence."""
        remark = None if self._step.alone else self._phases.remark
        return joined(remark, self._remarks)

    @cached_property
    def _phases(self) -> Phases:
        return self._inputs.workload.step(self._step.samples)

    @cached_property
    def slowdown(self) -> float:
        """K q."""
        if self._terms.ring or self._step.has_servers:
            return 1.0
        slowdown = self._inputs.workload.slowdown(self._shape[1])
        if not self._terms.all:
            return slowdown
        idle = 1.0
        if self._inputs.plan.world_size > 1 and self._inputs.measured_links is not None:
            idle = self._inputs.links.slow_down_beside(self._step.transport, *self._shape)
        return max(1.0, slowdown) * idle

    def compute_s(self, task: Compute) -> float:
        phases = self._phases
        if task.phase == "alone":
            return self.slowdown * self._alone.step_s
        if task.phase == "rest":
            parts = phases.load_s + phases.forward_s + phases.backward_s + phases.optimizer_s
            return self.slowdown * (phases.step_s - parts)
        name = "optimizer_s" if task.phase == "update" else f"{task.phase}_s"
        seconds = self.slowdown * float(getattr(phases, name))
        if task.blocks is None:
            return task.share * seconds
        times = self._inputs.workload.passes_s(self._step.samples)[task.phase == "backward"]
        return seconds * sum(times[task.blocks.start : task.blocks.stop]) / (sum(times) or 1.0)

    def interval(self, compute_s: float, further_s: float) -> tuple[float, float] | None:
        """Interval of a step whose computations take ``compute_s``; ``further_s`` is certain."""
        if self._step.alone is not None:
            low_s, high_s = self._alone.interval_s or (None, None)
            if low_s is None or high_s is None:
                return None
            return self.slowdown * low_s + further_s, self.slowdown * high_s + further_s
        factor = compute_s / self._phases.step_s if self._phases.step_s else self.slowdown
        return self._phases.interval(factor, further_s)

    def _message(self, message: Message) -> MessageCost:
        """Seconds of a message; of one that is fused, with the bytes of all its parts."""
        group = message.group or Group(*self._shape)
        if message.ranks:
            return self._swap(message, group)
        if message.operation == "exchange":
            carried_s = self.one_way_s * message.bytes / self._inputs.workload.parameter_bytes
            latency_s = self.exchange.latency_s
            carried_s += self.latencies_s - latency_s
            return MessageCost(carried_s, later_s=latency_s)
        if group.nodes * group.devices_per_node < 2:
            return MessageCost(0.0)
        if self._terms.ring:
            return MessageCost(self._ring_s(message))
        if message.sums_gradients:
            return self._sum(message, group)
        through = self._through(message.operation, group)
        times = self._collective(message.operation, group, through)
        delay_s, tensor_s = self._further_s(message.operation, group, through)
        carried_s = times.time_s(self._shared_bytes(message, group))
        carried_s += (message.tensors - 1) * tensor_s
        delays = 1 if message.operation == BROADCAST else message.count
        return MessageCost(message.count * carried_s + message.follows * delays * delay_s)

    @cached_property
    def exchange(self) -> Exchange:
        exchange = Exchange.of(self._inputs)
        self._remarks.update(dict.fromkeys(exchange.remarks))
        return exchange

    @cached_property
    def one_way_s(self) -> float:
        """Seconds of all gradients, or of all weights, on their way to and from the servers."""
        return self.exchange.transfer_s(self._at_once)

    @property
    def latencies_s(self) -> float:
        """Latencies of a round of messages to or from the servers."""
        return self.exchange.latencies_s(self._at_once)

    @property
    def _at_once(self) -> int:
        """Workers that send at once: all of a synchronous step."""
        at_once = self._inputs.strategy.is_synchronous(self._inputs.cell)
        return self.exchange.workers if at_once else 1

    def _swept_through(self, operation: str, group: Group) -> str:
        """The library where its own messages were swept, else the transport below it."""
        library, links = self._step.library, self._inputs.links
        if library and self._terms.all and links.has_swept(library, group.nodes, operation):
            return library
        return self._step.transport

    def _sum(self, message: Message, group: Group) -> MessageCost:
        """A sum of gradients that may travel beside computation."""
        carried_s = self._collective(ALL_REDUCE, group, self._step.transport).time_s(message.bytes)
        if not self._terms.all:
            return MessageCost(carried_s)
        stolen_s = self._contention.stolen_s(int(message.bytes), carried_s)
        carried_s += self._further_s(ALL_REDUCE, group, self._step.transport)[0]
        return MessageCost(carried_s, self._copied_s(message.bytes), stolen_s)

    def _measured_further_s(
        self, operation: str, group: Group, through: str
    ) -> tuple[float, float]:
        """Seconds by which a message is longer after a computation, and by each further tensor."""
        if not self._terms.all:
            return 0.0, 0.0
        links, shape = self._inputs.links, (group.nodes, group.devices_per_node)
        measured = ALL_GATHER if operation in (BROADCAST, "swap") else operation
        library = self._step.library
        tensor_s = links.tensor_s(library, operation, *shape) if library else 0.0
        return links.delay_s(measured, through, *shape), tensor_s

    @cached_property
    def _contention(self) -> Contention:
        contention = self._inputs.links.contention(*self._shape, self._step.transport)
        self._remarks.update(dict.fromkeys(contention.notes))
        return contention

    @cached_property
    def _copied_s(self) -> Callable[[float], float]:
        links, library, transport = self._inputs.links, self._step.library, self._step.transport
        if library is None or not links.sweeps_of(library):
            if library is not None:
                lack = f"copies of {library} were not measured; measure the links again"
                self._remarks[lack] = None
            return lambda _size: 0.0
        # Copies are a node's own matter, and its links are swept up to longer messages.
        inside = self._shape[1] > 1 and links.has_swept(library, 1, ALL_REDUCE)
        beside = Group(1, self._shape[1]) if inside else Group(*self._shape)
        whole = self._collective(ALL_REDUCE, beside, library)
        inner = self._collective(ALL_REDUCE, beside, transport, remark=False)
        return lambda size: max(0.0, whole.time_s(size) - inner.time_s(size))

    def _collective(
        self, operation: str, group: Group, through: str, *, remark: bool = True
    ) -> CollectiveTimes:
        key = (operation, group.nodes, group.devices_per_node, through)
        if key not in self._collectives:
            self._collectives[key] = self._inputs.links.collective(*key)
        if remark:
            self._remarks.update(dict.fromkeys(self._collectives[key].notes))
        return self._collectives[key]

    @cached_property
    def _ring(self) -> list[Hop]:
        hops, remarks = self._inputs.links.ring("transport", self._inputs.plan)
        self._remarks.update(dict.fromkeys(remarks))
        return hops

    def _ring_s(self, message: Message) -> float:
        """An all-reduce passes W-th parts around the ring twice, a gather whole ones once."""
        hops = self._ring
        if message.operation == ALL_REDUCE:
            passes, size = 2 * (len(hops) - 1), message.bytes / len(hops)
        else:
            passes, size = len(hops) - 1, message.bytes
        return passes * max(hop.time_s(size) for hop in hops) if message.bytes else 0.0

    def _swap(self, message: Message, group: Group) -> MessageCost:
        """Rows between neighbours: as long as the longest hop."""
        links, places = self._inputs.links, places_of(self._inputs.plan)
        size = self._shared_bytes(message, group)
        seconds = []
        for source, target in zip(message.ranks, message.ranks[1:], strict=False):
            hop, remark = links.hop("transport", places[source], places[target])
            seconds.append(hop.time_s(size))
            self._remarks.update(dict.fromkeys(joined(remark)))
        delay_s, _ = self._further_s(message.operation, group, self._step.transport)
        return MessageCost(message.count * (delay_s + max(seconds)))

    def _shared_bytes(self, message: Message, group: Group) -> float:
        """Bytes of all groups that send the message over one network card."""
        if group.sharing == 1:
            return message.bytes
        return max(1.0, group.sharing / self._inputs.links.cards(self._shape[1])) * message.bytes

    @property
    def _alone(self) -> LoneRun:
        return self._inputs.workload.alone[str(self._step.alone)]


FAIR_SHARE = 0.5
"""Of a core that computes, what a message can get."""

_Waiting = tuple[int, Message, float]
"""Place in the list of tasks, the message, and when it is ready."""


@dataclass(frozen=True)
class TaskSpan:
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
    """The times of a step."""

    step: Step
    costs: StepCosts
    spans: list[TaskSpan] = field(default_factory=list)
    compute_s: float = 0.0
    communication_s: float = 0.0
    _free_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
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
        begin_s = max(self._free_s[task.lane], self._free_s[COMPUTE])
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
            self._free_s[COMPUTE] = self._computed_s(self._free_s[COMPUTE], copied_s)
            self._unpacked_s += copied_s
        self._waiting.append((place, message, self._free_s[COMPUTE]))

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
        return max(ready_s, self._free_s[message.lane], *waited_s)

    def _depart(self) -> None:
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
        self.spans.append(TaskSpan(task.lane, task, begin_s, end_s))
