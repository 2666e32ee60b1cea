"""Collectives and ping-pong over groups of ranks: ``python -m ddlbench.interconnect.sweep``.

::

    all ranks   | 1x2: gloo, DDP, Horovod | 1x4: ... | 2x1: ... |
    not in it   | waits                   |          | waits    |

A sweep of a slow link takes longer than was asked for, as four repeats of a long message do. So
each group gets its share of the time that the groups before it have left, and its sweeps end with
shorter messages where that is little.

Horovod runs only while its own messages are measured, as it communicates in every cycle.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
import time
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.collectives import LIMIT, Buffers, measure, sweep_of, torch_operation
from ddlbench.interconnect.delays import message_delays
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

# Of one group: five operations, two of DDP, two of FSDP, Horovod; and as long as two for the rest.
_SWEEPS = 12
_USUAL = 2.0  # times a sweep's budget, where no link is slow
_PARTS = ("sweeps", "overlaps", "backgrounds", "tensor_costs", "delays")


def work(here: RankContext) -> dict[str, Any]:
    """Measure as one rank; the report of rank 0 holds the results of all.

    Settings: ``worlds`` (lists of nodes, devices per node), ``largest_bytes``, ``budget_s`` of a
    sweep, ``limit_s`` of all, ``devices_per_node`` of the site.
    """
    began_s = time.monotonic()
    settings = here.settings
    device, interface = settle(here)
    store = join_store(here.host, here.port, here.process.rank, here.world_size)
    report: dict[str, Any] = {name: [] for name in _PARTS}
    report |= {"notes": [], "host": socket.gethostname()}
    no_horovod = _why_no_horovod(device)
    if no_horovod is not None:
        report["notes"].append(f"no sweep of Horovod: {no_horovod}")
    for place, (nodes, devices) in enumerate(settings["worlds"]):
        name = f"{nodes}x{devices}"
        if here.process.rank == 0:  # in every group
            left_s = settings["limit_s"] - (time.monotonic() - began_s)
            own_s = sweep_budget_s(settings["budget_s"], left_s, len(settings["worlds"]) - place)
            store.set(f"budget/{name}", str(own_s))
        limited = {**settings, "budget_s": float(store.get(f"budget/{name}"))}
        report["notes"] += _shortened(settings, limited, name)
        members = members_of(nodes, devices, settings["devices_per_node"])
        me = next((member for member in members if member.rank == here.process.rank), None)
        if me is not None and limited["budget_s"] > 0:
            group = Group(members, me, dist.PrefixStore(name, store), device, interface)
            shape = {"nodes": nodes, "devices_per_node": devices, "ranks": len(members)}
            measured = _measure_group(group, limited)
            if no_horovod is None:
                own, background = sweep_horovod(group, here.host, here.port, limited)
                measured["sweeps"] += own
                measured["backgrounds"] = [background]
            for part, entries in measured.items():
                report[part] += [{**entry, **shape} for entry in entries]
        barrier(store, f"done/{name}", here.world_size)
    report["provenance"] = rank_provenance()
    barrier(store, "reported", here.world_size)
    leave(store, here.process.rank, here.world_size)
    return report


def _measure_group(group: Group, settings: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """All but Horovod's messages, by part of the report."""
    device, on_cpu = group.device, group.device.type == "cpu"
    with joined(group):
        sweeps = _sweep_group(group, settings)
        costs = sharded_tensor_costs(device) if on_cpu else []
        delays = message_delays(device) if on_cpu else []
        overlap = measure_overlap(device, settings["largest_bytes"], settings["budget_s"])
    overlaps = [{"transport": group.transport, **overlap}]
    return {"sweeps": sweeps, "overlaps": overlaps, "tensor_costs": costs, "delays": delays}


def sweep_budget_s(asked_s: float, left_s: float, groups: int) -> float:
    """Seconds of each sweep of the next group; 0 if no time is left.

    The group can take :data:`LIMIT` times as long. Its sweeps have less than the site asks for
    only if those of all groups would not end, even at their usual length.

    Args:
        asked_s: by the site.
        left_s: of the job, for all groups that are left.
        groups: their number.
    """
    return max(0.0, min(asked_s, left_s / (_SWEEPS * max(LIMIT, _USUAL * groups))))


def _shortened(settings: dict[str, Any], limited: dict[str, Any], group: str) -> list[str]:
    """A note where a group's sweeps got less time than the site asks for."""
    asked_s, own_s = settings["budget_s"], limited["budget_s"]
    if own_s >= asked_s:
        return []
    got = f"{own_s:.2g} instead of {asked_s:g} s each" if own_s > 0 else "no time"
    return [f"sweeps of {group} got {got}, to end within the site's cell_timeout_s"]


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
