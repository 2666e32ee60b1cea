"""Bytes that a rank sent and received for other ranks during the measured steps.

::

    warm-up | start | barrier | measured steps | stop | barrier | untimed steps
            | read  |                          | read |

Over TCP (gloo) the kernel counts for every connection the bytes that a program wrote to it and the
bytes that came in (``TCP_INFO``, Linux 4.19). The counts are a process's own, so ranks that share
a host, or talk over its loopback, are told apart. Connections of the rendezvous store are left
out. Peers cannot begin before :meth:`TcpTraffic.start`, nor send more before ``stop``, as barriers
lie between.

Source: ``struct tcp_info`` in linux/tcp.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from ddlbench.experiment.result_parts import Communication, RankTraffic
from ddlbench.runtime.rank_report import CountedBytes, RankReport

__all__ = ["TcpTraffic", "communication", "connection_bytes"]

# Offsets in struct tcp_info. Its size grows with the kernel, its beginning never changes.
_RECEIVED, _UNSENT, _SENT, _RETRANSMITTED = 128, 144, 200, 208
_SIZE = 216

Bytes = tuple[int, int]


class TcpTraffic:
    """Counts what this process sends and receives over TCP.

    Args:
        store_port: of the rendezvous store, whose connections do not count.
    """

    counted_by = "tcp_info"

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._before: dict[str, Bytes] = {}
        self._first_step = 0
        self._counted: CountedBytes | None = None

    def start(self, done_steps: int) -> None:
        """So many measured steps are done; the next ones count."""
        self._before, self._first_step = connection_bytes(self._store_port), done_steps

    def stop(self, done_steps: int) -> None:
        """All measured steps are done."""
        after = connection_bytes(self._store_port)
        pairs = [(after[key], self._before.get(key, (0, 0))) for key in after]
        self._counted = None
        if pairs:
            self._counted = CountedBytes(
                counted_by=self.counted_by,
                steps=done_steps - self._first_step,
                sent_bytes=sum(now[0] - before[0] for now, before in pairs),
                received_bytes=sum(now[1] - before[1] for now, before in pairs),
            )

    def report(self) -> CountedBytes | None:
        """Counted bytes; None where the process has no connection that counts."""
        return self._counted


def connection_bytes(store_port: int) -> dict[str, Bytes]:
    """Bytes written to and received from each TCP connection of this process.

    Args:
        store_port: connections from or to this port are left out.

    Returns:
        (written, received) by the connection's socket. Empty where the kernel does not count.
    """
    found: dict[str, Bytes] = {}
    for name, connection in _connections():
        with closing(connection):
            try:
                ports = {connection.getpeername()[1], connection.getsockname()[1]}
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
            except OSError:  # it listens, or it has just been closed
                continue
        if store_port in ports or len(info) < _SIZE:
            continue
        sent, again = struct.unpack_from("=QQ", info, _SENT)
        (waiting,) = struct.unpack_from("=I", info, _UNSENT)
        (received,) = struct.unpack_from("=Q", info, _RECEIVED)
        found[name] = (sent - again + waiting, received)
    return found


def _connections() -> Iterator[tuple[str, socket.socket]]:
    """Name and duplicate of each TCP socket of this process; the name lasts as long as it."""
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


def communication(reports: Sequence[RankReport]) -> Communication | None:
    """The ``communication`` part of a result; None unless every rank counted in one way.

    Args:
        reports: of all ranks, in order.
    """
    counted = [(report.rank, report.traffic) for report in reports]
    known = [(rank, one) for rank, one in counted if one is not None]
    if not known or len(known) < len(counted):
        return None
    ways = {(one.counted_by, one.steps) for _, one in known}
    if len(ways) != 1:
        return None
    ((counted_by, steps),) = ways
    return Communication(
        counted_by,
        steps,
        tuple(
            RankTraffic(
                rank=rank,
                sent_bytes=one.sent_bytes,
                received_bytes=one.received_bytes,
                sent_bytes_per_step=one.sent_bytes / steps if steps else None,
                received_bytes_per_step=one.received_bytes / steps if steps else None,
            )
            for rank, one in known
        ),
    )
