"""How much longer a message takes after a computation than after another message; on CPUs.

Gloo's threads send and receive. After a computation the system must first give them a core, which
takes some milliseconds where all cores compute: Linux lets a running thread finish its slice.
Sweeps do not have this, as their ranks only wait. A collective, many times in a row::

    | compute | gather .. | compute | gather .. | compute | gather .. |    without a barrier

A message of a pipeline leaves while its sender goes on to compute::

    sender     | send | compute ------------- |
    receiver   | compute | receive .. |            the sender's thread needs the sender's core

A thread gets its core at once or late, so means are taken; a median would be one of the two. On
emulated accelerators computation waits, and its core is free.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.experiment.site import Accelerator
from ddlbench.interconnect.collectives import (
    Buffers,
    element_count,
    torch_operation,
    touched,
)
from ddlbench.interconnect.time_plan import COMPUTE_S
from ddlbench.interconnect.training_sweep import computation, sharded_pass

_BYTES = 64 * 2**10
_WAIT_S = 5e-3
_COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")


def message_delays(device: torch.device, turns: int) -> list[dict[str, Any]]:
    """Seconds of a short message after a computation, over the default group.

    The first of the ``turns`` is dropped.
    """
    ranks = dist.get_world_size()
    # A device that waits leaves its core at once, however long it waits.
    compute_s = COMPUTE_S if Accelerator.of_this_process() is None else _WAIT_S
    compute = computation(device, compute_s)
    buffers = Buffers(_BYTES * ranks, device)
    found = []
    for operation in _COLLECTIVES:
        call = torch_operation(operation, element_count(operation, _BYTES, ranks), buffers)
        found.append(_entry(operation, "gloo", _BYTES, _after_s(compute, call, turns)))
    # As in sweeps: a forward pass gathers what each rank gives, a backward pass adds the scatter.
    count = element_count("reduce_scatter", _BYTES, ranks)
    sharded = sharded_pass(count, device)
    gather_s, both_s = (
        _after_s(compute, partial(sharded, trained), turns) for trained in (False, True)
    )
    found.append(_entry("all_gather", "fsdp", _BYTES // ranks, gather_s))
    found.append(_entry("reduce_scatter", "fsdp", _BYTES, max(0.0, both_s - gather_s)))
    message = touched(element_count("p2p", _BYTES, ranks), device)
    alone_s = _message_s(lambda: time.sleep(compute_s), message, turns)
    late = _entry("p2p", "gloo", _BYTES, _message_s(compute, message, turns))
    return [*found, {**late, "alone_s": alone_s}]


def _entry(operation: str, transport: str, message_bytes: int, after_s: float) -> dict[str, Any]:
    return {
        "operation": operation,
        "transport": transport,
        "message_bytes": message_bytes,
        "after_s": after_s,
    }


def _after_s(compute: Callable[[], object], call: Callable[[], object], turns: int) -> float:
    """Mean seconds of a call in turns of computation and call, over turns and ranks."""
    times = torch.zeros(turns, dtype=torch.float64)
    dist.all_reduce(times)  # zeros: all ranks begin together
    for turn in range(turns):
        compute()
        begin_s = time.perf_counter()
        call()
        times[turn] = time.perf_counter() - begin_s
    dist.all_reduce(times)
    return float(times[1:].mean()) / dist.get_world_size()


def _message_s(work: Callable[[], object], message: torch.Tensor, turns: int) -> float:
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
    times = torch.zeros(turns, dtype=torch.float64)
    for index in range(turns):
        dist.all_reduce(ready)
        times[index] = call()
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return float(times[1:].mean())
