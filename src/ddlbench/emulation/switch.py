"""The frames of an emulated network, and the switch that decides whether and when they arrive.

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

A node's frames come from, and go to, a TUN device inside its network namespace. If the kernel has
offloads, a frame may have 64 KB: a bundle of packets of TCP or (from Linux 6.2) UDP::

    | virtio_net_hdr 10 B | IPv4 | TCP or UDP | payload of packet 0 | of packet 1 | ... |
      bundle? packet size                       packet size           packet size

A link acts on packets: the bytes of a bundle count as those of its packets, each with its headers,
and a lost packet is cut out. Layout: linux/virtio_net.h, RFC 791, 9293, 768. The receiving kernel
trusts the checksums of frames from this machine; only the part that depends on the length (the
pseudo header) is updated here.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

# Frames that reach the switch within this time are handled together, which saves wake-ups.
_AHEAD_S = 50e-6
_ANY = 65_536  # packets; more than a frame may hold

# flags, gso_type, hdr_len, gso_size, csum_start, csum_offset; in the machine's byte order
_HEADER = struct.Struct("=BBHHHH")
HEADER_BYTES = _HEADER.size
FRAME_BYTES = 65_535 + HEADER_BYTES  # with the largest IP packet
_ECN = 0x80
_UDP = 17
_FIN, _PUSH, _CWR = 0x01, 0x08, 0x80
_WORD = 0xFFFF


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


def is_ipv4(frame: bytes) -> bool:
    """Whether a frame holds IPv4; the nodes have no other addresses."""
    return len(frame) >= HEADER_BYTES + 20 and frame[HEADER_BYTES] >> 4 == 4


def destination(frame: bytes) -> bytes:
    """The four bytes of the destination's address."""
    return frame[HEADER_BYTES + 16 : HEADER_BYTES + 20]


def measure(frame: bytes) -> tuple[int, int]:
    """Number of packets in a frame, and their IP bytes on the wire."""
    length = len(frame) - HEADER_BYTES
    _, kind, _, packet_bytes, _, _ = _HEADER.unpack_from(frame)
    if not kind & ~_ECN:
        return 1, length
    headers = _headers(frame)
    packets = max(1, -(-(length - headers) // packet_bytes))
    return packets, length + (packets - 1) * headers


def without_lost(frame: bytes, kept: Sequence[bool]) -> list[bytes]:
    """One frame for each run of kept packets of ``frame``; ``kept`` has one entry a packet."""
    if all(kept):
        return [frame]
    left, first = [], 0
    for keeps, group in groupby(kept):
        last = first + len(list(group))
        if keeps:
            left.append(_run(frame, first, last, len(kept)))
        first = last
    return left


def in_bundles(frame: bytes, most_packets: int) -> list[bytes]:
    """The frame, or frames of at most ``most_packets`` packets each."""
    packets, _ = measure(frame)
    if packets <= most_packets:
        return [frame]
    return [
        _run(frame, first, min(first + most_packets, packets), packets)
        for first in range(0, packets, most_packets)
    ]


def _headers(frame: bytes) -> int:
    """Bytes of the IP header and of TCP's or UDP's."""
    network = (frame[HEADER_BYTES] & 0x0F) * 4
    if frame[HEADER_BYTES + 9] == _UDP:
        return network + 8
    return network + (frame[HEADER_BYTES + network + 12] >> 4) * 4


def _run(frame: bytes, first: int, last: int, packets: int) -> bytes:
    """The packets from ``first`` up to ``last`` (not included) as a frame of their own."""
    flags, kind, _, packet_bytes, start, offset = _HEADER.unpack_from(frame)
    headers = _headers(frame)
    body = HEADER_BYTES + headers
    payload = frame[body + first * packet_bytes : body + last * packet_bytes]
    head = bytearray(frame[HEADER_BYTES:body])
    _set_network(head, headers + len(payload), first)
    network = (head[0] & 0x0F) * 4
    shorter = len(frame) - body - len(payload)
    if head[9] == _UDP:
        struct.pack_into("!H", head, network + 4, 8 + len(payload))
        _shorten_checksum(head, network + 6, shorter)
    else:
        _set_tcp(head, network, first * packet_bytes, is_first=first == 0, is_last=last == packets)
        _shorten_checksum(head, network + 16, shorter)
    bundle = (kind, packet_bytes) if last - first > 1 else (0, 0)
    return _HEADER.pack(flags, bundle[0], headers, bundle[1], start, offset) + head + payload


def _set_network(head: bytearray, length: int, ahead: int) -> None:
    """Length and identification of the IP header, and its checksum."""
    (identification,) = struct.unpack_from("!H", head, 4)
    struct.pack_into("!HH", head, 2, length, (identification + ahead) & _WORD)
    struct.pack_into("!H", head, 10, 0)
    words = struct.unpack_from(f"!{(head[0] & 0x0F) * 2}H", head)
    struct.pack_into("!H", head, 10, ~_folded(sum(words)) & _WORD)


def _set_tcp(head: bytearray, at: int, ahead: int, *, is_first: bool, is_last: bool) -> None:
    (sequence,) = struct.unpack_from("!I", head, at + 4)
    struct.pack_into("!I", head, at + 4, (sequence + ahead) & 0xFFFFFFFF)
    if not is_last:
        head[at + 13] &= ~(_FIN | _PUSH) & 0xFF
    if not is_first:
        head[at + 13] &= ~_CWR & 0xFF


def _shorten_checksum(head: bytearray, at: int, by: int) -> None:
    """Take a length off the sum of the pseudo header, in ones' complement."""
    (total,) = struct.unpack_from("!H", head, at)
    struct.pack_into("!H", head, at, _folded(total + (~by & _WORD)))


def _folded(total: int) -> int:
    while total > _WORD:
        total = (total & _WORD) + (total >> 16)
    return total


# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUM, _TSO4, _TSO6, _TSO_ECN, _USO4, _USO6 = 0x01, 0x02, 0x04, 0x08, 0x20, 0x40
_TCP = _CHECKSUM | _TSO4 | _TSO6 | _TSO_ECN
_OFFLOADS = {"tcp and udp": _TCP | _USO4 | _USO6, "tcp": _TCP, "none": 0}
# linux/sched.h
_CLONE_NEWNET = 0x40000000


def open_tun(namespace: Path, name: str) -> tuple[int, str]:
    """Move this thread into a namespace and create the device ``name`` there.

    Args:
        namespace: a file such as /proc/<pid>/ns/net.
        name: of the device, which lasts as long as its file is open.

    Returns:
        the device's non-blocking file, and what is bundled: "tcp and udp", "tcp" or "none".

    Raises:
        OSError: the kernel refuses.
    """
    # The device lies in the namespace in which /dev/net/tun is opened. The thread stays there, as
    # the way back needs rights that a user namespace does not give.
    library = ctypes.CDLL(None, use_errno=True)
    with namespace.open("rb") as place:
        if library.setns(place.fileno(), _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return device, _offload(device)


def _offload(device: int) -> str:
    for bundled, bits in _OFFLOADS.items():
        try:
            fcntl.ioctl(device, _TUNSETOFFLOAD, bits)
        except OSError:
            continue
        return bundled
    return "none"
