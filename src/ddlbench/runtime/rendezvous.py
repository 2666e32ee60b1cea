"""What a cell's processes do by one TCP store, kept by rank 0: meet, wait, compare clocks, leave.

How far a rank's clock is behind rank 0's, it asks rank 0::

    rank r   asked ---.                     .--> answered       answer - (asked + answered) / 2
    rank 0             '--> reads clock ---'

The offset is the median over the quickest round trips; it is wrong by at most half a round trip,
and by how far the clocks drift apart afterwards, for it is measured once. Ranks of one host share
its monotonic clock, where the estimate shows its own error.

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

from ddlbench.runtime.network_address import LISTEN_FD

_POLL_S = 0.01
_PATIENCE = timedelta(minutes=10)


def join_store(
    host: str, port: int, rank: int, world_size: int, patience_s: float | None = None
) -> dist.TCPStore:
    """The store of all processes; rank 0 serves it.

    Args:
        host: where it is.
        port: its own.
        rank: of this process.
        world_size: processes; it is open when all have come, which may take ten minutes.
        patience_s: how long they wait for each other then, at each ``get`` or ``barrier``; ten
            minutes if None.
    """
    handed_over = os.environ.get(LISTEN_FD) if rank == 0 else None
    if handed_over is None:
        store = dist.TCPStore(host, port, world_size, rank == 0, timeout=_PATIENCE)
    else:
        store = dist.TCPStore(
            host,
            port,
            world_size,
            True,
            timeout=_PATIENCE,
            master_listen_fd=int(handed_over),
            use_libuv=False,
        )
    if patience_s is not None:
        store.set_timeout(timedelta(seconds=patience_s))
    return store


def barrier(store: dist.Store | None, name: str, world_size: int) -> None:
    """Return once every process has called it with this name."""
    if store is None or world_size == 1:
        return
    if store.add(f"barrier/{name}", 1) == world_size:
        store.set(f"barrier/{name}/open", "1")
    store.wait([f"barrier/{name}/open"])


def leave(store: dist.Store | None, rank: int, world_size: int) -> None:
    """Return once this process may end: rank 0 serves the store until all others have left."""
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
    """Add ``offset_s`` to a rank's clock to have rank 0's, give or take ``uncertainty_s``."""

    offset_s: float
    uncertainty_s: float


def clock_offsets(
    store: dist.Store | None,
    rank: int,
    world_size: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[ClockOffset]:
    """The offset of every rank; all ranks call it together.

    Args:
        store: of all ranks; None for a single one.
        rank: of the caller.
        world_size: number of ranks.
        now: the caller's clock, in seconds.
    """
    if store is None or world_size == 1:
        return [ClockOffset(0.0, 0.0)] * world_size
    if rank == 0:
        store.set("clock/0", json.dumps(asdict(ClockOffset(0.0, 0.0))))
        for other in range(1, world_size):
            _answer(store, other, now)
    else:
        store.set(f"clock/{rank}", json.dumps(asdict(_ask(store, rank, now))))
    found: list[dict[str, Any]] = [json.loads(store.get(f"clock/{r}")) for r in range(world_size)]
    return [ClockOffset(**values) for values in found]


def _answer(store: dist.Store, other: int, now: Callable[[], float]) -> None:
    for trip in range(ROUND_TRIPS):
        store.wait([f"clock/{other}/{trip}/asked"])
        store.set(f"clock/{other}/{trip}/answer", repr(now()))


def _ask(store: dist.Store, rank: int, now: Callable[[], float]) -> ClockOffset:
    trips = []
    for trip in range(ROUND_TRIPS):
        asked = now()
        store.set(f"clock/{rank}/{trip}/asked", "")
        answer = float(store.get(f"clock/{rank}/{trip}/answer"))
        answered = now()
        trips.append((answered - asked, answer - (asked + answered) / 2))
    quickest = sorted(trips)[:_QUICKEST]
    return ClockOffset(median(offset for _, offset in quickest), quickest[0][0] / 2)
