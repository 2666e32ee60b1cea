"""Where processes of a cell find each other: one TCP store, kept by rank 0."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch.distributed as dist

from ddlbench.runtime.rendezvous_port import LISTEN_FD

__all__ = ["barrier", "join_store", "leave"]

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
