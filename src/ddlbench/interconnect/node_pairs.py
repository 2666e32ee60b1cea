"""Copies between pairs of devices within each node.

GPUs: ``python -m ddlbench.interconnect.node_pairs``, one process a node, runs NVIDIA's test, or
makes torch's copies where there is none or it fails. CPUs: the processes that sweep later copy to
each other. All nodes measure at the same time, as they share nothing. A node with one GPU has no
pairs, however many ranks compute on it. The copies of CPUs::

    one process a device; the receiver owns a piece of shared memory
            sender  --- copies its buffer into it --->  receiver      bandwidth
            sender  <-- both wait for a changed flag -->  receiver    latency: half a round trip

Torch's copies of GPUs, by one process::

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
import json
import mmap
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.interconnect.nvidia_programs import (
    NVBANDWIDTH,
    P2P,
    find_nvbandwidth,
    find_or_build_p2p,
    how_to_get_p2p,
)
from ddlbench.interconnect.p2p import run_nvbandwidth, run_p2p
from ddlbench.interconnect.pair_matrix import off_diagonal, pair_matrix, peer_access
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.launch import NO_GPU, is_shared
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import barrier

_LARGEST_CPU_COPY_BYTES = 64 * 2**20


def work(here: RankContext) -> dict[str, Any]:
    """The matrices of this process's GPUs, and the type of the node.

    Settings: ``interconnect`` (of the site).
    """
    pairs, notes = _gpu(here.settings["interconnect"])
    return {**_report(here, pairs), "notes": notes}


def measure_node(here: RankContext, store: dist.Store) -> dict[str, Any]:
    """Measure the pairs of a node's CPU processes; all of them call this.

    Settings: ``largest_bytes``, ``devices_per_node``.
    """
    count = here.settings["devices_per_node"]
    if count == 1:
        return {"pairs": []}
    pairs = cpu_pairs(
        dist.PrefixStore(f"node{here.process.node}", store),
        here.process.local_rank,
        count,
        min(here.settings["largest_bytes"], _LARGEST_CPU_COPY_BYTES),
        [f"process {index}" for index in range(count)],
    )
    barrier(store, "pairs", here.world_size)  # sweeps begin when all nodes are idle
    return _report(here, pairs)


def _report(here: RankContext, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    provenance = rank_provenance()
    # For a single GPU, NVIDIA's tests measure copies to itself, which use no link.
    pairs = [pair for pair in pairs if len(pair["endpoints"]) > 1]
    node_type = _node_type(provenance)
    for pair in pairs:
        pair["node_type"] = node_type
    return {
        "host": socket.gethostname(),
        "node": here.process.node,
        "node_type": node_type,
        "pairs": pairs,
        "no_pairs": None if pairs else "one GPU",
        "provenance": provenance,
    }


def _gpu(interconnect: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The matrices of this node, and why they are not those of NVIDIA's test."""
    if is_shared() or torch.cuda.device_count() == 1:
        return [], []
    notes: list[str] = []
    for name, find, run in (
        (P2P, find_or_build_p2p, run_p2p),
        (NVBANDWIDTH, find_nvbandwidth, run_nvbandwidth),
    ):
        try:
            binary = find(interconnect)
            if binary is not None:
                return run(binary), notes
        except ConfigError as error:  # a program that does not work must not end the job
            notes.append(f"{name} gave no pairs within the node: {error}")
    if torch.cuda.device_count() == 0:
        raise RuntimeError("; ".join([NO_GPU, *notes]))
    if not notes:
        notes.append(f"no {P2P} on the node; to have it, {how_to_get_p2p()}")
    return gpu_pairs(), [*notes, "pairs within the node: our own copies"]


def _node_type(provenance: dict[str, Any]) -> str:
    gpus = provenance["gpu_models"]
    if gpus:
        return f"{len(gpus)}x {gpus[0]}"
    return f"{provenance['cpu_model']}, {counted(provenance['cpu_count'], 'core')}"


_REPEATS = 5
_LARGE_BYTES = 160_000_000
_SMALL_BYTES, _SMALL_COPIES = 16, 100
_SPIN_CYCLES = 20_000_000
_PIECE_BYTES = 8 * 2**20  # of a copy through the host
_PIECES = 2  # in flight: one comes from the sender, one goes to the receiver


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
        return [self.stream]

    def enqueue(self) -> None:
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


