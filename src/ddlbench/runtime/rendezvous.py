"""Rendezvous, barriers and clock offsets of a cell's processes, through a TCP store of rank 0.

Each rank estimates the offset of its clock to rank 0's::

    rank r   sent ---.                     .--> received        answer - (sent + received) / 2
    rank 0            '--> reads clock ---'

The offset is the median over the quickest round trips. Its error is at most half a round trip, plus
the drift of the clocks afterwards, as it is measured once. Ranks of one host share its monotonic
clock; their offsets show the error of the estimate.

Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import torch.distributed as dist

from ddlbench.runtime.network_address import LISTEN_FD, listen

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


ROUND_TRIPS = 24
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
    for trip in range(ROUND_TRIPS):
        store.wait([f"clock/{other}/{trip}/asked"])
        store.set(f"clock/{other}/{trip}/answer", repr(now()))


def _ask(store: dist.Store, rank: int, now: Callable[[], float]) -> ClockOffset:
    trips = []
    for trip in range(ROUND_TRIPS):
        sent = now()
        store.set(f"clock/{rank}/{trip}/asked", "")
        answer = float(store.get(f"clock/{rank}/{trip}/answer"))
        received = now()
        trips.append((received - sent, answer - (sent + received) / 2))
    quickest = sorted(trips)[:_QUICKEST]
    return ClockOffset(median(offset for _, offset in quickest), quickest[0][0] / 2)
