"""How much longer a message takes behind a computation than behind another message; on CPUs.

Gloo's threads send and receive. Behind a computation the system must first give them a core, which
takes some milliseconds where all cores compute: Linux lets a running thread finish its slice.
Sweeps do not have this, as their ranks only wait. A collective, many times in a row::

    alone      | gather | gather | gather |
    behind     | compute | gather .. | compute | gather .. |     a turn less its computation

A message of a pipeline leaves while its sender goes on to compute::

    sender     | send | compute ------------- |
    receiver   | compute | receive .. |            the sender's thread needs the sender's core

On emulated accelerators computation waits, and so do cores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.collectives import (
    Buffers,
    element_count,
    slowest,
    torch_operation,
    touched,
)
from ddlbench.interconnect.training_sweep import computation

_BYTES = 64 * 2**10
_COMPUTE_S = 4e-3
_TURNS = 8
_REPEATS = 5
_SINGLE = 21
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")


def message_delays(device: torch.device) -> list[dict[str, Any]]:
    """Seconds of a message alone and behind a computation, over the default group."""
    ranks = dist.get_world_size()
    compute = computation(device, _COMPUTE_S)
    compute_s = _turn_s(compute)
    buffers = Buffers(_BYTES * ranks, device)
    found = []
    for operation in COLLECTIVES:
        call = torch_operation(operation, element_count(operation, _BYTES, ranks), buffers)
        alone_s = statistics.median(one.time_s for one in slowest(call, _SINGLE))

        def turn(call: Callable[[], object] = call) -> None:
            compute()
            call()

        found.append(_entry(operation, alone_s, _turn_s(turn) - compute_s))
    message = touched(element_count("p2p", _BYTES, ranks), device)
    alone_s = _message_s(lambda: time.sleep(_COMPUTE_S), message)
    found.append(_entry("p2p", alone_s, _message_s(compute, message)))
    return found


def _entry(operation: str, alone_s: float, behind_s: float) -> dict[str, Any]:
    return {
        "operation": operation,
        "message_bytes": _BYTES,
        "alone_s": alone_s,
        "behind_s": max(0.0, behind_s),
    }


def _turn_s(turn: Callable[[], object]) -> float:
    """Seconds of one of many turns in a row, on the slowest rank."""

    def turns() -> None:
        for _ in range(_TURNS):
            turn()

    return statistics.median(one.time_s for one in slowest(turns, _REPEATS)) / _TURNS


def _message_s(work: Callable[[], object], message: torch.Tensor) -> float:
    """From when a message is wanted to when it is there; its sender works on meanwhile.

    All pairs of ranks do so at once; a rank without a partner works.
    """
    rank, peer = dist.get_rank(), dist.get_rank() ^ 1

    def call() -> float:
        if peer >= dist.get_world_size():
            work()
            return 0.0
        if rank < peer:
            sent = dist.isend(message, peer)
            for _ in range(3):
                work()
            assert sent is not None
            sent.wait()
            return 0.0
        work()
        begin_s = time.perf_counter()
        dist.recv(message, peer)
        return time.perf_counter() - begin_s

    ready = torch.zeros(1)
    times = torch.zeros(_SINGLE, dtype=torch.float64)
    for index in range(_SINGLE):
        dist.all_reduce(ready)
        times[index] = call()
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return float(times.median())
