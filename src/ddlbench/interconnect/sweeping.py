"""Sweeps of one group of ranks: raw times of every size, taken by turns.

Every repeat begins with a barrier over gloo and ends on each rank when its part is done (on a GPU:
when the device is idle again); its time is the slowest rank's. The barrier is not Horovod's, so
that messages join_rendezvous Horovod's cycle at any phase, as gradients do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.repeats import PASSES, Sweep
from ddlbench.interconnect.transports import element_count
from ddlbench.interconnect.worlds import buffer_bytes, message_sizes

__all__ = ["measure", "sweep_of"]


def sweep_of(operation: str, largest: int, make: Callable[[int], Callable[[], None]]) -> Sweep:
    """A sweep of the sizes whose buffers are within the limit."""
    ranks = dist.get_world_size()
    sizes = [
        size for size in message_sizes(largest) if buffer_bytes(operation, size, ranks) <= largest
    ]

    def run(size: int, count: int) -> list[float]:
        times = _slowest(make(element_count(operation, size, ranks)), count)
        return [value / 2 for value in times] if operation == "p2p" else times

    return Sweep(sizes, run)


def measure(sweeps: dict[str, Sweep], transport: str, budget_s: float) -> list[dict[str, Any]]:
    """Raw times of all sweeps, taken by turns."""
    for sweep in sweeps.values():
        sweep.probe(budget_s)
    for turn in range(PASSES):
        for sweep in sweeps.values():
            sweep.take(turn)
    ranks = dist.get_world_size()
    return [
        {
            "operation": operation,
            "transport": transport,
            "points": [
                {"message_bytes": 4 * element_count(operation, size, ranks), "times_s": times}
                for size, times in sweep.times_s.items()
            ],
            "ended": sweep.ended,
        }
        for operation, sweep in sweeps.items()
    ]


def _slowest(call: Callable[[], None], count: int) -> list[float]:
    """Seconds of each of ``count`` calls on the slowest rank; the same list on all ranks."""
    ready = torch.zeros(1)
    times = torch.zeros(count, dtype=torch.float64)
    for index in range(count):
        dist.all_reduce(ready)
        start = time.perf_counter()
        call()
        times[index] = time.perf_counter() - start
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [float(value) for value in times]
