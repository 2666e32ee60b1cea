"""TUN devices of a relay's nodes, and the frames that pass through them.

A device lies inside a node's network namespace. The relay reads from the device's file what the
namespace sends, and what it writes there arrives in the namespace. If the kernel has offloads, a
frame may have 64 KB: a bundle of packets of TCP or (from Linux 6.2) UDP.

::

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
import os
import struct
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

# flags, gso_type, hdr_len, gso_size, csum_start, csum_offset; in the machine's byte order
_HEADER = struct.Struct("=BBHHHH")
HEADER_BYTES = _HEADER.size
_ECN = 0x80
_UDP = 17
_FIN, _PUSH, _CWR = 0x01, 0x08, 0x80
_WORD = 0xFFFF


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


# The largest IP packet and the header before it.
FRAME_BYTES = 65_535 + 10

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
