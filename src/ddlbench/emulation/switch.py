"""Model of the emulated network: whether and when a frame arrives.

::

    node i ---- rate ---->  switch  ---- rate, then delay ---->  node j
          queue of link i           lost?     queue of link j
          (what i sends)                      (what all others send to j)

Time is an argument, so nothing here waits. A frame's packets leave a node one after the other, and
the switch forwards each packet once it has arrived completely. A bundle therefore occupies its
receiver's link from the arrival of its first packet until one packet time after its last:

    leaves i      |p0|p1|p2|p3|
    leaves switch    |p0|p1|p2|p3|  -> all of them arrive here + delay
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ddlbench.emulation.frames import measure, without_lost

# Frames that reach the switch within this time are handled together, which saves wake-ups.
_AHEAD_S = 50e-6


@dataclass(frozen=True)
class Links:
    """Properties of the links."""

    delay_s: float  # one way
    bits_per_s: float | None  # in each direction of each link; None sets no limit
    loss: float  # probability that a packet is lost
    queue_bytes: int  # capacity of a link's queue; more is dropped at the tail
    mtu: int  # largest packet in bytes


class Delivery(NamedTuple):
    """A frame in transit; ``number`` keeps the order of frames that are due at the same time."""

    due_s: float
    number: int
    target: int
    frame: bytes


class Switch:
    """Nodes joined by equal links.

    Args:
        nodes: number of nodes.
        links: their properties; may be replaced at any time.
        random: source of numbers from 0 to 1 that decide on losses.

    Attributes:
        dropped, lost, passed: packets dropped at a full queue, lost on purpose, and sent on.
    """

    def __init__(self, nodes: int, links: Links, random: Callable[[], float]) -> None:
        self.links = links
        self.dropped = self.lost = self.passed = 0
        self._random = random
        self._sends_until_s = [0.0] * nodes
        self._receives_until_s = [0.0] * nodes
        self._to_switch: list[Delivery] = []
        self._to_nodes: list[Delivery] = []
        self._number = 0

    def send(self, source: int, target: int, frame: bytes, now_s: float) -> None:
        rate = self.links.bits_per_s
        if rate is None:
            self._push(self._to_switch, now_s, target, frame)
            return
        until_s = max(self._sends_until_s[source], now_s)
        for piece, size in self._fitting(frame, (until_s - now_s) * rate / 8):
            until_s += size * 8 / rate
            self._push(self._to_switch, until_s, target, piece)
        self._sends_until_s[source] = until_s

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
        until_s = self._receives_until_s[target]
        for piece, size in self._fitting(frame, max(until_s - at_s, 0.0) * rate / 8):
            last_packet_s = min(size, self.links.mtu) * 8 / rate
            until_s = max(at_s + last_packet_s, until_s + size * 8 / rate)
            self.passed += measure(piece)[0]
            self._push(self._to_nodes, until_s + delay_s, target, piece)
        self._receives_until_s[target] = until_s

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
