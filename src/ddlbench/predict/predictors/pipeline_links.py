"""The communication of a pipeline: seconds of its messages and sums, and the links that they hold.

Copies of a synchronous pipeline train side by side and meet in one all-reduce. Those whose links
are alike do the same at the same time, so one of each kind is replayed::

    node 0   rank 0 - 1 - 2 - 3     rank 4 - 5 - 6 - 7       two kinds: the links of devices 0 to 3
    node 1   rank 8 - 9 - 10 - 11   rank 12 - ...            and those of devices 4 to 7
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from ddlbench.planning.pipeline import Pipeline
from ddlbench.planning.plan import Plan
from ddlbench.planning.schedules import Event, EventGraph, Held
from ddlbench.planning.step import Group, transport_of, whole_buckets
from ddlbench.planning.workload import Block, Workload
from ddlbench.predict.links import Hop, LinkTable, places_of


@dataclass(frozen=True)
class Kinds:
    """Pipelines side by side, in groups (kinds) whose links are alike.

    Args:
        first: a pipeline of each kind.
        counts: how many are of it.
        ranks: of one pipeline.
    """

    first: tuple[int, ...]
    counts: tuple[int, ...]
    ranks: int

    @property
    def pipelines(self) -> int:
        return sum(self.counts)

    def originals(self, events: Iterable[Event]) -> list[Event]:
        """Events as their own pipelines have them, from a run of one pipeline a kind."""
        kinds = ((event, event.rank // self.ranks) for event in events)
        return [_moved(event, (self.first[kind] - kind) * self.ranks) for event, kind in kinds]

    def sent_s(self, graph: EventGraph, sent_s: Sequence[float]) -> float:
        """Seconds of all messages, the mean over pipelines, and of the sums that all take part in.

        ``sent_s`` are of each key of the graph, which is of a run of one pipeline a kind.
        """
        shares = [count / self.pipelines for count in self.counts]
        return sum(
            count * seconds * (1.0 if _is_sum(key) else shares[key.rank // self.ranks])
            for key, count, seconds in zip(graph.keys, graph.key_counts, sent_s, strict=True)
            if key.role != "notice"
        )


def _moved(event: Event, by: int) -> Event:
    """The same event of ranks that are so much higher."""
    if not by:
        return event
    peer = None if event.peer is None else event.peer + by
    return Event(event.role, event.rank + by, event.action, peer)


class PipelineLinks:
    """Times of a plan's communication.

    ``blocks`` are of each stage. With ``ends`` a message costs its ranks processor time, which is
    not spent on computation.
    """

    def __init__(
        self,
        table: LinkTable,
        plan: Plan,
        pipeline: Pipeline,
        blocks: Sequence[Sequence[Block]],
        workload: Workload,
        *,
        ends: bool = False,
    ) -> None:
        self._table, self._plan, self._pipeline, self._ends = table, plan, pipeline, ends
        self._sent_bytes = [pipeline.samples * stage[-1].output_bytes for stage in blocks]
        of_stages = [
            [tensor for tensor in workload.tensors if stage.first <= tensor.block < stage.last]
            for stage in pipeline.stages
        ]
        cap_bytes = workload.bucket_bytes
        self._bucket_bytes = [
            [sum(bucket) for bucket in whole_buckets(tensors, cap_bytes)] for tensors in of_stages
        ]
        self._places = places_of(plan)
        self._replica = {
            rank: place for stage in pipeline.stages for place, rank in enumerate(stage.ranks)
        }
        self._shape = plan.cell.nodes, plan.cell.devices_per_node
        self._cards = round(table.cards(self._shape[1]))
        self._remarks: dict[str, None] = {}
        self._hop, self._carried_s = cache(self._measured_hop), cache(Hop.time_s)
        self._ends_s, self._delay_s = cache(self._measured_ends_s), cache(self._measured_delay_s)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which links stand in for unmeasured ones; each remark once, in order of occurrence."""
        return tuple(self._remarks)

    def times_s(
        self, events: Sequence[Event], device_kind: str
    ) -> tuple[list[float], list[Held | None]]:
        """Seconds of each event, and the links that it holds; as :meth:`time_s`, :meth:`held`."""
        times = [self.time_s(event, device_kind) for event in events]
        return times, [self.held(event, device_kind) for event in events]

    def time_s(self, event: Event, device_kind: str) -> float:
        """Seconds of a message, of the notice of a posted receive, or of an all-reduce; else 0."""
        action, peer = event.action, event.peer
        if event.role == "notice" and peer is not None:
            same_node = self._same_node(event.rank, peer)
            return self._hop(event.rank, peer).latency_s + self._delay_s(same_node)
        if action is None:
            return 0.0
        if event.role == "message" and peer is not None:
            size = self._sent_bytes[action.stage - (action.kind == "send_gradient")]
            ends_s = self._ends_s(self._same_node(event.rank, peer), size)
            return max(0.0, self._carried_s(self._hop(event.rank, peer), size) - ends_s)
        if action.kind.startswith("receive"):
            cut = action.stage - (action.kind == "receive_activation")
            sender = cut if action.kind == "receive_activation" else action.stage + 1
            sources = self._pipeline.stages[sender].ranks
            source = sources[min(self._replica[event.rank], len(sources) - 1)]
            return self._ends_s(self._same_node(source, event.rank), self._sent_bytes[cut])
        if action.kind == "all_reduce":
            return self._sum_s(action.stage, transport_of(device_kind))
        return 0.0

    def kinds(self, events: Sequence[Event], ranks: int, device_kind: str) -> Kinds:
        """Pipelines whose links are alike; each alone where pipelines share links of nodes.

        ``events`` are of the first pipeline, which has so many ranks.
        """
        pipelines = len(self._places) // ranks
        if pipelines == 1:
            return Kinds((0,), (1,), ranks)
        # Times of these depend on where their ranks are.
        messages = [
            event
            for event in events
            if event.role in ("message", "notice")
            or (event.action is not None and event.action.kind.startswith("receive"))
        ]
        members_of_kind: dict[tuple[Hashable, ...], list[int]] = {}
        users: Counter[Hashable] = Counter()
        for pipeline in range(pipelines):
            moved = [_moved(event, pipeline * ranks) for event in messages]
            holds = [self.held(event, device_kind) for event in moved]
            links = list(dict.fromkeys(link for held in holds if held for link in held.links))
            users.update(links)
            number = {link: place for place, link in enumerate(links)}
            alike = tuple(
                (
                    self.time_s(event, device_kind),
                    held and (held.seconds, *(number[link] for link in held.links)),
                )
                for event, held in zip(moved, holds, strict=True)
            )
            members_of_kind.setdefault(alike, []).append(pipeline)
        if any(count > 1 for count in users.values()):
            return Kinds(tuple(range(pipelines)), (1,) * pipelines, ranks)
        members = members_of_kind.values()
        return Kinds(tuple(alike[0] for alike in members), tuple(map(len, members)), ranks)

    def held(self, event: Event, device_kind: str) -> Held | None:
        """The network cards that a message holds, out of a node, and into another; or a sum, both.

        A notice has next to no bytes, but waits for earlier messages.
        """
        action, peer = event.action, event.peer
        if action is not None and _is_sum(event):
            return self._held_by_sum(action.stage, device_kind)
        if event.role not in ("message", "notice") or peer is None:
            return None
        if self._same_node(event.rank, peer):
            return None
        wire_s = 0.0
        if action is not None:
            size = self._sent_bytes[action.stage - (action.kind == "send_gradient")]
            wire_s = size / self._hop(event.rank, peer).bandwidth_bytes_per_s
        return Held((("out", *self._card(event.rank)), ("in", *self._card(peer))), wire_s)

    def _held_by_sum(self, stage: int, device_kind: str) -> Held | None:
        """The cards that a sum over several nodes holds; the sums of other stages may need them."""
        cards = list(dict.fromkeys(map(self._card, self._pipeline.stages[stage].ranks)))
        if len({node for node, _ in cards}) == 1:
            return None
        links = [(way, *card) for card in cards for way in ("out", "in")]
        return Held(tuple(links), self._sum_s(stage, transport_of(device_kind)))

    def _card(self, rank: int) -> tuple[int, int]:
        """Node of a rank, and number of the network card that it uses."""
        node, device = self._places[rank]
        return node, device * self._cards // self._shape[1]

    def _measured_hop(self, source: int, target: int) -> Hop:
        hop, remark = self._table.hop("transport", self._places[source], self._places[target])
        if remark:
            self._remarks[remark] = None
        return hop

    def _same_node(self, source: int, target: int) -> bool:
        return self._places[source][0] == self._places[target][0]

    def _measured_delay_s(self, same_node: bool) -> float:
        """By which a notice waits for a sender that computes: its thread needs the core, too."""
        if not self._ends:
            return 0.0
        nodes = 1 if same_node else self._shape[0]
        return self._table.delay_s("p2p", "gloo", nodes, self._shape[1])

    def _measured_ends_s(self, same_node: bool, size: float) -> float:
        """Processor seconds of both ends of a message; a rank sends as many as it receives."""
        if not self._ends:
            return 0.0
        ends_s = self._table.message_ends_s("node" if same_node else "network")
        return ends_s(size) if ends_s else 0.0

    def _sum_s(self, stage: int, transport: str) -> float:
        group = Group.of(self._plan, self._pipeline.stages[stage].ranks)
        reduce = self._table.all_reduce(group.nodes, group.devices_per_node, transport)
        self._remarks.update(dict.fromkeys(reduce.notes))
        return sum(reduce.time_s(size) for size in self._bucket_bytes[stage])


def _is_sum(event: Event) -> bool:
    return event.action is not None and event.action.kind == "all_reduce"
