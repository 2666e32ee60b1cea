"""A process group of some of the ranks, made as training makes it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed as dist

from ddlbench.planning.plan import Process
from ddlbench.runtime.network_address import use_interface
from ddlbench.runtime.placement import own_devices
from ddlbench.runtime.rank_job import RankContext


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


def members_of(nodes: int, devices: int, per_node: int) -> tuple[Process, ...]:
    """The first ``devices`` processes of the first ``nodes`` nodes; a node has ``per_node``."""
    total = nodes * per_node
    return tuple(
        Process(rank, "worker", node, local, (local,), shard=rank, num_shards=total)
        for node in range(nodes)
        for local in range(devices)
        for rank in [node * per_node + local]
    )


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
