"""Bytes that a process sends and receives over TCP, as its kernel counts them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ddlbench.runtime.rank_report import CountedBytes

# Offsets in struct tcp_info. Newer kernels append fields, so these offsets never change.
_RECEIVED, _UNSENT, _SENT, _RETRANSMITTED = 128, 144, 200, 208
_INFO_BYTES = 216

Bytes = tuple[int, int]


class TcpTraffic:
    """Counts what this process sends and receives over TCP (gloo) during the measured steps.

    ::

        warm-up | start | barrier | measured steps | stop | barrier | untimed steps
                | read  |                          | read |

    It may stop and start several times; the counts add up.

    The kernel counts the bytes written to and received from every connection (``TCP_INFO``, Linux
    4.19; ``struct tcp_info`` in linux/tcp.h). A process sees only its own connections, even if
    ranks share a host or its loopback. The barriers keep bytes of other phases out of the count.
    The connections of the rendezvous store (``store_port``) do not count.
    """

    counted_by = "tcp_info"

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._before: dict[str, Bytes] = {}
        self._first_step = 0
        self._counted: CountedBytes | None = None

    def start(self, done_steps: int) -> None:
        self._before, self._first_step = connection_bytes(self._store_port), done_steps

    def stop(self, done_steps: int) -> None:
        after = connection_bytes(self._store_port)
        pairs = [(after[key], self._before.get(key, (0, 0))) for key in after]
        if pairs:
            so_far = self._counted or CountedBytes(self.counted_by, 0, 0, 0)
            self._counted = CountedBytes(
                counted_by=self.counted_by,
                steps=so_far.steps + done_steps - self._first_step,
                sent_bytes=so_far.sent_bytes + sum(now[0] - before[0] for now, before in pairs),
                received_bytes=so_far.received_bytes
                + sum(now[1] - before[1] for now, before in pairs),
            )

    def report(self) -> CountedBytes | None:
        return self._counted


def connection_bytes(store_port: int) -> dict[str, Bytes]:
    """Bytes (written, received) of each TCP connection of this process, by the socket's name.

    Connections from or to ``store_port`` are left out. Empty if the kernel does not count.
    """
    counts: dict[str, Bytes] = {}
    for name, connection in _connections():
        with closing(connection):
            try:
                ports = {connection.getpeername()[1], connection.getsockname()[1]}
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            except OSError:  # a listening socket, or one that has just been closed
                continue
        if store_port in ports or len(info) < _INFO_BYTES:
            continue
        sent, again = struct.unpack_from("=QQ", info, _SENT)
        (waiting,) = struct.unpack_from("=I", info, _UNSENT)
        (received,) = struct.unpack_from("=Q", info, _RECEIVED)
        counts[name] = (sent - again + waiting, received)
    return counts


def _connections() -> Iterator[tuple[str, socket.socket]]:
    """Each TCP socket of this process: a name that never changes, and a duplicate."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = str(entry.readlink())
            if not name.startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # closed meanwhile
            continue
        internet = connection.family in (socket.AF_INET, socket.AF_INET6)
        if internet and connection.type == socket.SOCK_STREAM:
            yield name, connection
        else:
            connection.close()
