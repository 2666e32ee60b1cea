"""Measured links: the hop between two devices, and the collectives of a geometry.

A table reads links.json. Links that are computed from a condition are in
:mod:`ddlbench.predict.inputs`. Times of collectives are those of their sweeps, else by formula::

    operation        message S counts              ring over P ranks, latency a, b seconds a byte
    all_reduce       the buffer of one rank        2 (P-1) a + 2 (P-1)/P S b
    reduce_scatter   the buffer that a rank gives    (P-1) a +   (P-1)/P S b
    all_gather       the part that a rank gives      (P-1) a +   (P-1)   S b
    broadcast        the buffer                      a binomial tree: ceil(log2 P) (a + S b)

A sweep over another number of ranks is carried to P by the ratio of the formula's terms.
Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import HockneyFit, given_hockney
from ddlbench.experiment.links import Links, LinkSweep, NodeRate, OfGroup, PairMatrix
from ddlbench.planning.plan import Plan

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
BROADCAST = "broadcast"


@dataclass(frozen=True)
class CollectiveTimes:
    """Times of a collective over a fixed number of ranks.

    ``alpha_factor`` and ``beta_factor`` scale the fit from its own number of ranks; both are 1 for
    the number of ranks that was swept.
    """

    fit: HockneyFit
    alpha_factor: float
    beta_factor: float
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        """Seconds of one collective with messages of ``message_bytes``."""
        alpha_s, beta_s_per_byte = self.fit.terms(message_bytes)
        return self.alpha_factor * alpha_s + self.beta_factor * beta_s_per_byte * message_bytes


def formula_terms(operation: str, ranks: int) -> tuple[float, float]:
    """Factors of latency and of seconds a byte in the formula's time."""
    if operation == BROADCAST:
        return (depth := math.ceil(math.log2(ranks))), depth
    passes = 2 if operation == ALL_REDUCE else 1
    share = 1 if operation == ALL_GATHER else 1 / ranks
    return passes * (ranks - 1), passes * (ranks - 1) * share


def carried_to(operation: str, fit: HockneyFit, swept: int, ranks: int) -> CollectiveTimes:
    """Times over ``ranks`` from a fit over ``swept`` of them."""
    if swept == ranks:
        return CollectiveTimes(fit, 1.0, 1.0, ())
    wanted, known = formula_terms(operation, ranks), formula_terms(operation, swept)
    name = operation.replace("_", "-")
    note = f"{name} over {ranks} ranks is carried from {swept} by its formula"
    return CollectiveTimes(fit, wanted[0] / known[0], wanted[1] / known[1], (note,))


def formula_times(
    operation: str, ranks: int, latency_s: float, bandwidth_bytes_per_s: float
) -> CollectiveTimes:
    """Times over links that were given by hand, whose collectives nobody measured."""
    alpha, beta = formula_terms(operation, ranks)
    fit = given_hockney(alpha * latency_s, bandwidth_bytes_per_s / beta)
    name = operation.replace("_", "-")
    note = f"{name} by its formula from links given by hand"
    return CollectiveTimes(fit, 1.0, 1.0, (note,))


_Measured = TypeVar("_Measured", bound=OfGroup)


def nearest_of(measured: Sequence[_Measured], nodes: int, devices_per_node: int) -> _Measured:
    """The measurement of this geometry, or else of the nearest number of ranks."""
    return min(
        measured,
        key=lambda sweep: (
            (sweep.nodes, sweep.devices_per_node) != (nodes, devices_per_node),
            abs(sweep.ranks - nodes * devices_per_node),
        ),
    )


def between(points: Sequence[tuple[float, float]], message_bytes: float) -> float:
    """Seconds at a size: linear between points, in proportion beyond the last one."""
    sizes, seconds = zip(*points, strict=True)
    if message_bytes > sizes[-1]:
        return float(seconds[-1] * message_bytes / sizes[-1])
    return float(np.interp(message_bytes, sizes, seconds))


