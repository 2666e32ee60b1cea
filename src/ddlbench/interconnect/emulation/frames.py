"""Frames of a TUN device with offloads: one may be 64 KB, a bundle of TCP's or UDP's packets.

::

    | virtio_net_hdr 10 B | IPv4 | TCP or UDP | payload of packet 0 | of packet 1 | ... |
      bundle? packet size                       packet size           packet size

What a link does, it does to packets: a bundle's bytes are counted as those of its packets, each
with its headers, and a lost packet is cut out. Layout: linux/virtio_net.h, RFC 791, 9293, 768.
Checksums are left to the receiving kernel, which takes frames of this machine as checked; the part
that depends on the length (the pseudo header) is kept right.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby

__all__ = ["HEADER_BYTES", "destination", "is_ipv4", "measure", "without_lost"]

# flags, gso_type, hdr_len, gso_size, csum_start, csum_offset; in the machine's byte order
_HEADER = struct.Struct("=BBHHHH")
HEADER_BYTES = _HEADER.size
_ECN = 0x80
_UDP = 17
_FIN, _PUSH, _CWR = 0x01, 0x08, 0x80
_WORD = 0xFFFF


def is_ipv4(frame: bytes) -> bool:
    """Whether it is an IPv4 packet; the nodes have no other addresses."""
    return len(frame) >= HEADER_BYTES + 20 and frame[HEADER_BYTES] >> 4 == 4


def destination(frame: bytes) -> bytes:
    """The four bytes of the address that it goes to."""
    return frame[HEADER_BYTES + 16 : HEADER_BYTES + 20]


def measure(frame: bytes) -> tuple[int, int]:
    """Packets that a frame stands for, and their IP bytes on the wire."""
    length = len(frame) - HEADER_BYTES
    _, kind, _, packet_bytes, _, _ = _HEADER.unpack_from(frame)
    if not kind & ~_ECN:
        return 1, length
    headers = _headers(frame)
    packets = max(1, -(-(length - headers) // packet_bytes))
    return packets, length + (packets - 1) * headers


def without_lost(frame: bytes, kept: Sequence[bool]) -> list[bytes]:
    """What is left of a frame: one frame for each run of packets that are kept.

    Args:
        frame: as read.
        kept: one entry a packet.
    """
    if all(kept):
        return [frame]
    left, first = [], 0
    for keeps, group in groupby(kept):
        last = first + len(list(group))
        if keeps:
            left.append(_run(frame, first, last, len(kept)))
        first = last
    return left


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
