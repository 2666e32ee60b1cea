"""Sweeps of collectives over a group of ranks: raw times of every message size, taken by turns.

::

    probe     1K 2K 4K ... 64M     warm-up, dropped; tells how many repeats each size can have,
                                   and where messages get too long for the sweep
    pass 1    1K 2K 4K ... 64M     a quarter of the repeats of each size
    pass 2    1K 2K 4K ... 64M     ... between the passes of other sweeps, so that a disturbance of
                                   a second hits neither a size nor an operation alone

Every repeat begins with a barrier over gloo and ends on each rank when its part is done (on a GPU:
when the device is idle again); its time is the slowest rank's, so every rank decides alike. The
barrier is not Horovod's, so that messages join Horovod's cycle at any phase, as gradients do.

The transports are those that training uses. gloo and NCCL are torch.distributed's, as DDP uses
them. A message of Horovod is a group of four tensors: like the gradients of a step it is
negotiated, copied into the fusion buffer, reduced, and copied out again. (A single tensor would
skip the buffer.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.worlds import buffer_bytes, message_sizes

_FUSED_TENSORS = 4
_ELEMENT_BYTES = 4


def element_count(operation: str, message_bytes: int, ranks: int) -> int:
    """fp32 elements of a message; what is scattered divides by the ranks (rounded up)."""
    parts = ranks if operation == "reduce_scatter" else 1
    return -(-message_bytes // _ELEMENT_BYTES // parts) * parts


def touched(count: int, device: torch.device) -> torch.Tensor:
    """Zeros of fp32, which stay zeros however often they are summed, in memory of their own.

    ``torch.zeros`` would get pages that the kernel only maps when they are first written.
    """
    return torch.empty(count, device=device).fill_(0.0)


class Buffers:
    """Memory of all messages of a group: operations take their share of it.

    Args:
        largest_bytes: of any message, and of anything gathered.
        device: where.
    """

    def __init__(self, largest_bytes: int, device: torch.device) -> None:
        count = largest_bytes // _ELEMENT_BYTES + dist.get_world_size()  # room to round up
        self.device = device
        self.message = touched(count, device)
        self.result = touched(count, device)


def torch_operation(operation: str, count: int, buffers: Buffers) -> Callable[[], None]:
    """A call that returns once this rank has finished ``operation`` over the default group."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    message = buffers.message[:count]

    def all_reduce() -> None:
        dist.all_reduce(message)

    def broadcast() -> None:
        dist.broadcast(message, src=0)

    def all_gather() -> None:
        dist.all_gather_into_tensor(buffers.result[: count * ranks], message)

    def reduce_scatter() -> None:
        dist.reduce_scatter_tensor(buffers.result[: count // ranks], message)

    def p2p() -> None:
        """There and back; rank 0 begins."""
        for sender in (0, 1):
            if rank == sender:
                dist.send(message, dst=1 - sender)
            else:
                dist.recv(message, src=sender)

    calls = {
        "all_reduce": all_reduce,
        "broadcast": broadcast,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "p2p": p2p,
    }
    return _finished(calls[operation], buffers.device)


def horovod_operation(hvd: Any, count: int, buffers: Buffers) -> Callable[[], None]:
    """An all-reduce of ``count`` elements in four tensors, averaged as gradients are."""
    tensors = list(buffers.message[:count].chunk(_FUSED_TENSORS))
    name = f"sweep.{count}"

    def call() -> None:
        hvd.grouped_allreduce_(tensors, name=name, op=hvd.Average)

    return _finished(call, buffers.device)


def _finished(call: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """``call``, and on a GPU the wait for its end."""
    if device.type != "cuda":
        return call

    def called() -> None:
        call()
        torch.cuda.synchronize(device)

    return called


PASSES = 4
_PROBES = 3
_LEAST, _MOST = 4, 40
# A sweep may take so many times its budget, in favour of long messages.
_LIMIT = 3.0


class Sweep:
    """Messages of every size, once probed, then in passes.

    Args:
        sizes: in bytes, rising.
        run: (size, count) -> seconds of each of ``count`` repeats on the slowest rank.

    Attributes:
        times_s: by message size in bytes.
        ended: why sizes are missing; empty when none is.
    """

    def __init__(self, sizes: Sequence[int], run: Callable[[int, int], list[float]]) -> None:
        self.times_s: dict[int, list[float]] = {}
        self.ended = ""
        self._sizes, self._run = sizes, run
        self._counts: dict[int, int] = {}

    def probe(self, budget_s: float) -> None:
        """Plan the repeats; ``budget_s`` is what the whole sweep should take."""
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

    def take(self, turn: int) -> None:
        """One of ``PASSES`` passes."""
        for size, count in self._counts.items():
            share = count // PASSES + (turn < count % PASSES)
            self.times_s.setdefault(size, []).extend(self._run(size, share))


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
