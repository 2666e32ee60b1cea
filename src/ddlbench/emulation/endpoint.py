"""One end of a probe's traffic: a script that runs inside a node with only the standard library.

    python endpoint.py '{"role": "ping", ...}'

::

    ping          ->  echo requests; the other node's kernel answers
    udp_receive   prints its port  <- udp_send     a given number of packets, at a given rate
    tcp_receive   prints its port  <- tcp_send     as much as the connection takes

Each prints one JSON line at its end; a receiver prints its port before.

TUN devices of a relay's nodes, and the frames that pass through them.

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
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

# linux/udp.h, asm-generic/socket.h: names that Python's socket module lacks
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _SO_MEMINFO = 33, 35, 55
_BUFFER_BYTES = 16 * 2**20
_READ_BYTES = 1 << 20
_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_ANCILLARY_BYTES = 256
_FIRST_WAIT_S = 20.0


def ping(address: str, count: int, interval_s: float, wait_s: float) -> dict[str, Any]:
    """Round trips of echo requests, from the call that sends to the kernel's stamp on the reply.

    A request is sent every ``interval_s``, so several may be in transit; ``wait_s`` is the time
    limit for the last reply.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    own = os.getpid() & 0xFFFF
    sent: dict[int, int] = {}
    round_trips_s: list[float] = []
    start_s = time.monotonic()
    end_s = start_s + count * interval_s + wait_s
    while len(round_trips_s) < count:
        now_s = time.monotonic()
        if now_s >= end_s:
            break
        next_s = start_s + len(sent) * interval_s if len(sent) < count else end_s
        if now_s >= next_s:
            number = len(sent)
            request = _echo_request(own, number)
            sent[number] = time.clock_gettime_ns(time.CLOCK_REALTIME)
            sock.sendto(request, (address, 0))
            continue
        if select.select([sock], [], [], next_s - now_s)[0]:
            reply = _echo_reply(sock, own)
            if reply is not None and reply[0] in sent:
                round_trips_s.append((reply[1] - sent[reply[0]]) * 1e-9)
    return {"round_trips_s": round_trips_s, "sent": len(sent)}


def _echo_request(own: int, number: int) -> bytes:
    head = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, own, number)
    return struct.pack("!BBHHH", _ECHO_REQUEST, 0, _checksum(head), own, number)


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _echo_reply(sock: socket.socket, own: int) -> tuple[int, int] | None:
    """Number of an echo reply to us, and its arrival in ns; None for any other packet."""
    data, ancillary, _, _ = sock.recvmsg(2048, _ANCILLARY_BYTES)
    at = (data[0] & 0x0F) * 4
    kind, _, _, identity, number = struct.unpack_from("!BBHHH", data, at)
    return (number, _arrival_ns(ancillary)) if kind == _ECHO_REPLY and identity == own else None


def _arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """When the kernel received a packet; this process may read it later, when it gets a core."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            return int(seconds * 10**9 + nanoseconds)
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def udp_receive(
    address: str, settle_s: float, measure_s: float, expected: int | None, quiet_s: float
) -> dict[str, Any]:
    """Count bytes for ``measure_s``, or packets up to ``expected``.

    Args:
        address: to listen on.
        settle_s: bytes do not count during this time after the first packet.
        measure_s: time in which bytes count.
        expected: number of packets after which to end; each read is one packet then. None reads
            bundles.
        quiet_s: end after this time without a packet.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _large_buffer(sock)
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    if expected is None:
        with suppress(OSError):
            sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    sock.bind((address, 0))
    _print_json({"port": sock.getsockname()[1]})
    buffer = bytearray(_READ_BYTES)
    sock.settimeout(_FIRST_WAIT_S)
    reads = counted = 0
    first_s = begin_s = last_s = 0.0
    while expected is None or reads < expected:
        try:
            size, ancillary, _, _ = sock.recvmsg_into([buffer], _ANCILLARY_BYTES)
        except TimeoutError:
            break
        arrival_s = _arrival_ns(ancillary) * 1e-9
        reads += 1
        if reads == 1:
            first_s = arrival_s
            sock.settimeout(quiet_s)
        if not begin_s:
            # The bytes of this packet were sent before the measured time.
            begin_s = arrival_s if arrival_s >= first_s + settle_s else 0.0
            continue
        counted, last_s = counted + size, arrival_s
        if expected is None and arrival_s >= begin_s + measure_s:
            break
    return {
        "reads": reads,
        "bytes": counted,
        "seconds": max(0.0, last_s - begin_s) if begin_s else 0.0,
        "dropped_by_socket": _dropped(sock),
    }