# CPUs: passes over all pairs, so that a disturbance of a second affects no pair alone.
_PASSES = 3
_ROUNDS = 200
_PAGE = mmap.PAGESIZE
# Indices of the two flags, 8-byte words in the first page, each on its own cache line.
_PING, _PONG = 0, 16


def cpu_pairs(
    store: dist.Store, local_rank: int, count: int, size: int, names: list[str]
) -> list[dict[str, Any]]:
    """Matrices of the ``count`` processes of this node, which all call this; ``size`` in bytes."""
    private = np.ones(size, dtype=np.uint8)
    of_nodes: dict[str, list[tuple[float, float]]] = {}
    for number, receiver in itertools.product(range(_PASSES), range(count)):
        memory = _shared(dist.PrefixStore(str(number), store), receiver, local_rank, count, size)
        for sender in range(count):
            if sender == receiver:
                continue
            barrier(store, f"ready/{number}/{sender}/{receiver}", count)
            if local_rank == sender:
                times_s = (_ping_s(memory), _shared_copy_s(private, memory))
                of_nodes.setdefault(f"{sender}/{receiver}", []).append(times_s)
            elif local_rank == receiver:
                _pong(memory)
        barrier(store, f"done/{number}/{receiver}", count)
        memory.close()
    for name, passes in of_nodes.items():
        medians_s = [statistics.median(values) for values in zip(*passes, strict=True)]
        store.set(name, json.dumps(medians_s))
    pairs = itertools.permutations(range(count), 2)
    values = {(i, j): json.loads(store.get(f"{i}/{j}")) for i, j in pairs}
    matrix = pair_matrix(
        scope="node",
        method="device-copies",
        endpoints=names,
        nodes=[0] * count,
        bandwidth_bytes_per_s=off_diagonal(count, lambda i, j: size / values[i, j][1]),
        latency_s=off_diagonal(count, lambda i, j: values[i, j][0]),
        operation="write",
        repeats=_PASSES,
    )
    return [matrix]


def _shared(store: dist.Store, owner: int, local_rank: int, count: int, size: int) -> mmap.mmap:
    """Map the memory of ``owner`` into this process; it lasts until the last process closes it."""
    length = _PAGE + size
    if local_rank == owner:
        handle = os.memfd_create(f"ddlbench-{owner}")
        os.ftruncate(handle, length)
        memory = mmap.mmap(handle, length)
        for start in range(0, length, _PAGE):  # first touched by its owner, to lie near its core
            memory[start] = 0
        store.set(f"memory/{owner}", f"/proc/{os.getpid()}/fd/{handle}")
        barrier(store, f"opened/{owner}", count)
        os.close(handle)
        return memory
    path = Path(store.get(f"memory/{owner}").decode())
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), length)
    barrier(store, f"opened/{owner}", count)
    return memory


def _shared_copy_s(private: np.ndarray, memory: mmap.mmap) -> float:
    """Median seconds of a copy of the whole buffer into the receiver's memory."""
    target = np.frombuffer(memory, dtype=np.uint8, offset=_PAGE)
    times = []
    for _ in range(_REPEATS + 1):  # the first is dropped
        start = time.perf_counter()
        np.copyto(target, private)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _ping_s(memory: mmap.mmap) -> float:
    """Median seconds from one process to the other: half a round trip of a flag."""
    with memoryview(memory) as view, view[:_PAGE].cast("q") as words:
        times = []
        for number in range(1, _ROUNDS + 1):
            start = time.perf_counter()
            words[_PING] = number
            while words[_PONG] != number:
                os.sched_yield()
            times.append(time.perf_counter() - start)
        words[_PING] = 0
    return statistics.median(times) / 2


def _pong(memory: mmap.mmap) -> None:
    """The other side of :func:`_ping_s`."""
    with memoryview(memory) as view, view[:_PAGE].cast("q") as words:
        for number in range(1, _ROUNDS + 1):
            while words[_PING] != number:
                os.sched_yield()
            words[_PONG] = number


if __name__ == "__main__":
    rank_job_main(work)
