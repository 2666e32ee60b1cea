"""Latency and bandwidth of every ordered pair of ranks, one pair after the other, others idle.

::

    i  ping ->  <- pong            latency = half the median round trip of 16 bytes
    i  message ---->  <- pong      bandwidth = bytes / (median - shortest round trip)

The message is as large as three hundredths of a second carry, from 1 to 16 MiB. All pairs are
measured in three passes and the medians kept, so that a disturbance of a second hits no pair alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.group import Group
from ddlbench.interconnect.pair_matrix import Matrix
from ddlbench.interconnect.transports import touched
from ddlbench.runtime.rendezvous import barrier

__all__ = ["all_pairs"]

# Beyond so many pairs one pass has to do.
_PASSES, _MANY_PAIRS = 3, 240
_ROUNDS, _MESSAGES = 30, 3
_PING_ELEMENTS = 4
_SMALL_BYTES, _LARGE_BYTES = 2**20, 2**24
_MESSAGE_S = 0.03


def all_pairs(group: Group) -> dict[str, Any]:
    """Fields of a pair matrix over all ranks of ``group``, the same on every rank."""
    size, store = len(group.members), group.store
    pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
    passes = _PASSES if len(pairs) <= _MANY_PAIRS else 1
    sent: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for turn in range(passes):
        for sender, receiver in pairs:
            if group.rank == sender:
                measured = _measure(receiver, True, group.device)
                sent.setdefault((sender, receiver), []).append(measured)
            elif group.rank == receiver:
                _measure(sender, False, group.device)
            barrier(store, f"{turn}/{sender}-{receiver}", size)
    for (sender, receiver), found in sent.items():
        store.set(f"{sender}/{receiver}", json.dumps(found))
    values = {(i, j): json.loads(store.get(f"{i}/{j}")) for i, j in pairs}
    return {
        "latency_s": _matrix(size, values, 0),
        "bandwidth_bytes_per_s": _matrix(size, values, 1),
        "hosts": group.hosts(),
        "nodes": [process.node for process in group.members],
        "method": group.transport,
        "repeats": passes,
    }


def _matrix(size: int, values: dict[tuple[int, int], list[list[float]]], part: int) -> Matrix:
    """Medians over the passes."""
    return [
        [None if i == j else median(turn[part] for turn in values[i, j]) for j in range(size)]
        for i in range(size)
    ]


def _measure(other: int, first: bool, device: torch.device) -> tuple[float, float]:
    """Latency in s and bandwidth in bytes per second; of use to the first, which sends."""
    ping = touched(_PING_ELEMENTS, device)

    def exchange(message: torch.Tensor) -> None:
        if first:
            dist.send(message, other)
            dist.recv(ping, other)
        else:
            dist.recv(message, other)
            dist.send(ping, other)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    round_trips_s = _times_s(lambda: exchange(ping), _ROUNDS)
    small = touched(_SMALL_BYTES // 4, device)
    probe_s = median(_times_s(lambda: exchange(small), 2))
    size = _agreed_bytes(probe_s, other, first, device)
    large = touched(size // 4, device)
    large_s = median(_times_s(lambda: exchange(large), _MESSAGES))
    carried_s = large_s - min(round_trips_s)
    return median(round_trips_s) / 2, size / (carried_s if carried_s > 0 else large_s)


def _times_s(call: Callable[[], None], repeats: int) -> list[float]:
    """After one call that is dropped."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[1:]


def _agreed_bytes(probe_s: float, other: int, first: bool, device: torch.device) -> int:
    """The sender chooses the size and tells the receiver."""
    size = _SMALL_BYTES
    while size < _LARGE_BYTES and probe_s * 2 * size / _SMALL_BYTES <= _MESSAGE_S:
        size *= 2
    told = torch.tensor([size], device=device)
    if first:
        dist.send(told, other)
    else:
        dist.recv(told, other)
    return int(told.item())