def udp_send(
    address: str,
    port: int,
    *,
    payload_bytes: int,
    bundle: int,
    packets_per_s: float,
    packets: int,
) -> dict[str, Any]:
    """Send packets of one size at an even rate.

    ``bundle`` packets leave with one call if the kernel can segment UDP.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((address, port))
    if bundle > 1:
        try:
            sock.setsockopt(_SOL_UDP, _UDP_SEGMENT, payload_bytes)
        except OSError:
            bundle = 1
    payload = bytes(payload_bytes * bundle)
    start_s, sent = time.monotonic(), 0
    while sent < packets:
        ahead_s = start_s + sent / packets_per_s - time.monotonic()
        if ahead_s > 0:
            time.sleep(ahead_s)
        count = min(bundle, packets - sent)
        try:
            sock.send(payload[: count * payload_bytes])
        except ConnectionRefusedError:
            break
        sent += count
    return {"sent": sent, "seconds": time.monotonic() - start_s}


def tcp_receive(address: str, settle_s: float, measure_s: float) -> dict[str, Any]:
    """Count the bytes of a connection for ``measure_s``, from ``settle_s`` after its start."""
    listener = socket.create_server((address, 0))
    _print_json({"port": listener.getsockname()[1]})
    listener.settimeout(_FIRST_WAIT_S)
    connection, _ = listener.accept()
    begin_s = time.monotonic() + settle_s
    end_s = begin_s + measure_s
    buffer, counted = bytearray(_READ_BYTES), 0
    while (left_s := end_s - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            size = connection.recv_into(buffer)
        except TimeoutError:
            break
        if not size:
            break
        if time.monotonic() >= begin_s:
            counted += size
    return {"bytes": counted, "seconds": measure_s, "congestion_control": _control(connection)}


def tcp_send(address: str, port: int, control: str | None, seconds: float) -> dict[str, Any]:
    """Send until the receiver closes the connection, or for ``seconds``.

    ``control`` names the congestion control; None keeps the route's.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(_FIRST_WAIT_S)
    sock.connect((address, port))
    if control is not None:
        # After connecting, which sets the route's congestion control.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    used = _control(sock)
    payload, end_s = bytes(1 << 18), time.monotonic() + seconds
    with suppress(OSError):
        while (left_s := end_s - time.monotonic()) > 0:
            sock.settimeout(left_s)
            sock.send(payload)
    return {"congestion_control": used}


def _control(sock: socket.socket) -> str:
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.split(b"\0")[0].decode()


def _large_buffer(sock: socket.socket) -> None:
    """Ask for a large buffer, so that a receiver that waits for its core loses no packets."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)


def _dropped(sock: socket.socket) -> int:
    """Packets that arrived while the socket's buffer was full; the link did not lose them."""
    numbers = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 9 * 4)
    return int(struct.unpack("9I", numbers)[8]) if len(numbers) == 9 * 4 else 0


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "ping": ping,
    "udp_receive": udp_receive,
    "udp_send": udp_send,
    "tcp_receive": tcp_receive,
    "tcp_send": tcp_send,
}


def main(text: str) -> None:
    """Run the role that the JSON text names."""
    settings = json.loads(text)
    _print_json(ROLES[settings.pop("role")](**settings))


if __name__ == "__main__":
    main(sys.argv[1])


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
