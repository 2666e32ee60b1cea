"""Latency and bandwidth between ranks: ``python -m ddlbench.interconnect.rank_pairs``.

One pair is measured after the other, as two at a time would slow each other down::

    i  ping ->  <- pong            latency = half the median round trip of 16 bytes
    i  message ---->  <- pong      bandwidth = bytes / (median - shortest round trip)
    i  message ---->               both ways at once: the bytes of both / (median - latency)
       <---- message

The message has as many bytes as take 0.03 s, from 1 to 16 MiB. All pairs are measured in three
passes, of which the medians are kept, so that a disturbance of a second affects no pair alone. 256
ranks have 65 280 pairs. They would take hours, and over NCCL a communicator each. So of many pairs
only a sample is measured::

    up to 500 pairs     all
    beyond              within the first node      every pair
                        node i <-> node i + 1      their first ranks, both directions
                        rank r -> rank r + 1       the hops of a ring, with the closing one
                        others                     drawn from a fixed seed, up to 500 in all

Pairs that do not fit into the time budget stay empty. Devices of a node may share a network card,
which pairs one by one do not show. So at last those of one node send to those of another at once::

    alone      0 =====> 4                       all        0 ==> 4
    (2x4)                                                  1 ==> 5     cards = rate of all
                                                           2 ==> 6             / rate of one alone
                                                           3 ==> 7

This tool is separate from the sweeps, so that they are kept if it fails.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, permutations
from statistics import median
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.collectives import Group, finish, joined, settle, touched
from ddlbench.interconnect.pair_matrix import Matrix, off_diagonal
from ddlbench.interconnect.progress import tell
from ddlbench.interconnect.time_plan import MOST_PAIRS, PAIRS, PASSES, passes_of
from ddlbench.planning.plan import a_worker_each
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import barrier, join_store, leave

RULE = (
    "all pairs of the first node, the first ranks of neighbouring nodes both ways, each rank and "
    "the next, and others by lot"
)
_SEED = 0

Pair = tuple[int, int]  # sender, receiver
# Latency in s, bandwidth in bytes per second, and the sum of both directions at once.
_PairTimes = tuple[float, float, float]


def chosen_pairs(nodes: Sequence[int], most: int = MOST_PAIRS) -> list[Pair]:
    """At most ``most`` pairs in the order of measurement, the same on every rank.

    ``nodes`` has the node of each rank; the ranks of a node follow one another.
    """
    size = len(nodes)
    if size * (size - 1) <= most:
        return list(permutations(range(size), 2))
    first_node = [rank for rank in range(size) if nodes[rank] == nodes[0]]
    first_ranks = [0, *(b for a, b in pairwise(range(size)) if nodes[a] != nodes[b])]
    pairs: list[Pair] = list(permutations(first_node, 2))
    for left, right in pairwise(first_ranks):
        pairs += [(left, right), (right, left)]
    pairs += [(rank, (rank + 1) % size) for rank in range(size)]
    drawn = random.Random(_SEED).sample(range(size * (size - 1)), most)
    pairs += [_pair(number, size) for number in drawn]
    return list(dict.fromkeys(pairs))[:most]


def _pair(number: int, size: int) -> Pair:
    """The pair with this number if pairs are counted row by row, without the diagonal."""
    sender, column = divmod(number, size - 1)
    return sender, column + (column >= sender)


_ROUNDS, _MESSAGES = 30, 3
_TELL_EVERY = 10  # pairs
_PING_ELEMENTS = 4
_SMALL_BYTES, _LARGE_BYTES = 2**20, 2**24
_MESSAGE_S = 0.03
_NODE_RATE_LIMIT_S = 30.0


def work(here: RankContext) -> dict[str, Any]:
    """Measure as one rank; the report of rank 0 holds the results of all.

    Settings: ``devices_per_node``, ``pairs_budget_s``, ``passes_s``.
    """
    device, interface = settle(here)
    store = join_store(here.host, here.port, here.process.rank, here.world_size)
    per_node = here.settings["devices_per_node"]
    everyone = a_worker_each(here.world_size // per_node, per_node, per_node)
    group_store = dist.PrefixStore("pairs", store)
    group = Group(everyone, everyone[here.process.rank], group_store, device, interface)
    with joined(group):
        pairs = measure_pairs(group, here.settings["pairs_budget_s"], here.settings["passes_s"])
        node_rates = measure_node_rates(group)
    barrier(store, "reported", here.world_size)
    leave(store, here.process.rank, here.world_size)
    return {"pairs": pairs, "node_rates": node_rates}


def measure_pairs(group: Group, budget_s: float, passes_s: float | None = None) -> dict[str, Any]:
    """Fields of a pair matrix over all ranks of ``group``; empty on all ranks but the first.

    ``group`` is joined. No pair is begun after ``budget_s``, and none of the later passes after
    ``passes_s``.
    """
    nodes, store = [process.node for process in group.members], group.store
    pairs = chosen_pairs(nodes)
    passes = passes_of(len(pairs))
    sent: dict[Pair, list[_PairTimes]] = {}
    passes_s = budget_s if passes_s is None else min(passes_s, budget_s)
    done = _measure_passes(group, pairs, passes, (budget_s, passes_s), sent)
    for (sender, receiver), passes_of_pair in sent.items():
        store.set(f"{sender}/{receiver}", json.dumps(passes_of_pair))
    if group.rank != 0:
        return {}
    measured = pairs[:done]
    values = {(i, j): json.loads(store.get(f"{i}/{j}")) for i, j in measured}
    return {
        "latency_s": _matrix(len(nodes), values, 0),
        "bandwidth_bytes_per_s": _matrix(len(nodes), values, 1),
        "both_ways_bytes_per_s": _matrix(len(nodes), values, 2),
        "hosts": group.hosts(),
        "nodes": nodes,
        "method": group.transport,
        "repeats": max(1, done // len(pairs)),
        "sampled": _sampled(len(nodes), len(pairs), len(measured)),
    }


def measure_node_rates(group: Group) -> list[dict[str, Any]]:
    """The ``node_rates`` of links.json; empty on all ranks but the first.

    It is also empty where no two nodes have the same number of devices, or a message takes so long
    that all of them would exceed ``_NODE_RATE_LIMIT_S``. ``group`` is joined.
    """
    senders, receivers = (
        [rank for rank, process in enumerate(group.members) if process.node == node]
        for node in (0, 1)
    )
    if len(senders) < 2 or len(senders) != len(receivers):
        return []
    peers = dict(zip(senders, receivers, strict=True)) | dict(zip(receivers, senders, strict=True))
    peer, store = peers.get(group.rank), group.store
    first = group.rank in senders

    def sent_s(name: str, size: int, ranks: Sequence[int]) -> float:
        """Seconds until the slowest of these senders has sent its messages."""
        barrier(store, f"begin/{name}", len(group.members))
        if peer is not None and (group.rank in ranks or peer in ranks):
            seconds = _stream_s(peer, first, size, group.device)
            if first:
                store.set(f"sent/{name}/{group.rank}", str(seconds))
        return max(float(store.get(f"sent/{name}/{rank}")) for rank in ranks)

    first_sender = senders[:1]
    sent_s("connect", _SMALL_BYTES // 4, senders)
    probe_s = sent_s("probe", _SMALL_BYTES, first_sender) / _MESSAGES
    size = suitable_bytes(probe_s)
    message_s = probe_s * size / _SMALL_BYTES
    if PASSES * _MESSAGES * (len(senders) + 1) * message_s > _NODE_RATE_LIMIT_S:
        return []
    passes = [
        (sent_s(f"one/{number}", size, first_sender), sent_s(f"all/{number}", size, senders))
        for number in range(PASSES)
    ]
    if group.rank != 0:
        return []
    alone_s, all_s = (median(seconds) for seconds in zip(*passes, strict=True))
    return [
        {
            "nodes": 2,
            "devices_per_node": len(senders),
            "ranks": 2 * len(senders),
            "transport": group.transport,
            "message_bytes": size,
            "device_bytes_per_s": _MESSAGES * size / alone_s,
            "node_bytes_per_s": _MESSAGES * size * len(senders) / all_s,
        }
    ]


def _stream_s(other: int, first: bool, size: int, device: torch.device) -> float:
    """Seconds of messages in a row until the receiver has answered the last one."""
    message, answer = touched(size // 4, device), touched(_PING_ELEMENTS, device)
    began_s = time.perf_counter()
    for _ in range(_MESSAGES):
        _carry(message, other, sends=first)
    _carry(answer, other, sends=not first)
    finish(device)
    return time.perf_counter() - began_s


def _carry(message: torch.Tensor, other: int, *, sends: bool) -> None:
    """Send to the other rank, or receive what it sends."""
    (dist.send if sends else dist.recv)(message, other)


def _measure_passes(
    group: Group,
    pairs: Sequence[Pair],
    passes: int,
    limits_s: tuple[float, float],
    sent: dict[Pair, list[_PairTimes]],
) -> int:
    """Measure all pairs, pass by pass; returns the number of measurements.

    ``limits_s`` are for the first pass and for all passes, by the first rank's clock. ``sent`` gets
    the measurements of this rank as a sender.
    """
    store, began_s = group.store, time.monotonic()
    total = passes * len(pairs)
    for number in range(total):
        if group.rank == 0:
            taken_s = time.monotonic() - began_s
            if number % _TELL_EVERY == 0 and number > 0:
                left_s = min(taken_s / number * (total - number), limits_s[1] - taken_s)
                tell(f"{PAIRS}, {number} of {total}", max(left_s, 0.0))
            limit_s = limits_s[0] if number < len(pairs) else limits_s[1]
            store.set(f"go/{number}", "no" if taken_s > limit_s else "yes")
        if store.get(f"go/{number}") == b"no":
            return number
        sender, receiver = pairs[number % len(pairs)]
        if group.rank == sender:
            measured = _measure_pair(receiver, True, group.device)
            sent.setdefault((sender, receiver), []).append(measured)
        elif group.rank == receiver:
            _measure_pair(sender, False, group.device)
        barrier(store, f"pair/{number}", len(group.members))
    return total


def _sampled(size: int, chosen: int, measured: int) -> dict[str, Any] | None:
    """The ``sampled`` part of a matrix with holes; None for a complete one."""
    whole = size * (size - 1)
    if measured == whole:
        return None
    rule = RULE if chosen < whole else "all pairs"
    if measured < chosen:
        rule += f"; time was over after {measured} of {chosen}"
    return {"measured_pairs": measured, "all_pairs": whole, "rule": rule}


def _matrix(size: int, values: dict[Pair, list[list[float]]], part: int) -> Matrix:
    """Medians over the passes; None for pairs that were not measured."""
    medians = {pair: median(of_pass[part] for of_pass in values[pair]) for pair in values}
    return off_diagonal(size, lambda i, j: medians.get((i, j)))


def _measure_pair(other: int, first: bool, device: torch.device) -> _PairTimes:
    """The times of a pair of ranks; valid on the ``first``, which sends."""
    ping = touched(_PING_ELEMENTS, device)

    def exchange(message: torch.Tensor) -> None:
        _carry(message, other, sends=first)
        _carry(ping, other, sends=not first)
        finish(device)

    def cross(message: torch.Tensor, other_message: torch.Tensor) -> None:
        both = [
            dist.P2POp(dist.isend, message, other),
            dist.P2POp(dist.irecv, other_message, other),
        ]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        finish(device)

    round_trips_s = _times_s(lambda: exchange(ping), _ROUNDS)
    small = touched(_SMALL_BYTES // 4, device)
    probe_s = median(_times_s(lambda: exchange(small), 2))
    size = _agreed_bytes(probe_s, other, first, device)
    large = touched(size // 4, device)
    large_s = median(_times_s(lambda: exchange(large), _MESSAGES))
    carried_s = large_s - min(round_trips_s)
    another = touched(size // 4, device)
    crossed_s = median(_times_s(lambda: cross(large, another), _MESSAGES))
    both_s = crossed_s - min(round_trips_s) / 2
    return (
        median(round_trips_s) / 2,
        size / (carried_s if carried_s > 0 else large_s),
        2 * size / (both_s if both_s > 0 else crossed_s),
    )


def _times_s(call: Callable[[], None], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[1:]


def suitable_bytes(probe_s: float) -> int:
    """Bytes of a message of about ``_MESSAGE_S``, if one of ``_SMALL_BYTES`` takes ``probe_s``."""
    size = _SMALL_BYTES
    while size < _LARGE_BYTES and probe_s * 2 * size / _SMALL_BYTES <= _MESSAGE_S:
        size *= 2
    return size


def _agreed_bytes(probe_s: float, other: int, first: bool, device: torch.device) -> int:
    """The sender chooses the size and tells the receiver."""
    agreed = torch.tensor([suitable_bytes(probe_s)], device=device)
    _carry(agreed, other, sends=first)
    return int(agreed.item())


if __name__ == "__main__":
    rank_job_main(work)
