"""Collectives and ping-pong over groups of ranks: ``python -m ddlbench.interconnect.sweep``.

::

    all ranks   | pairs within a node | 2x4: gloo, DDP, FSDP, Horovod | 1x4: ... | 1x2: ... |
    not in it   |                     | waits                         |          | waits    |

A sweep of a slow link exceeds its budget, as it measures each message at least four times. So each
part gets its share of the time that the parts before it have left (``time_plan.Shares``). Its
sweeps end with shorter messages where that is little.

Horovod runs only while its own messages are measured, as it communicates in every cycle.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import socket
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.collectives import (
    Buffers,
    Group,
    joined,
    measure,
    settle,
    sweep_of,
    torch_operation,
)
from ddlbench.interconnect.node_pairs import measure_node
from ddlbench.interconnect.progress import tell
from ddlbench.interconnect.time_plan import (
    COLLECTIVES,
    COMPUTATION,
    DDP,
    FSDP,
    HOROVOD,
    OPERATIONS,
    Shares,
    delay_turns,
    name_of,
    steps_of,
)
from ddlbench.interconnect.training_sweep import (
    HorovodChild,
    measure_overlap,
    message_delays,
    sharded_tensor_costs,
    sweep_reducer,
    sweep_sharded,
)
from ddlbench.planning.plan import a_worker_each
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import barrier, join_store, leave
from ddlbench.strategies.horovod.executor import why_not_on

_PARTS = ("sweeps", "overlaps", "backgrounds", "tensor_costs", "delays")


def work(here: RankContext) -> dict[str, Any]:
    """Measure as one rank; the report of rank 0 holds the results of all.

    Settings: ``worlds`` (lists of nodes, devices per node, in the order of measurement), ``cores``
    that the ranks share, ``largest_bytes``, ``budget_s`` of a sweep, ``aim_s`` and ``limit_s`` of
    all, ``devices_per_node`` of the site, ``node_copies``: whether processes of a node copy to each
    other.
    """
    settings, rank = here.settings, here.process.rank
    groups = {
        name_of(nodes, devices): a_worker_each(nodes, devices, settings["devices_per_node"])
        for nodes, devices in settings["worlds"]
    }
    memberships = {
        name: member
        for name, members in groups.items()
        for member in members
        if member.rank == rank
    }
    installed = importlib.util.find_spec("horovod") is not None
    children = {name: HorovodChild() for name in memberships} if installed else {}
    device, interface = settle(here)
    store = join_store(here.host, here.port, rank, here.world_size)
    report: dict[str, Any] = {name: [] for name in _PARTS}
    report |= {"notes": [], "host": socket.gethostname()}
    no_horovod = _why_no_horovod(device)
    if no_horovod is not None:
        report["notes"].append(f"no sweep of Horovod: {no_horovod}")
    if device.type == "cpu" and settings["node_copies"]:
        report |= measure_node(here, store)
    turns = _Turns(store, rank, settings, horovod=no_horovod is None)
    for name, members in groups.items():
        if name in memberships:
            group_store = dist.PrefixStore(name, store)
            group = Group(members, memberships[name], group_store, device, interface)
            nodes, devices = map(int, name.split("x"))
            shape = {"nodes": nodes, "devices_per_node": devices}
            measured = _measure_group(name, group, settings, turns)
            if no_horovod is None and (budget_s := turns.begin(name, HOROVOD)) > 0:
                limited = {**settings, "budget_s": budget_s}
                try:
                    sweeps, background = children[name].sweep(group, here.host, here.port, limited)
                    measured["sweeps"] += sweeps
                    measured["backgrounds"] = [background]
                except RuntimeError as error:  # the other sweeps are kept
                    report["notes"].append(f"no sweep of Horovod over {name}: {error}")
            for part, entries in measured.items():
                report[part] += [{**entry, **shape, "ranks": len(members)} for entry in entries]
        barrier(store, f"done/{name}", here.world_size)
    report["notes"] += turns.notes()
    report["provenance"] = rank_provenance()
    barrier(store, "reported", here.world_size)
    leave(store, rank, here.world_size)
    return report


class _Turns:
    """The parts of all groups, one after the other; rank 0, which is in every group, leads."""

    def __init__(
        self, store: dist.Store, rank: int, settings: dict[str, Any], *, horovod: bool
    ) -> None:
        self._store, self._rank, self._budget_s = store, rank, settings["budget_s"]
        groups = tuple((nodes, devices) for nodes, devices in settings["worlds"])
        kind, cores = settings["device_kind"], settings["cores"]
        self._steps = steps_of(groups, kind, cores, horovod=horovod)
        parts = [part for _, part in self._steps]
        limits_s = (settings["aim_s"] or math.inf, settings["limit_s"])
        self._shares = Shares(parts, settings["budget_s"], *limits_s)
        self._budgets_s: dict[tuple[str, str], float] = {}

    def begin(self, group: str, part: str) -> float:
        """Seconds of each sweep of this part, the same on all ranks; 0 if no time is left."""
        key = f"budget/{group}/{part}"
        if self._rank == 0:
            budget_s, left_s = self._shares.begin()
            at = len(self._budgets_s) + 1
            tell(f"{part} of {group}, {at} of {len(self._steps)}", left_s)
            self._store.set(key, str(budget_s))
        self._budgets_s[group, part] = float(self._store.get(key))
        return self._budgets_s[group, part]

    def notes(self) -> list[str]:
        """The groups whose sweeps got less time than the site asks for, a sentence each."""
        notes = []
        for group in dict.fromkeys(group for group, _ in self._budgets_s):
            least_s = min(value for (name, _), value in self._budgets_s.items() if name == group)
            if least_s < self._budget_s:
                got = f"{least_s:.2g} instead of {self._budget_s:g} s each"
                notes.append(
                    f"sweeps of {group} got {got if least_s > 0 else 'no time'}, to end in time"
                )
        return notes


def _measure_group(
    name: str, group: Group, settings: dict[str, Any], turns: _Turns
) -> dict[str, list[dict[str, Any]]]:
    """What is measured without Horovod, by part of the report."""
    device, largest = group.device, settings["largest_bytes"]
    parts: dict[str, list[dict[str, Any]]] = {part: [] for part in _PARTS}
    with joined(group):
        if (budget_s := turns.begin(name, COLLECTIVES)) > 0:
            parts["sweeps"] += _sweep_group(group, largest, budget_s)
        if (budget_s := turns.begin(name, DDP)) > 0:
            parts["sweeps"] += sweep_reducer(device, largest, budget_s)
        # On GPUs FSDP's copies and messages run beside each other, which single messages hide.
        if device.type == "cpu" and (budget_s := turns.begin(name, FSDP)) > 0:
            parts["sweeps"] += sweep_sharded(device, largest, budget_s)
        if (budget_s := turns.begin(name, COMPUTATION)) > 0:
            if device.type == "cpu":
                parts["tensor_costs"] = sharded_tensor_costs(device)
                parts["delays"] = message_delays(device, delay_turns(budget_s))
            overlap = measure_overlap(device, largest, budget_s)
            parts["overlaps"] = [{"transport": group.transport, **overlap}]
    return parts


def _why_no_horovod(device: torch.device) -> str | None:
    """Why Horovod cannot be measured, the same on all ranks; None if it can."""
    if importlib.util.find_spec("horovod") is None:
        return "it is not installed on the nodes"
    if device.type == "cpu":
        return None
    return why_not_on(device, importlib.import_module("horovod.torch"))


def _sweep_group(group: Group, largest: int, budget_s: float) -> list[dict[str, Any]]:
    buffers = Buffers(largest, group.device)
    sweeps = {
        operation: sweep_of(
            operation, largest, partial(torch_operation, operation, buffers=buffers)
        )
        for operation in OPERATIONS
        if operation != "p2p" or len(group.members) == 2
    }
    return measure(sweeps, group.transport, budget_s)


if __name__ == "__main__":
    rank_job_main(work)
