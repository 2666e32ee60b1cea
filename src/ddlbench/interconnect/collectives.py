"""Sweeps of collectives over a group of ranks: raw times of every message size.

::

    probe     1K 16K ... 64M       warm-up, dropped; plans the repeats of each size, and the largest
              2K 4K ... 32M        size that the budget allows; first a coarse grid, so that a slow
                                   transport has few sizes rather than short ones only
    pass 1    1K 2K 4K ... 64M     a quarter of the repeats of each size
    pass 2    1K 2K 4K ... 64M     ... alternates with passes of other operations, so that a
                                   disturbance of a second affects no size or operation alone

Every repeat begins with a barrier over gloo and ends on each rank when its part is done (on a GPU:
when the device is idle again). Its time is the slowest rank's, so all ranks take the same
decisions. So is its processor time, over all threads of the process: LogGP's overhead, which a core
cannot spend on computation meanwhile (Alexandrov et al. 1995). The barrier is not Horovod's, so
that messages join Horovod's cycle at any phase, as gradients do.

The transports are those of training: torch.distributed's gloo and NCCL, as DDP uses them, and
Horovod. A message of Horovod is a group of four tensors. Like the gradients of a step it is
negotiated, copied into the fusion buffer, reduced, and copied out again. (A single tensor would
skip the buffer.) A group of some of the ranks is made as training makes it.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from ddlbench.interconnect.time_plan import LIMIT, buffer_bytes, message_sizes
from ddlbench.planning.plan import Process
from ddlbench.runtime.addresses import use_interface
from ddlbench.runtime.launch import own_devices
from ddlbench.runtime.rank_job import RankContext

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


def finish(device: torch.device) -> None:
    """Wait until a GPU is idle; a CPU's calls return when they are done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _finished(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """``call``, and on a GPU the wait for its end."""
    if device.type != "cuda":
        return call

    def call_and_wait() -> None:
        call()
        finish(device)

    return call_and_wait


PASSES = 4
# A message that takes longer than this part of the budget is probed once.
_PROBES, _LONG = 3, 1 / 30
_SURPRISE = 3.0  # times what was expected
_LEAST, _GOOD, _MOST = 4, 10, 40  # repeats of a size
_FITTED = 3  # sizes, whatever the budget: fewer cannot be fitted
_COARSE = 4


def _expected_s(size: int, probed: Mapping[int, float]) -> float:
    """Seconds of a message, by the shortest time so far and the longest message below it.

    A time below twice the shortest is taken for latency, which does not grow with the message.
    """
    below = [known for known in probed if known < size]
    if not below:
        return 0.0
    nearest, least_s = max(below), min(probed.values())
    longer_s = probed[nearest] - least_s
    return probed[nearest] if longer_s < least_s else least_s + longer_s * size / nearest


def _counts(probed: Mapping[int, float], left_s: float) -> dict[int, int]:
    """Repeats of each size, by its seconds: equal shares; what short messages leave goes on."""
    counts = {}
    for index, size in enumerate(sorted(probed, key=lambda size: probed[size])):
        share_s = left_s / (len(probed) - index)
        counts[size] = min(max(int(share_s / probed[size]), _LEAST), _MOST)
        left_s -= counts[size] * probed[size]
    return dict(sorted(counts.items()))


class Repeat(NamedTuple):
    """One message on the slowest rank: seconds, and seconds of the processor.

    ``held_s`` are seconds until the next message may begin, with the barrier before this one.
    """

    time_s: float
    cpu_s: float
    held_s: float


