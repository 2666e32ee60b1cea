"""Collectives and ping-pong over groups of ranks: ``python -m ddlbench.interconnect.sweep``.

::

    all ranks   | 1x2: gloo, Horovod | 1x4: ... | 2x1: ... | pairs, one after the other |
    not in it   | waits              |          | waits    | waits                      |

Horovod runs only while its own messages are measured, as it talks in every cycle.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.group import Group, joined, members_of
from ddlbench.interconnect.horovod_sweep import sweep_horovod
from ddlbench.interconnect.rank_pairs import all_pairs
from ddlbench.interconnect.sweeping import measure, sweep_of
from ddlbench.interconnect.transports import Buffers, torch_operation
from ddlbench.interconnect.worlds import OPERATIONS
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.network_address import interface_to_use
from ddlbench.runtime.rendezvous import barrier, join_store, leave
from ddlbench.runtime.tool import Surroundings, tool_main

__all__ = ["work"]


def work(here: Surroundings) -> dict[str, Any]:
    """What one rank does; the report of rank 0 holds what all found.

    Settings: ``worlds`` (lists of nodes, devices per node), ``largest_bytes``, ``budget_s`` of a
    sweep, ``devices_per_node`` of the whole.
    """
    settings = here.settings
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    interface = interface_to_use(here.interface)
    if interface is not None:
        os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    device = _device(here)
    store = join_store(here.host, here.port, here.process.rank, here.world_size)
    report: dict[str, Any] = {"sweeps": [], "notes": [], "host": socket.gethostname()}
    horovod = importlib.util.find_spec("horovod") is not None
    if not horovod:
        report["notes"].append("no sweep of Horovod: it is not installed on the nodes")
    for nodes, devices in settings["worlds"]:
        members = members_of(nodes, devices, settings["devices_per_node"])
        if here.process.rank in {member.rank for member in members}:
            me = next(member for member in members if member.rank == here.process.rank)
            own_store = dist.PrefixStore(f"{nodes}x{devices}", store)
            group = Group(members, me, own_store, device, interface)
            with joined(group):
                found = _sweep_group(group, settings)
            if horovod:
                found += sweep_horovod(group, here.host, here.port, settings)
            shape = {"nodes": nodes, "devices_per_node": devices, "ranks": len(members)}
            report["sweeps"] += [{**sweep, **shape} for sweep in found]
        barrier(store, f"done/{nodes}x{devices}", here.world_size)
    everyone = members_of(
        here.world_size // settings["devices_per_node"],
        settings["devices_per_node"],
        settings["devices_per_node"],
    )
    own_store = dist.PrefixStore("pairs", store)
    group = Group(everyone, everyone[here.process.rank], own_store, device, interface)
    with joined(group):
        report["pairs"] = all_pairs(group)
    report["provenance"] = rank_provenance()
    barrier(store, "reported", here.world_size)
    leave(store, here.process.rank, here.world_size)
    return report


def _device(here: Surroundings) -> torch.device:
    """SLURM may show a process only its own GPU, or all of the node."""
    if here.device_kind == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if visible == 0:
        raise RuntimeError("the site says device: cuda, but torch finds no GPU on this node")
    index = 0 if visible == 1 else here.process.devices[0]
    if index >= visible:
        raise RuntimeError(f"the site has GPU {index} a node, but torch finds {visible} here")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _sweep_group(group: Group, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Every operation of torch's transport, by turns."""
    buffers = Buffers(settings["largest_bytes"], group.device)
    sweeps = {}
    for operation in OPERATIONS:
        if operation == "p2p" and len(group.members) != 2:
            continue

        def make(count: int, operation: str = operation) -> Callable[[], None]:
            return torch_operation(operation, count, buffers)

        sweeps[operation] = sweep_of(operation, settings["largest_bytes"], make)
    return measure(sweeps, group.transport, settings["budget_s"])


if __name__ == "__main__":
    tool_main(work)
