"""Model of the emulated network: whether and when a frame arrives.

::

    node i ---- rate ---->  switch  ---- rate, then delay ---->  node j
          queue of link i           lost?     queue of link j
          (what i sends)                      (what all others send to j)

Devices of one node that have links of their own meet at a switch inside their node. To other nodes
they share the node's one link::

    device 0 ---- rate ----> switch of node i ---- rate, then delay ----> device 1

    device 0 -+
    device 1 -+-- rate ----> switch           ---- rate, then delay ----> devices of node j

Time is an argument, so nothing here waits. A frame's packets leave a node one after the other, and
the switch forwards each packet once it has arrived completely. A bundle therefore occupies its
receiver's link from the arrival of its first packet until one packet time after its last:

    leaves i      |p0|p1|p2|p3|
    leaves switch    |p0|p1|p2|p3|  -> all of them arrive here + delay
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddlbench.emulation.endpoint import in_bundles, measure, without_lost

# Frames that reach the switch within this time are handled together, which saves wake-ups.
_AHEAD_S = 50e-6
_ANY = 65_536  # packets; more than a frame may hold


@dataclass(frozen=True)
class Links:
    """Properties of the links."""

    delay_s: float  # one way
    bits_per_s: float | None  # in each direction of each link; None sets no limit
    loss: float  # probability that a packet is lost
    queue_bytes: int  # capacity of a link's queue; more is dropped at the tail
    mtu: int  # largest packet in bytes
    bundled_packets: int | None = None  # a longer bundle is cut; None takes it as it comes


class Delivery(NamedTuple):
    """A frame in transit; ``number`` keeps the order of frames that are due at the same time."""

    due_s: float
    number: int
    target: int
    frame: bytes


class Switch:
    """Ends joined by equal links.

    Args:
        link_of: number of each end's link, from 0 on; several ends may share one.
        links: their properties; may be replaced at any time.
        random: source of numbers from 0 to 1 that decide on losses.

    Attributes:
        dropped, lost, passed: packets dropped at a full queue, lost on purpose, and sent on.
    """

    def __init__(self, link_of: Sequence[int], links: Links, random: Callable[[], float]) -> None:
        self.links = links
        self._link_of = link_of
        self.dropped = self.lost = self.passed = 0
        self._random = random
        self._sends_until_s = [0.0] * (max(link_of) + 1)
        self._receives_until_s = [0.0] * (max(link_of) + 1)
        self._to_switch: list[Delivery] = []
        self._to_nodes: list[Delivery] = []
        self._number = 0

    def send(self, source: int, target: int, frame: bytes, now_s: float) -> None:
        rate = self.links.bits_per_s
        if rate is None:
            self._push(self._to_switch, now_s, target, frame)
            return
        link = self._link_of[source]
        until_s = max(self._sends_until_s[link], now_s)
        for bundle in in_bundles(frame, self.links.bundled_packets or _ANY):
            for piece, size in self._fitting(bundle, (until_s - now_s) * rate / 8):
                until_s += size * 8 / rate
                self._push(self._to_switch, until_s, target, piece)
        self._sends_until_s[link] = until_s

    def arrived(self, now_s: float) -> Iterator[Delivery]:
        """Frames that have reached their node, earliest first."""
        self._switch(now_s + _AHEAD_S)
        while self._to_nodes and self._to_nodes[0].due_s <= now_s:
            yield heapq.heappop(self._to_nodes)

    def next_s(self) -> float | None:
        """Time at which to call :meth:`arrived` again; None if no frame is in transit."""
        times = []
        if self._to_nodes:
            times.append(self._to_nodes[0].due_s)
        if self._to_switch:
            # From the switch to the node it takes at least the delay.
            times.append(self._to_switch[0].due_s + self.links.delay_s)
        return min(times, default=None)

    def _switch(self, until_s: float) -> None:
        while self._to_switch and self._to_switch[0].due_s <= until_s:
            at_s, _, target, frame = heapq.heappop(self._to_switch)
            for piece in self._survivors(frame):
                self._pass_on(target, piece, at_s)

    def _survivors(self, frame: bytes) -> list[bytes]:
        loss = self.links.loss
        if not loss:
            return [frame]
        kept = [self._random() >= loss for _ in range(measure(frame)[0])]
        self.lost += kept.count(False)
        return without_lost(frame, kept)

    def _pass_on(self, target: int, frame: bytes, at_s: float) -> None:
        rate, delay_s = self.links.bits_per_s, self.links.delay_s
        if rate is None:
            self.passed += measure(frame)[0]
            self._push(self._to_nodes, at_s + delay_s, target, frame)
            return
        link = self._link_of[target]
        until_s = self._receives_until_s[link]
        for piece, size in self._fitting(frame, max(until_s - at_s, 0.0) * rate / 8):
            last_packet_s = min(size, self.links.mtu) * 8 / rate
            until_s = max(at_s + last_packet_s, until_s + size * 8 / rate)
            self.passed += measure(piece)[0]
            self._push(self._to_nodes, until_s + delay_s, target, piece)
        self._receives_until_s[link] = until_s

    def _fitting(self, frame: bytes, waiting_bytes: float) -> list[tuple[bytes, int]]:
        """The part of a frame that fits into a queue (all, its head or nothing), and its bytes."""
        packets, size = measure(frame)
        free_bytes = self.links.queue_bytes - waiting_bytes
        if size <= free_bytes:
            return [(frame, size)]
        fits = min(packets, max(0, int(free_bytes / (size / packets))))
        self.dropped += packets - fits
        kept = [index < fits for index in range(packets)]
        return [(piece, measure(piece)[1]) for piece in without_lost(frame, kept)]

    def _push(self, queue: list[Delivery], due_s: float, target: int, frame: bytes) -> None:
        heapq.heappush(queue, Delivery(due_s, self._number, target, frame))
        self._number += 1


class Switches:
    """The switch between nodes and, where devices have links of their own, those inside nodes.

    Ends are numbered node by node, ``per_node`` of each.

    Args:
        ends: their number.
        per_node: ends of a node, which share its link to other nodes.
        between: properties of the links between nodes.
        inside: of the link that each end has to the others of its node; None where a node is one
            end.
        random: as of :class:`Switch`.
    """

    def __init__(
        self,
        ends: int,
        per_node: int,
        between: Links,
        inside: Links | None,
        random: Callable[[], float],
    ) -> None:
        self._node = [end // per_node for end in range(ends)]
        self.between = Switch(self._node, between, random)
        self.inside = None if inside is None else Switch(range(ends), inside, random)
        self._all = [self.between] if self.inside is None else [self.between, self.inside]

    def send(self, source: int, target: int, frame: bytes, now_s: float) -> None:
        same_node = self._node[source] == self._node[target]
        switch = self.inside if same_node and self.inside is not None else self.between
        switch.send(source, target, frame, now_s)

    def arrived(self, now_s: float) -> Iterator[Delivery]:
        """Frames that have reached their end."""
        for switch in self._all:
            yield from switch.arrived(now_s)

    def next_s(self) -> float | None:
        """As :meth:`Switch.next_s`."""
        times = [at_s for switch in self._all if (at_s := switch.next_s()) is not None]
        return min(times, default=None)

    def counts(self) -> dict[str, int]:
        """Packets so far: sent on, lost on purpose, and dropped at full queues."""
        return {
            "packets": sum(switch.passed for switch in self._all),
            "lost_on_purpose": sum(switch.lost for switch in self._all),
            "dropped_by_queue": sum(switch.dropped for switch in self._all),
        }

    def reset_counts(self) -> None:
        for switch in self._all:
            switch.passed = switch.lost = switch.dropped = 0
