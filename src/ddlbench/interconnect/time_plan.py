"""The plan of a measurement of links: which groups and messages, and how long each part takes.

The numbers that limit each part also foretell it::

    start | pairs within nodes | 2x4: collectives, DDP, ... | 1x4: ... | start | pairs of all ranks
            fixed                sweeps x budget + fixed                         passes x pairs

A site's sweeps get ``sweep_budget_s`` each. On one machine many ranks share its cores, and all
parts together get ``budget_s``: then each sweep gets its share of what is left, and fewer groups
are measured. The largest group comes first: if any sweeps take longer than planned, its do, and
the smaller groups make up for it.

The groups of ranks that are measured::

    within a node      1x2  1x3  1x4        one, and more, devices of the first node
    between nodes      2x1  3x1  4x1        one device of each node
    both               4x4                  all

Beyond eight the numbers double, as the cost of a collective changes slowly with many ranks.

No torch: a login node plans the job with this module, and foretells what it will take.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddlbench.common.statistics import doubled
from ddlbench.experiment.site import Interconnect, Site
from ddlbench.planning.budget import SchedulerRequest, request

OPERATIONS = ("p2p", "all_reduce", "broadcast", "all_gather", "reduce_scatter")
_EVERY_UP_TO = 8
_SMALLEST_BYTES = 1024


def worlds(nodes: int, devices_per_node: int, *, every: bool = True) -> list[tuple[int, int]]:
    """Groups as (nodes, devices per node), the smallest first; empty for a single device.

    Without ``every`` the numbers double from two on.
    """
    groups = [(1, count) for count in _counts(devices_per_node, every)]
    groups += [(count, 1) for count in _counts(nodes, every)]
    if nodes > 1 and devices_per_node > 1:
        groups.append((nodes, devices_per_node))
    return groups


def level_of(nodes: int) -> Literal["node", "network"]:
    """Level of the slowest link of a group."""
    return "network" if nodes > 1 else "node"


def message_sizes(largest_bytes: int) -> list[int]:
    """Powers of two from 1 KiB; each piece of a fit needs three sizes, also the last one."""
    return list(doubled(_SMALLEST_BYTES, largest_bytes))


def buffer_bytes(operation: str, message_bytes: int, ranks: int) -> int:
    """Bytes of a rank's largest buffer, which ``largest_bytes`` limits."""
    return message_bytes * ranks if operation == "all_gather" else message_bytes


def _counts(most: int, every: bool) -> list[int]:
    if most < 2:
        return []
    if not every:
        return [*doubled(2, most - 1), most]
    if most <= _EVERY_UP_TO:
        return list(range(2, most + 1))
    return [*range(2, _EVERY_UP_TO + 1), *doubled(2 * _EVERY_UP_TO, most - 1), most]


def is_given(site: Site, fabric: str) -> bool:
    """Whether the site file gives the links of this fabric, so that nothing is measured."""
    return fabric in site.interconnect.links


def links_geometry(site: Site, fabric: str) -> tuple[int, int]:
    """Nodes, and devices of each, whose links are measured.

    These are all of the site, or one device if nothing is measured. On a cluster, one real node
    emulates as many nodes as it has devices, or half as many of two devices where they have links
    inside their nodes.
    """
    if is_given(site, fabric):
        return 1, 1
    if site.launcher == "slurm" and site.emulates(fabric):
        per_node = 1 if copies_inside(site, fabric) else min(2, site.devices_per_node)
        return site.devices_per_node // per_node, per_node
    return site.nodes, site.devices_per_node


def copies_inside(site: Site, fabric: str) -> bool:
    """Whether devices of a node meet as the machine has it, so that its own copies tell of them."""
    condition = site.fabrics.get(fabric)
    return condition is None or condition.inside is None


def links_request(site: Site, fabric: str) -> SchedulerRequest:
    """The job of the devices whose links are measured."""
    return request(*links_shape(site, fabric), site)


def links_shape(site: Site, fabric: str) -> tuple[int, int]:
    """Real nodes, and devices of each, of that job."""
    return site.real_geometry(*links_geometry(site, fabric), fabric)


BUDGET_S = float(Interconnect.sweep_budget_s)  # of a sweep, where the site does not say
# A sweep may exceed its budget by this factor, for the sake of long messages.
LIMIT = 3.0
COMPUTE_S = 20e-3  # of a turn of message_delays(); longer than a slice of the scheduler
TURN_S = 11 * COMPUTE_S  # five messages after a computation, and six computations beside one
MOST_TURNS, LEAST_TURNS = 41, 11
MOST_PAIRS = 500
PASSES, MANY_PAIRS = 3, 240  # more pairs get a single pass