@dataclass(frozen=True)
class Contention:
    """What a message takes from the computation beside it.

    A message that waits for the wire takes nothing; one that needs the core that computes delays
    the computation by its processor time.

    Args:
        exposed_share: of a message's time; used where processor times are unknown.
        notes: what was not measured.
        busy: bytes and processor seconds of messages, ascending.
        delay: seconds of delay a second of processor time.
    """

    exposed_share: float
    notes: tuple[str, ...]
    busy: Sequence[tuple[float, float]] = ()
    delay: float = 0.0

    def stolen_s(self, message_bytes: float, carried_s: float) -> float:
        """Seconds by which a message of so many bytes and seconds delays the computation."""
        if not self.busy:
            return self.exposed_share * carried_s
        return min(carried_s, self.delay * between(self.busy, message_bytes))


Kind = Literal["p2p", "transport"]
Place = tuple[int, int]  # node, index of the device on its node


def places_of(plan: Plan) -> list[Place]:
    """Node and first device of each rank of a plan."""
    return [(process.node, process.devices[0]) for process in plan.processes]


# In order of preference. p2p: what a link can do; transport: what training uses.
_METHODS: dict[Kind, tuple[str, ...]] = {
    "p2p": ("p2pBandwidthLatencyTest", "nvbandwidth", "device-copies", "given"),
    "transport": ("nccl", "horovod", "gloo", "given"),
}


