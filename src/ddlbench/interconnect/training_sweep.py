"""Links as training sees them: messages of DDP, FSDP and Horovod, beside and after a computation.

DDP copies gradients into a bucket, divides them, and copies them back. So a message is timed as the
difference of two backward passes of one parameter tensor, whose gradient is given and costs
nothing::

    with synchronisation      | hook, copy, all-reduce, copy |
    within ``no_sync``        | |                                  the difference is DDP's message

FSDP copies weights and gradients, too. A block has many tensors, and each costs some calls of its
own, whatever its bytes: the difference between messages of many tensors and of one::

    forward               | gather, copy out |
    forward and backward  | gather, copy out | copy in, scatter |   the difference is the scatter

And a message may hide behind computation, or take its cores away::

    alone       |--- all-reduce ---|
    alone       |--- computation --|
    together    |--- all-reduce ---|                        hidden share 1
                |--- computation --|
    together    |--- all-reduce ---|--- computation --|     hidden share 0

Horovod's own thread runs in every cycle, also when there is nothing to send. So one computation is
timed before Horovod starts and beside an idle Horovod. Each rank measures in a process of its own::

    rank's process   HorovodChild()  --fork-->  child waits for its group
                     sweep           -------->  group, hvd.init(), sweep, hvd.shutdown()
                     waits           <--------  raw times

Horovod 0.28 can crash (segmentation fault) in a second ``hvd.init()`` with other members, so
every group gets new processes. They are forked before their parent has any thread or device: a new
process would take seconds to import torch.

On CPUs a message takes longer after a computation than after another message. Gloo's threads first
need a core, which takes some milliseconds where all cores compute: Linux lets a running thread
finish its slice. A collective many times in a row, and a message of a pipeline, whose sender goes
on::

    | compute | gather .. | compute | gather .. | compute | gather .. |    without a barrier

    sender     | send | compute ------------- |
    receiver   | compute | receive .. |            the sender's thread needs the sender's core

A thread gets its core at once or late, so means are taken; a median would be one of the two. On
emulated accelerators computation waits, and its core is free.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ddlbench.experiment.site import Accelerator
from ddlbench.interconnect.collectives import (
    Buffers,
    Group,
    Repeat,
    Sweep,
    element_count,
    finish,
    horovod_operation,
    joined,
    measure,
    slowest,
    sweep_of,
    torch_operation,
    touched,
)
from ddlbench.interconnect.time_plan import COMPUTE_S, message_sizes
from ddlbench.networks.emulated import occupy
from ddlbench.planning.plan import Process
from ddlbench.runtime.addresses import address_of
from ddlbench.runtime.launch import SECRET, as_own_host, is_shared
from ddlbench.runtime.rank_guard import end_with_parent
from ddlbench.strategies.horovod.descriptor import HorovodOptions
from ddlbench.strategies.horovod.executor import join_rendezvous, set_place

# Buckets have 25 MiB; a larger tensor is one of its own, and is extrapolated.
_LARGEST_BYTES = 32 * 2**20
_ELEMENT_BYTES = 4
_LEAST_S = 1e-7


class _Given(torch.autograd.Function):
    """A loss whose gradient of each weight is given."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *weights: Tensor) -> Tensor:
        ctx.gradient, ctx.count = gradient, len(weights)
        return weights[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _of_loss: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *(ctx.gradient for _ in range(ctx.count)))


class _Message(nn.Module):
    """Parameter tensors of ``count`` elements each."""

    def __init__(self, count: int, device: torch.device, tensors: int = 1) -> None:
        super().__init__()
        self.weights = nn.ParameterList(touched(count, device) for _ in range(tensors))

    def forward(self, gradient: Tensor) -> Tensor:
        loss: Tensor = _Given.apply(gradient, *self.weights)
        return loss