_SWEEPS_SHARE = 0.8  # of the job's time limit; the rest is for starts and for the last message
_ONE_MACHINE_S = 160.0  # of all parts, where the site does not say
_LEAST_BUDGET_S = 0.3  # of a sweep, however many share that time
# Seconds of a process that has a core to itself, as measured on ours. Processes that share a core
# take as many times longer.
_START_S = 3.0  # until its libraries are imported
_CLUSTER_START_S = 15.0  # the same from a file system that all nodes share
_MAKE_S = 0.6  # to make the modules of DDP or FSDP
_JOIN_HOROVOD_S = 2.0
_COMPUTATIONS_S = 1.4  # before Horovod and beside it
_PAIR_S = 0.1
_LEAST_PASSES_S = 10.0
_EMULATION_S = 10.0  # namespaces, and a probe of their links
_GPU_TOOL_S = 30.0  # five runs of NVIDIA's test
FIGURES_S = 6.0

COLLECTIVES, DDP, FSDP = "collectives", "DDP", "FSDP"
COMPUTATION, HOROVOD = "computation", "Horovod"
PAIRS = "pairs of ranks"


@dataclass(frozen=True)
class Part:
    """A part of what is measured over one group of ranks.

    Args:
        name: on the screen, and of its budget.
        sweeps: how many budgets of a sweep it takes.
        fixed_s: seconds that it takes beside them.
        usual: times its budget that a sweep takes; ranks that share cores need longer even for
            the fewest repeats.
        share: budgets of a sweep that each of its sweeps gets.
    """

    name: str
    sweeps: float
    fixed_s: float
    usual: float = 1.0
    share: float = 1.0

    @property
    def budgets(self) -> float:
        """Seconds of it for each second of a sweep's budget."""
        return self.sweeps * self.usual * self.share

    def seconds(self, budget_s: float) -> float:
        """What it takes if each of its sweeps gets ``budget_s``."""
        return self.budgets * budget_s + self.fixed_s


def parts_of(ranks: int, device_kind: str, crowd: float, *, horovod: bool) -> tuple[Part, ...]:
    """Parts of a group in the order of measurement; ``crowd`` processes share a core."""
    on_cpu = device_kind == "cpu"
    operations = len(OPERATIONS) - (ranks > 2)  # ping-pong is for two
    making_s, usual = _MAKE_S * crowd, min(crowd, LIMIT)
    parts = [Part(COLLECTIVES, operations, 0.0, usual), Part(DDP, 2, making_s, usual)]
    if on_cpu:
        turns = MOST_TURNS * TURN_S / BUDGET_S
        parts += [Part(FSDP, 2, making_s, usual), Part(COMPUTATION, turns + _OVERLAP, making_s)]
    else:
        parts.append(Part(COMPUTATION, _OVERLAP, 0.0))
    if horovod:
        fixed_s = _JOIN_HOROVOD_S * crowd + _COMPUTATIONS_S
        # Horovod negotiates each message, which takes long where cores are shared.
        parts.append(Part(HOROVOD, 1, fixed_s, usual, share=min(crowd, 4.0)))
    return tuple(parts)


_OVERLAP = 0.3  # of a sweep's budget, which is the most that it takes


def delay_turns(budget_s: float) -> int:
    """Turns of ``message_delays`` if each sweep gets ``budget_s``."""
    return max(LEAST_TURNS, min(MOST_TURNS, round(MOST_TURNS * budget_s / BUDGET_S)))


def crowd_of(ranks: int, cores: int | None) -> float:
    """Processes that share a core; ``cores`` is None where each has its own."""
    return max(1.0, ranks / cores) if cores else 1.0


def name_of(nodes: int, devices: int) -> str:
    """Name of a group."""
    return f"{nodes}x{devices}"


def steps_of(
    groups: Sequence[tuple[int, int]], device_kind: str, cores: int | None, *, horovod: bool
) -> list[tuple[str, Part]]:
    """Name of a group and a part of it, in the order of measurement; as :func:`parts_of`."""
    return [
        (name_of(nodes, devices), part)
        for nodes, devices in groups
        for ranks in [nodes * devices]
        for part in parts_of(ranks, device_kind, crowd_of(ranks, cores), horovod=horovod)
    ]


