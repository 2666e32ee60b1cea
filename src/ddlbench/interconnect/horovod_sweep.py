"""Horovod's all-reduce over one group, each rank in a process of its own.

::

    rank's process   HorovodChild()  --fork-->  child waits for its group
                     sweep           -------->  group, hvd.init(), sweep, hvd.shutdown()
                     waits           <--------  raw times

Horovod 0.28 can crash (segmentation fault) in a second ``hvd.init()`` with other members. So every
group gets new processes. They find each other through the store that the sweep's rank 0 serves, and
join as the ranks of a plan do (``strategies/horovod``). They are forked before their parent has any
thread or device: a new process would take seconds to import torch.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.experiment.site import Accelerator
from ddlbench.interconnect.collectives import Buffers, horovod_operation, measure, sweep_of
from ddlbench.interconnect.group import Group, joined
from ddlbench.interconnect.training_sweep import fixed_computation
from ddlbench.planning.plan import Process
from ddlbench.runtime.network_address import SECRET, address_of
from ddlbench.runtime.parent_death import end_with_parent
from ddlbench.strategies.horovod.descriptor import HorovodOptions
from ddlbench.strategies.horovod.rendezvous import join_rendezvous, set_place


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
        own = (group.members, group.me, str(group.device), group.interface)
        try:
            self._pipe.send((own, (host, port), torch.get_num_threads(), settings))
            found, error = self._pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(
                f"Horovod crashed in a group of {len(group.members)} ranks; check that Horovod "
                "trains there with a cell of strategy horovod"
            ) from None
        if error is not None:
            raise RuntimeError(error)
        measured: tuple[list[dict[str, Any]], dict[str, Any]] = found
        return measured


def _serve(pipe: Connection) -> None:
    """Measure the group that comes through the pipe, if one comes, and end."""
    end_with_parent()
    try:
        task = pipe.recv()
    except EOFError:
        os._exit(0)
    try:
        pipe.send((_sweep(*task), None))
    except Exception as error:
        traceback.print_exc()
        pipe.send((None, f"Horovod: {type(error).__name__}: {error}"))
    # Libraries may hang at exit when other ranks are gone, so skip their exit handlers.
    os._exit(0)


def _sweep(
    own: tuple[tuple[Process, ...], Process, str, str | None],
    address: tuple[str, int],
    threads: int,
    settings: dict[str, Any],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    members, me, device_name, interface = own
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
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
