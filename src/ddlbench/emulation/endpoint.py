"""One end of a probe's traffic: a script that runs inside a node with only the standard library.

    python endpoint.py '{"role": "ping", ...}'

::

    ping          ->  echo requests; the other node's kernel answers
    udp_receive   prints its port  <- udp_send     a given number of packets, at a given rate
    tcp_receive   prints its port  <- tcp_send     as much as the connection takes

Each prints one JSON line at its end; a receiver prints its port before.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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
    identity = os.getpid() & 0xFFFF
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
            head = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, identity, number)
            request = struct.pack("!BBHHH", _ECHO_REQUEST, 0, _checksum(head), identity, number)
            sent[number] = time.clock_gettime_ns(time.CLOCK_REALTIME)
            sock.sendto(request, (address, 0))
            continue
        if select.select([sock], [], [], next_s - now_s)[0]:
            reply = _echo_reply(sock, identity)
            if reply is not None and reply[0] in sent:
                round_trips_s.append((reply[1] - sent[reply[0]]) * 1e-9)
    return {"round_trips_s": round_trips_s, "sent": len(sent)}


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _echo_reply(sock: socket.socket, wanted: int) -> tuple[int, int] | None:
    """Number of an echo reply to us, and its arrival in ns; None for any other packet."""
    data, ancillary, _, _ = sock.recvmsg(2048, _ANCILLARY_BYTES)
    at = (data[0] & 0x0F) * 4
    kind, _, _, identity, number = struct.unpack_from("!BBHHH", data, at)
    return (number, _arrival_ns(ancillary)) if kind == _ECHO_REPLY and identity == wanted else None


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
    catch_up_packets: float = math.inf,
) -> dict[str, Any]:
    """Send packets of one size at an even rate.

    ``bundle`` packets leave with one call if the kernel can segment UDP. A sender that had to wait
    for its core sends at most ``catch_up_packets`` at once: more might not fit into a link's queue.
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
        else:
            start_s += max(0.0, -ahead_s - catch_up_packets / packets_per_s)
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
