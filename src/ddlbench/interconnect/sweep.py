"""Collectives and ping-pong over groups of ranks: ``python -m ddlbench.interconnect.sweep``.

::

    all ranks   | 1x2: gloo, DDP, Horovod | 1x4: ... | 2x1: ... |
    not in it   | waits                   |          | waits    |

Horovod runs only while its own messages are measured, as it communicates in every cycle.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.collectives import Buffers, measure, sweep_of, torch_operation
from ddlbench.interconnect.group import Group, joined, members_of, settle
from ddlbench.interconnect.horovod_sweep import sweep_horovod
from ddlbench.interconnect.training_sweep import (
    measure_overlap,
    sharded_tensor_costs,
    sweep_reducer,
    sweep_sharded,
)
from ddlbench.interconnect.worlds import OPERATIONS
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import barrier, join_store, leave
from ddlbench.strategies.horovod.executor import why_not_on


def work(here: RankContext) -> dict[str, Any]:
    """Measure as one rank; the report of rank 0 holds the results of all.

    Settings: ``worlds`` (lists of nodes, devices per node), ``largest_bytes``, ``budget_s`` of a
    sweep, ``devices_per_node`` of the site.
    """
    settings = here.settings
    device, interface = settle(here)
    store = join_store(here.host, here.port, here.process.rank, here.world_size)
    report: dict[str, Any] = {
        "sweeps": [],
        "overlaps": [],
        "backgrounds": [],
        "tensor_costs": [],
        "notes": [],
        "host": socket.gethostname(),
    }
    no_horovod = _why_no_horovod(device)
    if no_horovod is not None:
        report["notes"].append(f"no sweep of Horovod: {no_horovod}")
    for nodes, devices in settings["worlds"]:
        members = members_of(nodes, devices, settings["devices_per_node"])
        me = next((member for member in members if member.rank == here.process.rank), None)
        if me is not None:
            own_store = dist.PrefixStore(f"{nodes}x{devices}", store)
            group = Group(members, me, own_store, device, interface)
            shape = {"nodes": nodes, "devices_per_node": devices, "ranks": len(members)}
            with joined(group):
                sweeps = _sweep_group(group, settings)
                costs = sharded_tensor_costs(device) if device.type == "cpu" else []
                overlap = measure_overlap(device, settings["largest_bytes"])
            report["tensor_costs"] += [{**cost, **shape} for cost in costs]
            report["overlaps"].append({"transport": group.transport, **overlap, **shape})
            if no_horovod is None:
                own, background = sweep_horovod(group, here.host, here.port, settings)
                sweeps += own
                report["backgrounds"].append({**background, **shape})
            report["sweeps"] += [{**sweep, **shape} for sweep in sweeps]
        barrier(store, f"done/{nodes}x{devices}", here.world_size)
    report["provenance"] = rank_provenance()
    barrier(store, "reported", here.world_size)
    leave(store, here.process.rank, here.world_size)
    return report


def _why_no_horovod(device: torch.device) -> str | None:
    """Why Horovod cannot be measured, the same on all ranks; None if it can."""
    if importlib.util.find_spec("horovod") is None:
        return "it is not installed on the nodes"
    if device.type == "cpu":
        return None
    return why_not_on(device, importlib.import_module("horovod.torch"))


def _sweep_group(group: Group, settings: dict[str, Any]) -> list[dict[str, Any]]:
    buffers = Buffers(settings["largest_bytes"], group.device)
    sweeps = {
        operation: sweep_of(
            operation,
            settings["largest_bytes"],
            partial(torch_operation, operation, buffers=buffers),
        )
        for operation in OPERATIONS
        if operation != "p2p" or len(group.members) == 2
    }
    limits = settings["largest_bytes"], settings["budget_s"]
    measured = measure(sweeps, group.transport, settings["budget_s"])
    measured += sweep_reducer(group.device, *limits)
    # On GPUs FSDP's copies and messages run beside each other, which single messages do not show.
    return measured + (sweep_sharded(group.device, *limits) if group.device.type == "cpu" else [])


if __name__ == "__main__":
    rank_job_main(work)
