"""The model of the emulated network: when a frame that is sent now arrives, if it does.

::

    node i ---- rate ---->  switch  ---- rate, then delay ---->  node j
          queue of link i           lost?     queue of link j
          (what i sends)                      (what all others send to j)

Time is an argument, so nothing here waits. A frame's packets leave a node one after the other; the
switch passes each on when it has it whole. A bundle therefore holds its receiver's link from the
time when its first packet came, and ends one packet after it has come:

    leaves i      |p0|p1|p2|p3|
    leaves switch    |p0|p1|p2|p3|  -> all of them arrive here + delay
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ddlbench.emulation.frames import measure, without_lost

# Frames that reach the switch within so short a time are taken at once, which saves waking up.
_AHEAD_S = 50e-6


@dataclass(frozen=True)
class Links:
    """What the links do.

    Args:
        delay_s: one way.
        bits_per_s: in each direction of each link; None sets no limit.
        loss: probability of a packet.
        queue_bytes: that may wait for a link; more is dropped at the tail.
        mtu: largest packet in bytes.
    """

    delay_s: float
    bits_per_s: float | None
    loss: float
    queue_bytes: int
    mtu: int


class Delivery(NamedTuple):
    """A frame on its last way; ``number`` keeps the order of frames of one time."""

    due_s: float
    number: int
    target: int
    frame: bytes


class Switch:
    """Nodes joined by links of one kind.

    Args:
        nodes: how many.
        links: what they do; may be set anew at any time.
        random: numbers from 0 to 1 that decide about losses.

    Attributes:
        dropped: packets that found a full queue.
        lost: packets lost on purpose.
        passed: packets that were sent on their last way.
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
        """A node sends a frame to another."""
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
        """Frames that are at their node by now, earliest first."""
        self._switch(now_s + _AHEAD_S)
        while self._to_nodes and self._to_nodes[0].due_s <= now_s:
            yield heapq.heappop(self._to_nodes)

    def next_s(self) -> float | None:
        """When to ask again at the latest; None when nothing is under way."""
        times = []
        if self._to_nodes:
            times.append(self._to_nodes[0].due_s)
        if self._to_switch:
            # It cannot be due before it has crossed the rest of its way.
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
        """What of a frame finds room in a queue, and its bytes on the wire: all, its head, none."""
        packets, size = measure(frame)
        room = self.links.queue_bytes - waiting_bytes
        if size <= room:
            return [(frame, size)]
        fits = min(packets, max(0, int(room / (size / packets))))
        self.dropped += packets - fits
        kept = [index < fits for index in range(packets)]
        return [(piece, measure(piece)[1]) for piece in without_lost(frame, kept)]

    def _push(self, queue: list[Delivery], due_s: float, target: int, frame: bytes) -> None:
        heapq.heappush(queue, Delivery(due_s, self._number, target, frame))
        self._number += 1
