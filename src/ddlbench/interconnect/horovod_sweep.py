"""Horovod's all-reduce over one group, each rank in a process of its own.

::

    rank's process   sweep_horovod  --spawn-->  child: group, hvd.init(), sweep, hvd.shutdown()
                     waits          <--------   raw times

Horovod 0.28 can crash (segmentation fault) in a second ``hvd.init()`` with other members. So every
group has new processes; they find each other through the store that the sweep's rank 0 serves.
"""

from __future__ import annotations

import importlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.group import Group, joined
from ddlbench.interconnect.horovod_world import horovod_world
from ddlbench.interconnect.sweeping import measure, sweep_of
from ddlbench.interconnect.transports import Buffers, horovod_operation
from ddlbench.planning.strategy import Process

__all__ = ["sweep_horovod"]

_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class _Task:
    """A group as it can be sent to a child; the store cannot."""

    members: tuple[Process, ...]
    me: Process
    host: str
    port: int
    device: str
    interface: str | None
    threads: int
    settings: dict[str, Any]


def sweep_horovod(
    group: Group, host: str, port: int, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Raw times of Horovod's all-reduce over ``group``; all its ranks call it.

    Args:
        group: the ranks; its process group is left already.
        host: where the store is served.
        port: of the store.
        settings: of the sweep.

    Raises:
        RuntimeError: Horovod crashed.
    """
    task = _Task(
        group.members,
        group.me,
        host,
        port,
        str(group.device),
        group.interface,
        torch.get_num_threads(),
        settings,
    )
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_sweep, task).result()
        except BrokenProcessPool:
            raise RuntimeError(
                f"Horovod crashed in a group of {len(group.members)} ranks; check that Horovod "
                "trains there with a cell of strategy horovod"
            ) from None


def _sweep(task: _Task) -> list[dict[str, Any]]:
    """The child's part."""
    torch.set_num_threads(task.threads)
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    hvd = importlib.import_module("horovod.torch")
    served = dist.TCPStore(task.host, task.port, is_master=False, timeout=_PATIENCE)
    nodes = len({process.node for process in task.members})
    store = dist.PrefixStore(f"horovod/{nodes}x{len(task.members) // nodes}", served)
    group = Group(task.members, task.me, store, device, task.interface)
    largest = task.settings["largest_bytes"]
    with joined(group):
        buffers = Buffers(largest, device)
        with horovod_world(hvd, group):
            sweep = sweep_of(
                "all_reduce", largest, lambda count: horovod_operation(hvd, count, buffers)
            )
            return measure({"all_reduce": sweep}, "horovod", task.settings["budget_s"])
