"""Clocks of different hosts brought together: how far each rank's clock is behind rank 0's.

::

    rank r   asked ---.                     .--> answered       answer - (asked + answered) / 2
    rank 0             '--> reads clock ---'

The offset is the median over the quickest round trips; it is wrong by at most half a round trip,
and by how far the clocks drift apart afterwards, for it is measured once. Ranks of one host share
its monotonic clock, where the estimate shows its own error.

Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch.distributed as dist

__all__ = ["ClockOffset", "clock_offsets"]

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
