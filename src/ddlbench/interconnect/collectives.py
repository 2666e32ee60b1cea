"""Sweeps of collectives over a group of ranks: raw times of every message size.

::

    probe     1K 2K 4K ... 64M     warm-up, dropped; plans the repeats of each size, and the largest
                                   size that the budget allows
    pass 1    1K 2K 4K ... 64M     a quarter of the repeats of each size
    pass 2    1K 2K 4K ... 64M     ... alternates with passes of other operations, so that a
                                   disturbance of a second affects no size or operation alone

Every repeat begins with a barrier over gloo and ends on each rank when its part is done (on a GPU:
when the device is idle again). Its time is the slowest rank's, so all ranks take the same
decisions. The barrier is not Horovod's, so that messages join Horovod's cycle at any phase, as
gradients do.

The transports are those of training: torch.distributed's gloo and NCCL, as DDP uses them, and
Horovod. A message of Horovod is a group of four tensors. Like the gradients of a step it is
negotiated, copied into the fusion buffer, reduced, and copied out again. (A single tensor would
skip the buffer.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.worlds import buffer_bytes, message_sizes

_FUSED_TENSORS = 4
_ELEMENT_BYTES = 4


def element_count(operation: str, message_bytes: int, ranks: int) -> int:
    """fp32 elements of a message; a scattered one is rounded up to a multiple of the ranks."""
    parts = ranks if operation == "reduce_scatter" else 1
    return -(-message_bytes // _ELEMENT_BYTES // parts) * parts


def touched(count: int, device: torch.device) -> torch.Tensor:
    """Zeros of fp32, (count,), which stay zeros when summed, in memory that is already mapped."""
    # Pages of torch.zeros would be mapped by the kernel when they are first written.
    return torch.empty(count, device=device).fill_(0.0)


class Buffers:
    """Memory on ``device`` that all messages of a group, and all gathered results, use."""

    def __init__(self, largest_bytes: int, device: torch.device) -> None:
        count = largest_bytes // _ELEMENT_BYTES + dist.get_world_size()  # room to round up
        self.device = device
        self.message = touched(count, device)
        self.result = touched(count, device)


def torch_operation(operation: str, count: int, buffers: Buffers) -> Callable[[], object]:
    """A call that returns once this rank has finished ``operation`` over the default group."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    message = buffers.message[:count]

    def p2p() -> None:
        """A round trip that rank 0 begins."""
        for sender in (0, 1):
            if rank == sender:
                dist.send(message, dst=1 - sender)
            else:
                dist.recv(message, src=sender)

    result = buffers.result
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(message),
        "broadcast": lambda: dist.broadcast(message, src=0),
        "all_gather": lambda: dist.all_gather_into_tensor(result[: count * ranks], message),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(result[: count // ranks], message),
        "p2p": p2p,
    }
    return _finished(calls[operation], buffers.device)


def horovod_operation(hvd: Any, count: int, buffers: Buffers) -> Callable[[], object]:
    """An all-reduce of ``count`` elements in four tensors, averaged as gradients are."""
    tensors = list(buffers.message[:count].chunk(_FUSED_TENSORS))
    average = partial(hvd.grouped_allreduce_, tensors, name=f"sweep.{count}", op=hvd.Average)
    return _finished(average, buffers.device)


def _finished(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """``call``, and on a GPU the wait for its end."""
    if device.type != "cuda":
        return call

    def call_and_wait() -> None:
        call()
        torch.cuda.synchronize(device)

    return call_and_wait


PASSES = 4
_PROBES = 3
_LEAST, _MOST = 4, 40
# A sweep may exceed its budget by this factor, for the sake of long messages.
_LIMIT = 3.0


class Sweep:
    """Times messages of every size: first a probe, then several passes.

    Args:
        sizes: in bytes, ascending.
        run: (size, count) -> seconds of each of ``count`` repeats on the slowest rank.

    Attributes:
        times_s: by message size in bytes.
        ended: why sizes are missing; empty if none is.
    """

    def __init__(self, sizes: Sequence[int], run: Callable[[int, int], list[float]]) -> None:
        self.times_s: dict[int, list[float]] = {}
        self.ended = ""
        self._sizes, self._run = sizes, run
        self._counts: dict[int, int] = {}

    def probe(self, budget_s: float) -> None:
        """Time each size and plan its repeats, so that the sweep takes about ``budget_s``."""
        planned_s, last_size, last_s = 0.0, 0, 0.0
        for index, size in enumerate(self._sizes):
            if last_size:
                expected_s = last_s * size / last_size
                if planned_s + (_LEAST + _PROBES) * expected_s > _LIMIT * budget_s:
                    self.ended = f"no message above {last_size} bytes, to keep within the budget"
                    break
            times = self._run(size, _PROBES)
            last_size, last_s = size, min(times)
            share_s = (budget_s - planned_s) / (len(self._sizes) - index)
            self._counts[size] = min(max(int(share_s / last_s), _LEAST), _MOST)
            planned_s += sum(times) + self._counts[size] * last_s

    def take(self, number: int) -> None:
        for size, count in self._counts.items():
            share = count // PASSES + (number < count % PASSES)
            self.times_s.setdefault(size, []).extend(self._run(size, share))


def sweep_of(operation: str, largest: int, make: Callable[[int], Callable[[], object]]) -> Sweep:
    """A sweep over all sizes whose buffers have at most ``largest`` bytes.

    ``make`` returns the call for a number of elements.
    """
    ranks = dist.get_world_size()
    sizes = [
        size for size in message_sizes(largest) if buffer_bytes(operation, size, ranks) <= largest
    ]

    def run(size: int, count: int) -> list[float]:
        times = slowest(make(element_count(operation, size, ranks)), count)
        return [value / 2 for value in times] if operation == "p2p" else times

    return Sweep(sizes, run)


def measure(sweeps: dict[str, Sweep], transport: str, budget_s: float) -> list[dict[str, Any]]:
    """Raw times of all sweeps, whose passes alternate."""
    for sweep in sweeps.values():
        sweep.probe(budget_s)
    for number in range(PASSES):
        for sweep in sweeps.values():
            sweep.take(number)
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


def slowest(call: Callable[[], object], count: int) -> list[float]:
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