@dataclass(frozen=True)
class Hop:
    """From one device to another: latency, and bytes per second after it."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, message_bytes: float) -> float:
        return self.latency_s + message_bytes / self.bandwidth_bytes_per_s

    def no_faster_than(self, other: Hop) -> Hop:
        """The longer latency and the lower bandwidth of both."""
        return Hop(
            max(self.latency_s, other.latency_s),
            min(self.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s),
        )


@dataclass
class LinkTable:
    """The links of one fabric.

    Args:
        links: a checked links file.
        where: the file, for messages.
        within_node: used within a node if ``links`` have nothing of that level. A cluster measures
            an emulated fabric with one device per node.
        node_rate_bytes_per_s: of a node's link by the fabric's condition; None if it has none.
    """

    links: Links
    where: str = "the links file"
    within_node: LinkTable | None = None
    node_rate_bytes_per_s: float | None = None
    _hops: dict[tuple[Kind, Place, Place], tuple[Hop, str | None]] = field(
        default_factory=dict, init=False
    )
    _slowest_hops: dict[tuple[int, bool], Hop | None] = field(default_factory=dict, init=False)

    def hop(self, kind: Kind, source: Place, target: Place) -> tuple[Hop, str | None]:
        """The hop between two devices, and a remark if it was measured between others.

        A pair that was not measured gets the slowest measured pair of its level (same node, or
        between nodes). Without a matrix of that level it gets the point-to-point sweep.

        Raises:
            ConfigError: the file has no links of that level.
        """
        key = (kind, source, target)
        if key not in self._hops:
            self._hops[key] = self._find(*key)
        return self._hops[key]

    def class_of(self, place: Place) -> Hashable:
        """Places of one class have equal hops within their nodes, and equal hops between nodes.

        Each place that a matrix names is a class. No matrix tells the others apart.
        """
        named = place if place in self._named else None
        return (place[1] if self._one_node else None), named

    @cached_property
    def _named(self) -> set[Place]:
        within = self.within_node._named if self.within_node else set()
        return within | {place for places in self._placed.values() for place in places}

    @cached_property
    def _one_node(self) -> bool:
        """Whether one node stands for all of its type, device by device."""
        within = self.within_node is not None and self.within_node._one_node
        return within or any(pair.scope == "node" for pair in self.links.pairs)

    def node_bytes_per_s(self, devices_per_node: int) -> float:
        """What all devices of a node send to other nodes at once, one way; infinite if unknown."""
        if self.node_rate_bytes_per_s is not None:
            return self.node_rate_bytes_per_s
        rate = self._node_rate(devices_per_node)
        return rate.node_bytes_per_s if rate else math.inf

    def cards(self, devices_per_node: int) -> float:
        """Devices of a node that send to other nodes at full rate at once; 1 if unknown.

        Some of the devices that were measured have their part of the cards.
        """
        rate = self._node_rate(devices_per_node)
        if self.node_rate_bytes_per_s is not None or rate is None:
            return 1.0
        return max(1.0, rate.cards * min(1.0, devices_per_node / rate.devices_per_node))

    def _node_rate(self, devices_per_node: int) -> NodeRate | None:
        rates = self.links.node_rates
        return nearest_of(rates, 2, devices_per_node) if rates else None

    def message_ends_s(self, level: str) -> Callable[[float], float] | None:
        """Processor seconds of sending and receiving a message, by its bytes; None if unknown.

        ``level`` is ``node`` or ``network``.
        """
        points: list[tuple[float, float]] = next(
            (
                [(point.message_bytes, 2 * point.cpu_s) for point in sweep.points if point.cpu_s]
                for sweep in self.links.sweeps
                if sweep.operation == "p2p" and sweep.level == level
            ),
            [],
        )
        if not points and level == "node" and self.within_node is not None:
            return self.within_node.message_ends_s(level)
        return (lambda size: between(points, size)) if points else None

    def ring(self, kind: Kind, plan: Plan) -> tuple[list[Hop], tuple[str, ...]]:
        """Hops of the ring over a plan's processes, in the order of ranks, the closing one last."""
        places = places_of(plan)
        return self._path(kind, places, [*places[1:], places[0]])

    def chain(self, kind: Kind, devices: Sequence[int]) -> tuple[list[Hop], tuple[str, ...]]:
        """Hops from each device of one node to the next."""
        places = [(0, device) for device in devices]
        return self._path(kind, places[:-1], places[1:])

    def all_reduce(
        self, nodes: int, devices_per_node: int, transport: str | None
    ) -> CollectiveTimes:
        """Times of the all-reduce of a geometry, through ``transport`` ("nccl", ...) if given."""
        return self.collective(ALL_REDUCE, nodes, devices_per_node, transport)

    def collective(
        self, operation: str, nodes: int, devices_per_node: int, transport: str | None
    ) -> CollectiveTimes:
        """Times of a collective over all ranks of a geometry; messages as links.json counts them.

        Raises:
            ConfigError: it was not swept at that level.
        """
        sweeps = self._sweeps(nodes, transport, operation)
        ranks = nodes * devices_per_node
        if not sweeps and any(pair.method == "given" for pair in self.links.pairs):
            hop, _ = self.hop("transport", (0, 0), (1, 0) if nodes > 1 else (0, 1))
            return formula_times(operation, ranks, hop.latency_s, hop.bandwidth_bytes_per_s)
        if not sweeps and nodes == 1 and self.within_node is not None:
            return self.within_node.collective(operation, nodes, devices_per_node, transport)
        if not sweeps:
            through = f" through {transport}" if transport else ""
            raise ConfigError(
                f"{self.where}: no {operation.replace('_', '-')}{through} was swept "
                f"{'between nodes' if nodes > 1 else 'within a node'}; measure the links again"
            )
        nearest = nearest_of(sweeps, nodes, devices_per_node)
        return carried_to(operation, nearest.fit, nearest.ranks, ranks)

    def sweeps_of(self, transport: str) -> bool:
        """Whether an all-reduce was swept through this transport or library."""
        return any(sweep.transport == transport for sweep in self.links.sweeps)

    def has_swept(self, library: str, nodes: int, operation: str) -> bool:
        """Whether a collective was swept through a library within a node, or between nodes."""
        level, inner = "network" if nodes > 1 else "node", self.within_node
        swept = (library, level, operation)
        known = any((s.transport, s.level, s.operation) == swept for s in self.links.sweeps)
        return known or (
            nodes == 1 and inner is not None and inner.has_swept(library, 1, operation)
        )

    def contention(self, nodes: int, devices_per_node: int, transport: str | None) -> Contention:
        """What an all-reduce takes from the computation beside it, by the nearest geometry.

        Where it was not measured, computation hides nothing on CPUs and all on GPUs.
        """
        overlaps = [
            overlap for overlap in self.links.overlaps if (overlap.nodes > 1) == (nodes > 1)
        ]
        if not overlaps and self.within_node is not None and nodes == 1:
            return self.within_node.contention(nodes, devices_per_node, transport)
        if not overlaps:
            is_cpu = self.links.device_kind == "cpu"
            hidden = "nothing" if is_cpu else "all"
            remark = f"overlap was not measured: {hidden} of a message is hidden"
            return Contention(float(is_cpu), (remark,))
        overlap = nearest_of(overlaps, nodes, devices_per_node)
        exposed = 1 - overlap.hidden_share
        of_overlap = self._busy(overlap.nodes, overlap.devices_per_node, overlap.transport)
        of_message = self._busy(nodes, devices_per_node, transport)
        if not (of_overlap and of_message):
            return Contention(exposed, ())
        delay_s = exposed * min(overlap.alone_s, overlap.compute_s)
        busy_s = between(of_overlap, overlap.message_bytes)
        return Contention(exposed, (), of_message, delay_s / busy_s if busy_s else 0.0)

    def tensor_s(self, library: str, operation: str, nodes: int, devices_per_node: int) -> float:
        """Seconds that each further tensor adds to a message; 0 where it was not measured."""
        cost = self._near(
            lambda links: [
                entry
                for entry in links.tensor_costs
                if (entry.library, entry.operation) == (library, operation)
            ],
            (nodes, devices_per_node),
        )
        return cost.tensor_s if cost else 0.0

    def delay_s(
        self, operation: str, transport: str | None, nodes: int, devices_per_node: int
    ) -> float:
        """Seconds by which a message that follows a computation is longer; 0 if unmeasured.

        A message between two devices has that of the whole group, whose cores all compute.
        """
        delay = self._near(
            lambda links: [
                entry
                for entry in links.delays
                if (entry.operation, entry.transport) == (operation, transport)
            ],
            (nodes, devices_per_node),
        )
        if delay is None:
            return 0.0
        alone_s = delay.alone_s
        if alone_s is None:
            swept = self.collective(operation, delay.nodes, delay.devices_per_node, transport)
            alone_s = swept.time_s(delay.message_bytes)
        return max(0.0, delay.after_s - alone_s)

    def slow_down_beside(self, library: str, nodes: int, devices_per_node: int) -> float:
        """Factor on computation beside an idle library; 1 where it was not measured."""
        background = self._near(
            lambda links: [entry for entry in links.backgrounds if entry.library == library],
            (nodes, devices_per_node),
        )
        return max(1.0, background.beside_s / background.alone_s) if background else 1.0

    def _near(
        self, measured_in: Callable[[Links], list[_Measured]], shape: tuple[int, int]
    ) -> _Measured | None:
        nodes, devices_per_node = shape
        entries = [entry for entry in measured_in(self.links) if (entry.nodes > 1) == (nodes > 1)]
        if entries:
            return nearest_of(entries, nodes, devices_per_node)
        if self.within_node is not None and nodes == 1:
            return self.within_node._near(measured_in, shape)
        return None

    def _sweeps(
        self, nodes: int, transport: str | None, operation: str = ALL_REDUCE
    ) -> list[LinkSweep]:
        level = "network" if nodes > 1 else "node"
        return [
            sweep
            for sweep in self.links.sweeps
            if sweep.operation == operation
            and sweep.level == level
            and (transport is None or sweep.transport in (transport, "given"))
        ]

    def _busy(
        self, nodes: int, devices_per_node: int, transport: str | None
    ) -> list[tuple[float, float]]:
        """Bytes and processor seconds of an all-reduce, ascending; empty if unknown.

        A library that works while it is idle does so beside messages, too. That part is in
        :meth:`slow_down_beside`: it is what messages use that use the processor least.
        """
        sweeps = self._sweeps(nodes, transport)
        if not sweeps:
            return []
        points = nearest_of(sweeps, nodes, devices_per_node).points
        known = [
            (point.message_bytes, point.time_s, point.cpu_s)
            for point in points
            if point.cpu_s is not None
        ]
        works_idle = any(point.library == transport for point in self.links.backgrounds)
        idle = min((cpu_s / time_s for _, time_s, cpu_s in known), default=0.0) * works_idle
        return [(size, max(0.0, cpu_s - idle * time_s)) for size, time_s, cpu_s in known]

    def _path(
        self, kind: Kind, sources: Sequence[Place], targets: Sequence[Place]
    ) -> tuple[list[Hop], tuple[str, ...]]:
        path = [self.hop(kind, a, b) for a, b in zip(sources, targets, strict=True)]
        remarks = dict.fromkeys(remark for _, remark in path if remark)
        return [hop for hop, _ in path], tuple(remarks)

    def _find(self, kind: Kind, source: Place, target: Place) -> tuple[Hop, str | None]:
        same_node = source[0] == target[0]
        level = "within a node" if same_node else "between nodes"
        for pair in self._matrices[kind]:
            places = self._placed[id(pair)]
            ends = (source, target)
            if pair.scope == "node":  # one node stands for all of its type
                ends = ((places[0][0], source[1]), (places[0][0], target[1]))
                if not same_node:
                    continue
            if ends[0] in places and ends[1] in places:
                measured = _hop(pair, places.index(ends[0]), places.index(ends[1]))
                if measured is not None:
                    return measured, None
            slowest = self._slowest(pair, same_node)
            if slowest is not None:
                remark = f"pairs {level} that were not measured are taken as the slowest that was"
                return slowest, remark
        return self._without_matrix(kind, source, target)

    def _slowest(self, pair: PairMatrix, same_node: bool) -> Hop | None:
        """The slowest measured pair of a level in a matrix, by a message of 1 MB."""
        key = (id(pair), same_node)
        if key not in self._slowest_hops:
            places = self._placed[id(pair)]
            hops = [
                hop
                for row, a in enumerate(places)
                for column, b in enumerate(places)
                if row != column and (a[0] == b[0]) == same_node
                for hop in [_hop(pair, row, column)]
                if hop is not None
            ]
            self._slowest_hops[key] = max(hops, key=lambda hop: hop.time_s(1e6), default=None)
        return self._slowest_hops[key]

    def _without_matrix(self, kind: Kind, source: Place, target: Place) -> tuple[Hop, str | None]:
        same_node = source[0] == target[0]
        level = "within a node" if same_node else "between nodes"
        for sweep in self.links.sweeps:
            if sweep.operation == "p2p" and sweep.level == ("node" if same_node else "network"):
                slope = sweep.fit.pieces[-1].beta_s_per_byte
                if slope > 0:
                    remark = f"{level} the point-to-point sweep of {sweep.transport} is used"
                    return Hop(sweep.fit.pieces[0].alpha_s, 1 / slope), remark
        if same_node and self.within_node is not None:
            hop, remark_within = self.within_node.hop(kind, source, target)
            return hop, remark_within or "links within a node are those of the site's own network"
        raise ConfigError(
            f"{self.where}: there are no links {level}; measure them, or give their latency and "
            "bandwidth in the site file"
        )

    @cached_property
    def _placed(self) -> dict[int, list[Place]]:
        """The places of each matrix, by its id."""
        return {id(pair): _places(pair) for pair in self.links.pairs}

    @cached_property
    def _matrices(self) -> dict[Kind, list[PairMatrix]]:
        """Pair matrices of each kind, best first: peer access on, one direction, writes."""
        return {
            kind: sorted(
                (pair for pair in self.links.pairs if pair.method in methods),
                key=lambda pair: (
                    methods.index(pair.method),
                    pair.access == "staged",
                    pair.direction == "bidirectional",
                    pair.operation == "read",
                ),
            )
            for kind, methods in _METHODS.items()
        }


def _places(pair: PairMatrix) -> list[Place]:
    seen: dict[int, int] = {}
    places = []
    for node in pair.nodes:
        places.append((node, seen.get(node, 0)))
        seen[node] = seen.get(node, 0) + 1
    return places


def _hop(pair: PairMatrix, row: int, column: int) -> Hop | None:
    """The hop of a pair; None if it was not measured, as in the sample of a large site."""
    latency_s = pair.latency_s[row][column]
    bandwidth_bytes_per_s = pair.bandwidth_bytes_per_s[row][column]
    if latency_s is None or bandwidth_bytes_per_s is None:
        return None
    return Hop(latency_s, bandwidth_bytes_per_s)
