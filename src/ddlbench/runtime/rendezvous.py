"""Rendezvous, barriers, clock offsets and TCP traffic of the processes of a cell.

All meet at a TCP store of rank 0. Each rank estimates the offset of its clock to rank 0's::

    rank r   sent ---.                     .--> received        answer - (sent + received) / 2
    rank 0            '--> reads clock ---'

The offset is the median over the quickest round trips. Its error is at most half a round trip, plus
the drift of the clocks afterwards, as it is measured once. Ranks of one host share its monotonic
clock; their offsets show the error of the estimate.

Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.

Traffic is the bytes that a process sends and receives over TCP, as its kernel counts them.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from ddlbench.runtime.addresses import listen
from ddlbench.runtime.launch import LISTEN_FD
from ddlbench.runtime.rank_report import CountedBytes

_POLL_S = 0.01
_PATIENCE = timedelta(minutes=10)


def join_store(
    host: str, port: int, rank: int, world_size: int, patience_s: float | None = None
) -> dist.TCPStore:
    """Open the store that rank 0 serves; waits up to ten minutes until all processes have joined.

    ``patience_s`` limits each later ``get`` or ``barrier``; ten minutes if None.
    """
    options: dict[str, Any] = {}
    if rank == 0:
        inherited = os.environ.get(LISTEN_FD)
        # By itself the store would listen on every interface. It closes the socket that it gets.
        listener = listen(host, port).detach() if inherited is None else int(inherited)
        options = {"master_listen_fd": listener, "use_libuv": False}
    store = dist.TCPStore(host, port, world_size, rank == 0, timeout=_PATIENCE, **options)
    if patience_s is not None:
        store.set_timeout(timedelta(seconds=patience_s))
    return store


def barrier(store: dist.Store | None, name: str, world_size: int) -> None:
    """Wait until every process has called this with the same name."""
    if store is None or world_size == 1:
        return
    if store.add(f"barrier/{name}", 1) == world_size:
        store.set(f"barrier/{name}/open", "1")
    store.wait([f"barrier/{name}/open"])


def leave(store: dist.Store | None, rank: int, world_size: int) -> None:
    """Wait until this process may end: rank 0 serves the store until all others have left."""
    if store is None or world_size == 1:
        return
    if rank != 0:
        store.add("left", 1)
        return
    limit = time.monotonic() + _PATIENCE.total_seconds()
    while store.add("left", 0) < world_size - 1 and time.monotonic() < limit:
        time.sleep(_POLL_S)


_ROUND_TRIPS = 24
_QUICKEST = 8


@dataclass(frozen=True)
class ClockOffset:
    """A rank's clock plus ``offset_s`` is rank 0's clock, within ``uncertainty_s``."""

    offset_s: float
    uncertainty_s: float


def clock_offsets(
    store: dist.Store | None,
    rank: int,
    world_size: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[ClockOffset]:
    """The offset of every rank, by the clocks ``now`` in seconds; all ranks call this together."""
    if store is None or world_size == 1:
        return [ClockOffset(0.0, 0.0)] * world_size
    if rank == 0:
        store.set("clock/0", json.dumps(asdict(ClockOffset(0.0, 0.0))))
        for other in range(1, world_size):
            _answer(store, other, now)
    else:
        store.set(f"clock/{rank}", json.dumps(asdict(_ask(store, rank, now))))
    return [ClockOffset(**json.loads(store.get(f"clock/{r}"))) for r in range(world_size)]


def _answer(store: dist.Store, other: int, now: Callable[[], float]) -> None:
    for trip in range(_ROUND_TRIPS):
        store.wait([f"clock/{other}/{trip}/asked"])
        store.set(f"clock/{other}/{trip}/answer", repr(now()))


def _ask(store: dist.Store, rank: int, now: Callable[[], float]) -> ClockOffset:
    trips = []
    for trip in range(_ROUND_TRIPS):
        sent = now()
        store.set(f"clock/{rank}/{trip}/asked", "")
        answer = float(store.get(f"clock/{rank}/{trip}/answer"))
        received = now()
        trips.append((received - sent, answer - (sent + received) / 2))
    quickest = sorted(trips)[:_QUICKEST]
    return ClockOffset(median(offset for _, offset in quickest), quickest[0][0] / 2)


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