def sweep_reducer(device: torch.device, largest: int, budget_s: float) -> list[dict[str, Any]]:
    """Raw times of DDP's messages over the default group, as the sweep ``all_reduce``."""
    local, synced = _two_sweeps(lambda size: _backward(size // _ELEMENT_BYTES, device), largest)
    both = measure({"synced": synced, "local": local}, "ddp", budget_s)
    points = _differences(*(entry["points"] for entry in both))
    return [{**both[0], "operation": "all_reduce", "points": points}]


def _two_sweeps(make: Callable[[int], Callable[[bool], None]], largest: int) -> tuple[Sweep, Sweep]:
    """Sweeps of the calls of each message size, with False and with True."""
    made = cache(make)

    def sweep(flag: bool) -> Sweep:
        def run(size: int, count: int) -> list[Repeat]:
            return slowest(partial(made(size), flag), count)

        return Sweep(message_sizes(min(largest, _LARGEST_BYTES)), run)

    return sweep(False), sweep(True)


def sweep_sharded(device: torch.device, largest: int, budget_s: float) -> list[dict[str, Any]]:
    """Raw times of FSDP's messages over the default group, as two sweeps."""
    ranks = dist.get_world_size()
    gather, scatter = _two_sweeps(
        lambda size: sharded_pass(element_count("reduce_scatter", size, ranks), device), largest
    )
    both = measure({"all_gather": gather, "reduce_scatter": scatter}, "fsdp", budget_s)
    gathered, trained = (entry["points"] for entry in both)
    for point in gathered:  # its tensor was rounded up, too
        elements = point["message_bytes"] // _ELEMENT_BYTES
        point["message_bytes"] = _ELEMENT_BYTES * -(-elements // ranks) * ranks
    scattered = _differences(trained, gathered)
    # A message of an all-gather is the part that a rank gives.
    given = [{**point, "message_bytes": point["message_bytes"] // ranks} for point in gathered]
    return [{**both[0], "points": given}, {**both[1], "points": scattered}]


def _differences(
    points: list[dict[str, Any]], others: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The points, each less the median of the other of the same size; sizes that both have."""
    of_size = {other["message_bytes"]: other for other in others}
    return [
        {
            "message_bytes": size,
            **{name: _less(point[name], of_size[size][name]) for name in ("times_s", "cpu_s")},
        }
        for point in points
        for size in [point["message_bytes"]]
        if size in of_size
    ]


def _less(times_s: list[float], others_s: list[float]) -> list[float]:
    other_s = statistics.median(others_s)
    return [max(seconds - other_s, _LEAST_S) for seconds in times_s]


def _backward(count: int, device: torch.device) -> Callable[[bool], None]:
    """A backward pass through DDP's reducer, synchronised or not, until the device is done."""
    message = _Message(count, device)
    message.weights[0].grad = touched(count, device)  # to add to
    module = DistributedDataParallel(message, bucket_cap_mb=2 * _LARGEST_BYTES)
    gradient = touched(count, device)

    def call(synchronised: bool) -> None:
        with nullcontext() if synchronised else module.no_sync():
            module(gradient).backward()
        finish(device)

    call(True)  # DDP plans its buckets in the first pass
    return call


_SMALL_BYTES = 16 * 2**10
_TENSORS = 16
_TENSOR_REPEATS = 21


def sharded_tensor_costs(device: torch.device) -> list[dict[str, Any]]:
    """Seconds that each further tensor adds to FSDP's messages over the default group."""
    count = element_count("reduce_scatter", _SMALL_BYTES, dist.get_world_size())

    calls = {tensors: sharded_pass(count, device, tensors) for tensors in (1, _TENSORS)}

    def median_s(tensors: int, trained: bool) -> float:
        call = partial(calls[tensors], trained)
        return statistics.median(repeat.time_s for repeat in slowest(call, _TENSOR_REPEATS))

    gather_s, both_s = (
        (median_s(_TENSORS, trained) - median_s(1, trained)) / (_TENSORS - 1)
        for trained in (False, True)
    )
    costs = {"all_gather": gather_s, "reduce_scatter": both_s - gather_s}
    return [
        {"library": "fsdp", "operation": operation, "tensor_s": max(0.0, tensor_s)}
        for operation, tensor_s in costs.items()
    ]


def sharded_pass(count: int, device: torch.device, tensors: int = 1) -> Callable[[bool], None]:
    """A forward pass of sharded tensors; with their backward pass if called with True."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    module = _Message(count, device, tensors)
    fully_shard(module, mesh=mesh, reshard_after_forward=False)
    assert isinstance(module, FSDPModule)
    gradient = touched(count, device)

    def call(trained: bool) -> None:
        if trained:
            module(gradient).backward()
            module.zero_grad()
        else:
            with torch.no_grad():
                module(gradient)
            module.reshard()

    call(True)  # FSDP prepares itself in the first pass
    return call


_OVERLAP_BYTES = 8 * 2**20
_LEAST_OVERLAP_BYTES = 256 * 2**10
_OVERLAP_REPEATS = 7
# All-reduces that take place in a measurement: alone and together, and a computation as long.
_OVERLAP_LENGTHS = 4 * (_OVERLAP_REPEATS + 1)
_FIXED_S = 0.1
_MATRIX = 64


def measure_overlap(device: torch.device, largest: int, budget_s: float) -> dict[str, Any]:
    """How much of an all-reduce a computation hides that takes as long as the all-reduce.

    The message is short where the link is slow, so that all takes about ``budget_s``.
    """
    size = _overlap_bytes(device, min(largest, _OVERLAP_BYTES), budget_s)
    message = touched(size // _ELEMENT_BYTES, device)
    alone_s = _median(lambda: _all_reduce(device, message))
    compute = computation(device, alone_s)
    compute_s = _median(lambda: _finish(device, compute()))

    def together() -> None:
        work = dist.all_reduce(message, async_op=True)
        compute()
        _finish(device, work)

    both_s = _median(together)
    hidden_s = alone_s + compute_s - both_s
    return {
        "message_bytes": size,
        "alone_s": alone_s,
        "compute_s": compute_s,
        "both_s": both_s,
        "hidden_share": max(0.0, min(1.0, hidden_s / min(alone_s, compute_s))),
    }


def _overlap_bytes(device: torch.device, most: int, budget_s: float) -> int:
    """The longest message that the budget allows, the same on all ranks."""
    size = min(most, _LEAST_OVERLAP_BYTES)
    while 2 * size <= most:
        longer = touched(2 * size // _ELEMENT_BYTES, device)
        (once,) = slowest(partial(_all_reduce, device, longer), 1)
        if _OVERLAP_LENGTHS * once.time_s > budget_s:
            break
        size *= 2
    return size


def fixed_computation(device: torch.device) -> Callable[[], float]:
    """A call that gives the seconds of a computation that is always the same, on all ranks."""
    compute = computation(device, _FIXED_S)
    return lambda: _median(lambda: _finish(device, compute()))


def _median(call: Callable[[], None]) -> float:
    repeats = slowest(call, _OVERLAP_REPEATS)[1:]
    return statistics.median(repeat.time_s for repeat in repeats)


def _all_reduce(device: torch.device, message: Tensor) -> None:
    _finish(device, dist.all_reduce(message, async_op=True))


def _finish(device: torch.device, work: Any) -> None:
    if work is not None:
        work.wait()
    finish(device)


def computation(device: torch.device, seconds: float) -> Callable[[], None]:
    """A call that keeps the device busy for about ``seconds``, as all ranks do it at once."""
    if Accelerator.of_this_process() is not None:
        return lambda: occupy(seconds)
    size = _MATRIX * (16 if device.type == "cuda" else 1)
    left, right = (torch.rand(size, size, device=device) for _ in range(2))

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right)

    products(10)
    count = 10
    while True:  # until it takes long enough to be timed
        begin = time.perf_counter()
        products(count)
        _finish(device, None)
        took_s = time.perf_counter() - begin
        if took_s > seconds / 4:
            break
        count *= 2
    # The same on every rank: one that computes for longer would seem to hide more.
    agreed = torch.tensor([count * seconds / took_s])
    dist.all_reduce(agreed)
    repeats = max(1, round(float(agreed) / dist.get_world_size()))
    return lambda: products(repeats)


@contextmanager
def horovod_world(hvd: Any, group: Group) -> Iterator[None]:
    """Initialise ``hvd`` over ``group``, with Horovod's default fusion and cycle, in a ``with``."""
    size = len(group.members)
    # Nodes with the same host name count as one.
    group.store.set(f"horovod/host/{group.rank}", socket.gethostname())
    hosts = [group.store.get(f"horovod/host/{rank}").decode() for rank in range(size)]
    rendezvous = join_rendezvous(
        group.store, group.rank, hosts, address_of(group.interface), os.environ.get(SECRET)
    )
    set_place(group.rank, hosts, rendezvous, group.interface)
    options = HorovodOptions()
    threshold = Accelerator.shrunk(options.fusion_threshold_bytes)
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(threshold)
    cycle_s = Accelerator.slowed(options.cycle_time_s)
    os.environ["HOROVOD_CYCLE_TIME"] = str(cycle_s * 1e3)
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()
        if rendezvous.server is not None:
            rendezvous.server.shutdown()
            rendezvous.server.server_close()


_PATIENCE = timedelta(minutes=10)


class HorovodChild:
    """A process that measures one group, forked from this one while it has a single thread."""

    def __init__(self) -> None:
        forked = multiprocessing.get_context("fork")
        self._pipe, its_pipe = forked.Pipe()
        # A daemon, so that it ends with this process.
        forked.Process(target=_serve, args=(its_pipe,), daemon=True).start()
        its_pipe.close()

    def sweep(
        self, group: Group, host: str, port: int, settings: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Raw times of Horovod's all-reduce, and a computation beside idle Horovod.

        All ranks of ``group`` call it; their process group must be destroyed already. ``host`` and
        ``port`` are of its store.

        Raises:
            RuntimeError: Horovod crashed.
        """
        # Without the store, which cannot be sent to a child.
        subgroup = (group.members, group.me, str(group.device), group.interface)
        try:
            self._pipe.send((subgroup, (host, port), torch.get_num_threads(), settings))
            entries, error = self._pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(
                f"Horovod crashed in a group of {len(group.members)} ranks; check that Horovod "
                "trains there with a cell of strategy horovod"
            ) from None
        if error is not None:
            raise RuntimeError(error)
        measured: tuple[list[dict[str, Any]], dict[str, Any]] = entries
        return measured


def _serve(pipe: Connection) -> None:
    """Measure the group that comes through the pipe, if one comes, and end."""
    end_with_parent()
    try:
        task = pipe.recv()
    except EOFError:
        os._exit(0)
    try:
        pipe.send((_swept_by_child(*task), None))
    except Exception as error:
        traceback.print_exc()
        pipe.send((None, f"Horovod: {type(error).__name__}: {error}"))
    # Libraries may hang at exit when other ranks are gone, so skip their exit handlers.
    os._exit(0)


def _swept_by_child(
    subgroup: tuple[tuple[Process, ...], Process, str, str | None],
    address: tuple[str, int],
    threads: int,
    settings: dict[str, Any],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    members, me, device_name, interface = subgroup
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if is_shared():  # this process was forked before its parent had a rank
        as_own_host(me.rank)
    hvd = importlib.import_module("horovod.torch")
    served = dist.TCPStore(*address, is_master=False, timeout=_PATIENCE)
    nodes = len({process.node for process in members})
    store = dist.PrefixStore(f"horovod/{nodes}x{len(members) // nodes}", served)
    group = Group(members, me, store, device, interface)
    largest = settings["largest_bytes"]
    with joined(group):
        buffers = Buffers(largest, device)
        compute = fixed_computation(device)
        alone_s = compute()
        with horovod_world(hvd, group):
            background = {"library": "horovod", "alone_s": alone_s, "beside_s": compute()}
            sweep = sweep_of(
                "all_reduce", largest, lambda count: horovod_operation(hvd, count, buffers)
            )
            return measure({"all_reduce": sweep}, "horovod", settings["budget_s"]), background


_DELAYED_BYTES = 64 * 2**10
_EMULATED_COMPUTE_S = 5e-3
_DELAYED = ("all_gather", "all_reduce", "reduce_scatter")


def message_delays(device: torch.device, turns: int) -> list[dict[str, Any]]:
    """Seconds of a short message after a computation, over the default group.

    The first of the ``turns`` is dropped.
    """
    ranks = dist.get_world_size()
    # A device that waits leaves its core at once, however long it waits.
    compute_s = COMPUTE_S if Accelerator.of_this_process() is None else _EMULATED_COMPUTE_S
    compute = computation(device, compute_s)
    buffers = Buffers(_DELAYED_BYTES * ranks, device)
    delays = []
    for operation in _DELAYED:
        call = torch_operation(operation, element_count(operation, _DELAYED_BYTES, ranks), buffers)
        delays.append(_delay_of(operation, "gloo", _DELAYED_BYTES, _after_s(compute, call, turns)))
    # As in sweeps: a forward pass gathers what each rank gives, a backward pass adds the scatter.
    count = element_count("reduce_scatter", _DELAYED_BYTES, ranks)
    sharded = sharded_pass(count, device)
    gather_s, both_s = (
        _after_s(compute, partial(sharded, trained), turns) for trained in (False, True)
    )
    delays.append(_delay_of("all_gather", "fsdp", _DELAYED_BYTES // ranks, gather_s))
    delays.append(_delay_of("reduce_scatter", "fsdp", _DELAYED_BYTES, max(0.0, both_s - gather_s)))
    message = touched(element_count("p2p", _DELAYED_BYTES, ranks), device)
    alone_s = _message_s(lambda: time.sleep(compute_s), message, turns)
    late = _delay_of("p2p", "gloo", _DELAYED_BYTES, _message_s(compute, message, turns))
    return [*delays, {**late, "alone_s": alone_s}]


def _delay_of(operation: str, transport: str, message_bytes: int, after_s: float) -> dict[str, Any]:
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
