"""Measure pairs of devices within each node.

GPUs: ``python -m ddlbench.interconnect.node_pairs``, one process a node, runs NVIDIA's test, or
makes the copies itself if there is none. CPUs: the processes that sweep later copy to each other.
All nodes measure at the same time, as they share nothing. A node with one GPU has no pairs, however
many ranks compute on it. The copies::

    GPUs    one process; device-to-device copies on the sender's stream, timed with events:
            16 bytes a hundred times (latency), 160 MB five times (bandwidth)
    CPUs    one process a device; the receiver owns a piece of shared memory
            sender  --- copies its buffer into it --->  receiver      bandwidth
            sender  <-- both wait for a changed flag -->  receiver    latency: half a round trip
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from ddlbench.interconnect.p2p_binary import (
    find_nvbandwidth,
    find_or_build_p2p,
    run_nvbandwidth,
    run_p2p,
)
from ddlbench.interconnect.pair_matrix import off_diagonal, pair_matrix, peer_access
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.placement import is_shared
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import barrier

_REPEATS = 5
# CPUs: passes over all pairs, so that a disturbance of a second affects no pair alone.
_PASSES = 3
_LARGE_BYTES = 160_000_000
_SMALL_BYTES, _SMALL_COPIES = 16, 100
_SPIN_CYCLES = 20_000_000
_ROUNDS = 200
_PAGE = mmap.PAGESIZE
# Indices of the two flags, 8-byte words in the first page, each on its own cache line.
_PING, _PONG = 0, 16


def gpu_pairs() -> list[dict[str, Any]]:
    """Matrices of all visible GPUs: one direction, and both at once; empty for a single GPU."""
    count = torch.cuda.device_count()
    if count < 2:
        return []
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    latency_s = off_diagonal(count, _gpu_latency_s)
    pairs = itertools.permutations(range(count), 2)
    access = peer_access(torch.cuda.can_device_access_peer(i, j) for i, j in pairs)
    return [
        pair_matrix(
            scope="node",
            method="device-copies",
            endpoints=[f"{index}: {name}" for index, name in enumerate(names)],
            nodes=[0] * count,
            bandwidth_bytes_per_s=off_diagonal(count, bandwidth),
            latency_s=latency_s,
            access=access,
            direction=direction,
            operation="write",
            repeats=_REPEATS,
        )
        for direction, bandwidth in (
            ("unidirectional", _gpu_bandwidth),
            ("bidirectional", _gpu_bandwidth_both),
        )
    ]


def _gpu_latency_s(sender: int, receiver: int) -> float:
    return _gpu_copy_s([(sender, receiver)], _SMALL_BYTES, _SMALL_COPIES)


def _gpu_bandwidth(sender: int, receiver: int) -> float:
    return _LARGE_BYTES / _gpu_copy_s([(sender, receiver)], _LARGE_BYTES, 1)


def _gpu_bandwidth_both(sender: int, receiver: int) -> float:
    """Sum of both directions, as NVIDIA's test counts it."""
    pair = [(sender, receiver), (receiver, sender)]
    return 2 * _LARGE_BYTES / _gpu_copy_s(pair, _LARGE_BYTES, 1)


def _gpu_copy_s(pairs: list[tuple[int, int]], size: int, copies: int) -> float:
    """Median seconds of one copy (of all pairs at once), by events on the senders' streams."""
    buffers = [
        (
            torch.zeros(size, dtype=torch.uint8, device=f"cuda:{i}"),
            torch.zeros(size, dtype=torch.uint8, device=f"cuda:{j}"),
        )
        for i, j in pairs
    ]
    streams = [torch.cuda.Stream(torch.device("cuda", i)) for i, _ in pairs]
    for device in {device for pair in pairs for device in pair}:
        torch.cuda.synchronize(device)
    times = []
    for _ in range(_REPEATS + 1):  # the first is dropped
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(streams[0]):
            # The device spins until all copies are enqueued, so that none waits for the host.
            torch.cuda._sleep(_SPIN_CYCLES)
        streams[0].record_event(start)
        for stream, (source, target) in zip(streams, buffers, strict=True):
            stream.wait_event(start)
            with torch.cuda.stream(stream):
                for _ in range(copies):
                    target.copy_(source, non_blocking=True)
        for stream in streams[1:]:
            streams[0].wait_stream(stream)
        streams[0].record_event(stop)
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / copies)
    return statistics.median(times[1:])


def cpu_pairs(
    store: dist.Store, local_rank: int, count: int, size: int, names: list[str]
) -> list[dict[str, Any]]:
    """Matrices of the ``count`` processes of this node; all of them call this.

    Args:
        store: of this node alone.
        local_rank: of this process.
        count: processes of the node.
        size: bytes of a large copy.
        names: of the endpoints.
    """
    private = np.ones(size, dtype=np.uint8)
    own: dict[str, list[tuple[float, float]]] = {}
    for number, receiver in itertools.product(range(_PASSES), range(count)):
        memory = _shared(dist.PrefixStore(str(number), store), receiver, local_rank, count, size)
        for sender in range(count):
            if sender == receiver:
                continue
            barrier(store, f"ready/{number}/{sender}/{receiver}", count)
            if local_rank == sender:
                times_s = (_ping_s(memory), _copy_s(private, memory))
                own.setdefault(f"{sender}/{receiver}", []).append(times_s)
            elif local_rank == receiver:
                _pong(memory)
        barrier(store, f"done/{number}/{receiver}", count)
        memory.close()
    for name, passes in own.items():
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


def _copy_s(private: np.ndarray, memory: mmap.mmap) -> float:
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


_LARGEST_CPU_COPY_BYTES = 64 * 2**20


def work(here: RankContext) -> dict[str, Any]:
    """The matrices of this process's GPUs, and the type of the node.

    Settings: ``interconnect`` (of the site).
    """
    return _report(here, _gpu(here.settings["interconnect"]))


def measure_node(here: RankContext, store: dist.Store) -> dict[str, Any]:
    """The same of CPU processes, of which all call this.

    Settings: ``largest_bytes``, ``devices_per_node``.

    Args:
        here: this process.
        store: of all ranks.
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


def _gpu(interconnect: dict[str, Any]) -> list[dict[str, Any]]:
    if is_shared() or torch.cuda.device_count() == 1:
        return []
    if (binary := find_or_build_p2p(interconnect)) is not None:
        return run_p2p(binary)
    if (binary := find_nvbandwidth(interconnect)) is not None:
        return run_nvbandwidth(binary)
    if torch.cuda.device_count() == 0:
        raise RuntimeError("the site says device: cuda, but torch finds no GPU on this node")
    return gpu_pairs()


def _node_type(provenance: dict[str, Any]) -> str:
    gpus = provenance["gpu_models"]
    if gpus:
        return f"{len(gpus)}x {gpus[0]}"
    return f"{provenance['cpu_model']}, {provenance['cpu_count']} cores"


if __name__ == "__main__":
    rank_job_main(work)
