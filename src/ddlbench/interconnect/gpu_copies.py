"""Our own test of pairs of GPUs in a node, where NVIDIA's is missing: one process, torch's copies.

::

    as torch copies      i ---------------> j          peer access, where GPUs reach each other
    through the host     i --> pinned memory --> j     without it, in two pieces at a time

    latency     16 bytes, a hundred times one after the other: seconds a copy
    bandwidth   160 MB, five times; both directions at once: the sum of both

The matrices are those of p2pBandwidthLatencyTest: the second of the two ways is its
``P2P=Disabled``. Torch switches peer access on and never off, so these copies go through the host
by themselves, and the driver's may be faster. Times are of events on the senders' streams.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ddlbench.interconnect.pair_matrix import off_diagonal, pair_matrix, peer_access

_REPEATS = 5
_LARGE_BYTES = 160_000_000
_SMALL_BYTES, _SMALL_COPIES = 16, 100
_SPIN_CYCLES = 20_000_000
_PIECE_BYTES = 8 * 2**20  # of a copy through the host
_PIECES = 2  # in flight: one comes from the sender, one goes to the receiver

Pair = tuple[int, int]  # sender, receiver


def gpu_pairs() -> list[dict[str, Any]]:
    """Matrices of all visible GPUs: one direction, and both at once; empty for a single GPU.

    Where GPUs reach each other there are two more, through the host.
    """
    count = torch.cuda.device_count()
    if count < 2:
        return []
    pairs = list(itertools.permutations(range(count), 2))
    reach = [torch.cuda.can_device_access_peer(i, j) for i, j in pairs]
    names = [f"{index}: {torch.cuda.get_device_name(index)}" for index in range(count)]
    matrices = _matrices(names, _PeerCopy, peer_access(reach))
    return matrices + (_matrices(names, _HostCopy, "staged") if any(reach) else [])


def _matrices(
    names: Sequence[str], way: type[_PeerCopy | _HostCopy], access: str | None
) -> list[dict[str, Any]]:
    def latency_s(i: int, j: int) -> float:
        return _copy_s([way(i, j, _SMALL_BYTES)], _SMALL_COPIES)

    def one_way(i: int, j: int) -> float:
        return _LARGE_BYTES / _copy_s([way(i, j, _LARGE_BYTES)], 1)

    def both_ways(i: int, j: int) -> float:
        """Sum of both directions, as NVIDIA's test counts it."""
        copies = [way(i, j, _LARGE_BYTES), way(j, i, _LARGE_BYTES)]
        return 2 * _LARGE_BYTES / _copy_s(copies, 1)

    count = len(names)
    latencies = off_diagonal(count, latency_s)
    directions: tuple[tuple[str, Callable[[int, int], float]], ...] = (
        ("unidirectional", one_way),
        ("bidirectional", both_ways),
    )
    return [
        pair_matrix(
            scope="node",
            method="device-copies",
            endpoints=names,
            nodes=[0] * count,
            bandwidth_bytes_per_s=off_diagonal(count, bandwidth),
            latency_s=latencies,
            access=access,
            direction=direction,
            operation="write",
            repeats=_REPEATS,
        )
        for direction, bandwidth in directions
    ]


def _on(index: int) -> torch.device:
    return torch.device("cuda", index)


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


@dataclass
class _PeerCopy:
    """A copy from one GPU's memory into another's, as torch does it."""

    sender: int
    receiver: int
    size: int

    def __post_init__(self) -> None:
        self.source = torch.ones(self.size, dtype=torch.uint8, device=_on(self.sender))
        self.target = torch.zeros(self.size, dtype=torch.uint8, device=_on(self.receiver))
        self.stream: Any = torch.cuda.Stream(_on(self.sender))

    def streams(self) -> list[Any]:
        """All that it runs on."""
        return [self.stream]

    def enqueue(self) -> None:
        """Add one copy."""
        with torch.cuda.stream(self.stream):
            self.target.copy_(self.source, non_blocking=True)


@dataclass
class _HostCopy(_PeerCopy):
    """The same through pinned memory of the host; two pieces are on their way at once."""

    _number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.down: Any = self.stream
        self.up: Any = torch.cuda.Stream(_on(self.receiver))
        piece = min(self.size, _PIECE_BYTES)
        self.buffers = [_pinned(piece) for _ in range(_PIECES)]
        self.emptied: list[Any] = [None] * _PIECES

    def streams(self) -> list[Any]:
        return [self.down, self.up]

    def enqueue(self) -> None:
        for start in range(0, self.size, _PIECE_BYTES):
            slot = self._number % _PIECES
            self._number += 1
            part = slice(start, min(start + _PIECE_BYTES, self.size))
            buffer = self.buffers[slot][: part.stop - part.start]
            with torch.cuda.stream(self.down):
                if self.emptied[slot] is not None:
                    self.down.wait_event(self.emptied[slot])
                buffer.copy_(self.source[part], non_blocking=True)
                filled = self.down.record_event()
            with torch.cuda.stream(self.up):
                self.up.wait_event(filled)
                self.target[part].copy_(buffer, non_blocking=True)
                self.emptied[slot] = self.up.record_event()


def _copy_s(ways: Sequence[_PeerCopy], copies: int) -> float:
    """Median seconds of one copy (of all at once), by events on the first sender's stream."""
    for device in sorted({device for way in ways for device in (way.sender, way.receiver)}):
        torch.cuda.synchronize(device)
    times = list(itertools.islice(_timed(ways, copies), _REPEATS + 1))
    return statistics.median(times[1:])  # the first is dropped


def _timed(ways: Sequence[_PeerCopy], copies: int) -> Iterator[float]:
    first = ways[0].stream
    streams = [stream for way in ways for stream in way.streams()]
    while True:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(first):
            # The device spins until all copies are enqueued, so that none waits for the host.
            torch.cuda._sleep(_SPIN_CYCLES)
        first.record_event(start)
        for stream in streams:
            stream.wait_event(start)
        for way in ways:
            for _ in range(copies):
                way.enqueue()
        for stream in streams[1:]:
            first.wait_stream(stream)
        first.record_event(stop)
        stop.synchronize()
        yield start.elapsed_time(stop) / 1e3 / copies