class Sweep:
    """Times messages of every size: first a probe, then several passes.

    Args:
        sizes: in bytes, ascending.
        run: (size, count) -> ``count`` repeats.

    Attributes:
        repeats: by message size in bytes.
        ended: why sizes are missing; empty if none is.
    """

    def __init__(self, sizes: Sequence[int], run: Callable[[int, int], list[Repeat]]) -> None:
        self.repeats: dict[int, list[Repeat]] = {}
        self.ended = ""
        self._sizes, self._run = sizes, run
        self._counts: dict[int, int] = {}
        self._limit_s, self._spent_s = 0.0, 0.0

    def probe(self, budget_s: float) -> None:
        """Time sizes and plan their repeats, so that the sweep takes about ``budget_s``.

        A finer grid is added only if every size still gets ten repeats: messages that are disturbed
        now and then need repeats more than sizes.
        """
        self._limit_s = LIMIT * budget_s
        probed: dict[int, float] = {}
        for grid in self._grids():
            further_s = sum(_expected_s(size, probed) for size in grid)
            if probed and _GOOD * (sum(probed.values()) + further_s) > budget_s - self._spent_s:
                break
            for size in grid:
                expected_s = _expected_s(size, probed)
                too_long = self._spent_s + (_LEAST + 1) * expected_s > self._limit_s
                if too_long and len(probed) >= _FITTED:
                    continue
                probed[size] = self._probed_s(size, expected_s, budget_s)
        self._counts = _counts(probed, budget_s - self._spent_s)
        largest = max(probed)
        if largest < self._sizes[-1]:
            self.ended = f"no message above {largest} bytes, to keep within the budget"

    def _probed_s(self, size: int, expected_s: float, budget_s: float) -> float:
        """Seconds of a message of this size, with its barrier."""
        held_s = [repeat.held_s for repeat in self._timed(size, 1)]
        # One message that was disturbed would rule out all longer ones.
        surprising = expected_s and held_s[0] > _SURPRISE * expected_s
        if held_s[0] < _LONG * budget_s or surprising:
            held_s += [repeat.held_s for repeat in self._timed(size, _PROBES - 1)]
        # The shortest of few is too short where ranks share cores.
        return statistics.median(held_s)

    def _grids(self) -> Iterator[list[int]]:
        """Every fourth size and the largest, ascending; every second and the rest, descending."""
        coarse = sorted({*self._sizes[::_COARSE], self._sizes[-1]})
        yield coarse
        second = [size for size in self._sizes[::2][::-1] if size not in coarse]
        yield second
        yield [size for size in self._sizes[::-1] if size not in (*coarse, *second)]

    def take(self, number: int) -> None:
        """Run one pass: a share of the planned repeats of each size.

        The third and the fourth are left out once the sweep has reached its limit.
        """
        if number > 1 and self._spent_s > self._limit_s:
            return
        for size, count in self._counts.items():
            share = count // PASSES + (number < count % PASSES)
            self.repeats.setdefault(size, []).extend(self._timed(size, share))

    def _timed(self, size: int, count: int) -> list[Repeat]:
        repeats = self._run(size, count)
        self._spent_s += sum(repeat.held_s for repeat in repeats)
        return repeats


def sweep_of(operation: str, largest: int, make: Callable[[int], Callable[[], object]]) -> Sweep:
    """A sweep over all sizes whose buffers have at most ``largest`` bytes.

    ``make`` returns the call for a number of elements.
    """
    ranks = dist.get_world_size()
    sizes = [
        size for size in message_sizes(largest) if buffer_bytes(operation, size, ranks) <= largest
    ]

    def run(size: int, count: int) -> list[Repeat]:
        repeats = slowest(make(element_count(operation, size, ranks)), count)
        ways = 2 if operation == "p2p" else 1
        return [
            Repeat(repeat.time_s / ways, repeat.cpu_s / ways, repeat.held_s) for repeat in repeats
        ]

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
                {
                    "message_bytes": 4 * element_count(operation, size, ranks),
                    "times_s": [repeat.time_s for repeat in repeats],
                    "cpu_s": [repeat.cpu_s for repeat in repeats],
                }
                for size, repeats in sweep.repeats.items()
            ],
            "ended": sweep.ended,
        }
        for operation, sweep in sweeps.items()
    ]


def slowest(call: Callable[[], object], count: int) -> list[Repeat]:
    """Each of ``count`` calls on the slowest rank; the same list on all ranks."""
    ready = torch.zeros(1)
    times = torch.zeros(count, 3, dtype=torch.float64)
    for index in range(count):
        before = time.perf_counter()
        dist.all_reduce(ready)
        start, start_cpu = time.perf_counter(), time.process_time()
        call()
        times[index, 0] = time.perf_counter() - start
        times[index, 1] = time.process_time() - start_cpu
        times[index, 2] = time.perf_counter() - before
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [Repeat(*values) for values in times.tolist()]


@dataclass(frozen=True)
class Group:
    """A group of ranks, as one of them sees it."""

    members: tuple[Process, ...]  # in the order of ranks
    me: Process  # this process
    store: dist.Store  # of this group alone
    device: torch.device
    interface: str | None  # network interface

    @property
    def rank(self) -> int:
        return self.members.index(self.me)

    @property
    def transport(self) -> str:
        """torch.distributed's backend for tensors on the device."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    def hosts(self) -> list[str]:
        return [self.store.get(f"host/{rank}").decode() for rank in range(len(self.members))]


@contextmanager
def joined(group: Group) -> Iterator[None]:
    """Make ``group`` torch.distributed's default group in a ``with``; beside NCCL it has gloo."""
    group.store.set(f"host/{group.rank}", socket.gethostname())
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if group.transport == "nccl" else "gloo",
        store=group.store,
        rank=group.rank,
        world_size=len(group.members),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def settle(here: RankContext) -> tuple[torch.device, str | None]:
    """Set threads and interface for the libraries; returns this process's device and interface."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    interface = use_interface(here.interface)
    (device,) = own_devices(here.device_kind, here.process)
    return device, interface