@dataclass(frozen=True)
class LinksPlan:
    """What is measured of a site's links, and how long it may take.

    Args:
        groups: nodes and devices of each, the largest first.
        cores: that all processes share; None where each has its own.
        device_kind: "cpu" or "cuda".
        sweep_s: seconds of a sweep, by the site.
        aim_s: seconds of the sweeps of all groups, if they must be shortened for it.
        limit_s: most seconds of them, by the job's time limit.
        before_s: until they begin.
        after_s: from their end on.
        passes_s: no pass over the pairs of ranks but the first goes on for longer.
    """

    groups: tuple[tuple[int, int], ...]
    cores: int | None
    device_kind: str
    sweep_s: float
    aim_s: float
    limit_s: float
    before_s: float
    after_s: float
    passes_s: float

    @property
    def sweeps_s(self) -> float:
        return min(self.aim_s, self.limit_s, self.of(self.sweep_s))

    def of(self, budget_s: float) -> float:
        """Seconds of the sweeps if each gets ``budget_s``."""
        horovod = importlib.util.find_spec("horovod") is not None
        steps = steps_of(self.groups, self.device_kind, self.cores, horovod=horovod)
        return sum(part.seconds(budget_s) for _, part in steps)

    @property
    def expected_s(self) -> float:
        return self.before_s + self.sweeps_s + self.after_s


def links_plan(site: Site, fabric: str) -> LinksPlan:
    """Plan the measurement of a site's links under one link condition."""
    if is_given(site, fabric):
        return LinksPlan((), None, site.device, 0.0, 0.0, 0.0, 0.0, FIGURES_S, 0.0)
    nodes, devices = links_geometry(site, fabric)
    ranks, here = nodes * devices, site.launcher == "local"
    cores = len(os.sched_getaffinity(0)) if here else None
    start_s = _START_S * crowd_of(ranks, cores) if here else _CLUSTER_START_S
    before_s, after_s = start_s, start_s + _pairs_s(ranks) + FIGURES_S
    if nodes > 1 and devices > 1:
        after_s += PASSES * (devices + 1) * _PAIR_S
    if site.emulates(fabric):
        before_s += _EMULATION_S
    if devices > 1 and copies_inside(site, fabric):
        before_s += PASSES * devices * (devices - 1) * _PAIR_S
        before_s += start_s + _GPU_TOOL_S if site.device == "cuda" else 0.0
    sweep_s = site.interconnect.sweep_budget_s
    groups = tuple(reversed(worlds(nodes, devices)))
    limit_s = _SWEEPS_SHARE * site.cell_timeout_s
    times = (sweep_s, math.inf, limit_s, before_s, after_s, math.inf)
    plan = LinksPlan(groups, cores, site.device, *times)
    all_s = site.interconnect.budget_s or (_ONE_MACHINE_S if here else math.inf)
    aim_s = max(all_s - before_s - after_s, plan.of(min(_LEAST_BUDGET_S, sweep_s)))
    if aim_s < plan.of(sweep_s):
        # Predictors carry a collective to numbers of ranks between those that were measured.
        groups = tuple(reversed(worlds(nodes, devices, every=False)))
    passes_s = max(_pairs_s(ranks), _LEAST_PASSES_S) if here else math.inf
    return replace(plan, groups=groups, aim_s=aim_s, passes_s=passes_s)


def _pairs_s(ranks: int) -> float:
    pairs = min(ranks * (ranks - 1), MOST_PAIRS)
    return pairs * passes_of(pairs) * _PAIR_S


def passes_of(pairs: int) -> int:
    """How often each of so many pairs of ranks is measured."""
    return PASSES if pairs <= MANY_PAIRS else 1


class Shares:
    """Shares the time of all sweeps among those that are left.

    Args:
        parts: in the order of measurement.
        sweep_s: most seconds of a sweep, by the site.
        aim_s: of all parts; a sweep of theirs gets a little time even if they take longer.
        limit_s: of all parts; no sweep begins that may take longer.
        clock: seconds.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        sweep_s: float,
        aim_s: float,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts, self._sweep_s = tuple(parts), sweep_s
        self._aim_s, self._limit_s = aim_s, limit_s
        self._clock, self._began_s = clock, clock()
        self._at, self._planned_s = 0, 0.0

    def begin(self) -> tuple[float, float]:
        """Begin the next part, and so end the one before it.

        Returns:
            seconds of each of its sweeps, 0 if no time is left, and expected seconds of all parts
            that are left.
        """
        taken_s = self._clock() - self._began_s
        pace = min(max(taken_s / self._planned_s, 0.3), 2.0) if self._planned_s else 1.0
        left = self._parts[self._at :]
        this = left[0]
        budgets = sum(part.budgets for part in left)
        busy_s = taken_s + sum(part.fixed_s for part in left)
        wanted_s = max((self._aim_s - busy_s) / budgets, _LEAST_BUDGET_S)
        # Were all sweeps of this part to reach their limit, the others would still have time.
        most = max(LIMIT * this.sweeps * this.share, this.budgets) + budgets - this.budgets
        each_s = max(0.0, min(self._sweep_s, wanted_s, (self._limit_s - busy_s) / most))
        self._at += 1
        self._planned_s += this.seconds(each_s)
        left_s = pace * sum(part.seconds(each_s) for part in left)
        return each_s * this.share, min(left_s, max(0.0, self._limit_s - taken_s))
