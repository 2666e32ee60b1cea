"""Links: the hop between two devices, and the time of an all-reduce.

They are read from links.json, or computed from the condition of an emulated or planned network.

The all-reduce of computed links is gloo's ring (``allreduce.cc``): a buffer is cut into n segments
of at most 1 MiB. Two segments are under way at a time, and the receiver asks for each before it is
sent::

    n = roundUp(max(ceil(S / 1 MiB), 2P), P)
    T(S, P) = 2 ceil((n - n/P) / 2) R  +  2 (P-1)/P S / B  +  stalls

So latency counts per segment, not per call: 16 MiB over two ranks wait for 8 round trips. B and
stalls are TCP's. If links of the undisturbed network were measured, their all-reduce is a lower
bound: a slow link does not make hosts faster.

TCP over a link with a delay, a rate and loss has the bandwidth::

    B = min(rate, window / R, loss bound)         R: round trip

Loss bound, in segments per round trip (q: probability that a packet is lost):

* reno: sqrt(3/2) / sqrt(q)                                     Mathis et al. 1997
* cubic: the larger of reno's and 1.054 (R/q)^(3/4)             RFC 9438, section 5.1 (C = 0.4)
* bbr: does not slow down for loss (version 1): rate (1 - q)    Cardwell et al. 2016

Linux bounds the window by ``tcp_wmem``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.fits import HockneyFit, given_hockney
from ddlbench.experiment.links import Links, PairMatrix
from ddlbench.planning.plan import Plan

_HEADERS_BYTES = 52  # IPv4, TCP with timestamps
_MATHIS = math.sqrt(3 / 2)
_CUBIC = 1.054  # (C (3 + beta) / (4 (1 - beta)))^(1/4) with C = 0.4, beta = 0.7


@dataclass(frozen=True)
class TcpPath:
    """One direction between two hosts.

    Args:
        round_trip_s: of a packet and its answer with empty queues.
        rate_bytes_per_s: of the link; infinite if nothing bounds it.
        loss: probability that a packet is lost, 0 to below 1.
        mtu_bytes: largest packet.
        congestion_control: "cubic", "reno" or "bbr".
        window_bytes: bound on the bytes under way, from socket buffers.

    Raises:
        ConfigError: a number is out of range, or the congestion control has no formula here.
    """

    round_trip_s: float
    rate_bytes_per_s: float = math.inf
    loss: float = 0.0
    mtu_bytes: int = 1500
    congestion_control: str = "cubic"
    window_bytes: float = math.inf

    def __post_init__(self) -> None:
        if self.round_trip_s < 0 or not self.rate_bytes_per_s > 0 or not 0 <= self.loss < 1:
            raise ConfigError(
                f"a TCP path of round trip {self.round_trip_s} s, {self.rate_bytes_per_s} bytes/s "
                f"and loss {self.loss} is impossible; write a delay of 0 or more, a rate above 0 "
                "and a loss from 0 to below 1"
            )
        if self.congestion_control not in ("cubic", "reno", "bbr"):
            raise ConfigError(
                f"no formula for congestion control {self.congestion_control!r}; "
                "write cubic, reno or bbr"
            )

    @property
    def segment_bytes(self) -> int:
        """Payload of a full packet."""
        return self.mtu_bytes - _HEADERS_BYTES

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Payload per second of a long transfer."""
        payload = self.segment_bytes / self.mtu_bytes
        bandwidth = self.rate_bytes_per_s * payload * (1 - self.loss)
        if self.round_trip_s > 0:
            bandwidth = min(bandwidth, self.window_bytes / self.round_trip_s, self._loss_bound())
        return bandwidth

    def stall_s(self, message_bytes: float) -> float:
        """Expected wait for a lost packet at the end of a message.

        Fewer than three duplicate acknowledgements follow one of the last three packets. So its
        loss costs a tail loss probe, two round trips (RFC 8985, section 7.2).
        """
        packets = min(3, math.ceil(message_bytes / self.segment_bytes))
        return (1 - (1 - self.loss) ** packets) * 2 * self.round_trip_s

    def _loss_bound(self) -> float:
        if self.loss == 0 or self.congestion_control == "bbr":
            return math.inf
        window = _MATHIS / math.sqrt(self.loss)
        if self.congestion_control == "cubic":
            window = max(window, _CUBIC * (self.round_trip_s / self.loss) ** 0.75)
        return window * self.segment_bytes / self.round_trip_s


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


@dataclass(frozen=True)
class AllReduce:
    """Times of an all-reduce over a fixed number of ranks.

    ``alpha_factor`` and ``beta_factor`` scale the fit from its own number of ranks to P ranks, by
    the ring's 2(P-1) alpha + 2(P-1)/P S beta. Both are 1 for the number of ranks that was swept.
    """

    fit: HockneyFit
    alpha_factor: float
    beta_factor: float
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        """Seconds of one all-reduce of ``message_bytes`` per rank."""
        alpha_s, beta_s_per_byte = self.fit.terms(message_bytes)
        return self.alpha_factor * alpha_s + self.beta_factor * beta_s_per_byte * message_bytes


@dataclass
class LinkTable:
    """The links of one fabric.

    Args:
        links: a checked links file.
        where: the file, for messages.
        within_node: used within a node if ``links`` have nothing of that level. A cluster measures
            an emulated fabric with one device per node.
    """

    links: Links
    where: str = "the links file"
    within_node: LinkTable | None = None
    _hops: dict[tuple[Kind, Place, Place], tuple[Hop, str | None]] = field(default_factory=dict)

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

    def ring(self, kind: Kind, plan: Plan) -> tuple[list[Hop], tuple[str, ...]]:
        """Hops of the ring over a plan's processes, in the order of ranks, the closing one last."""
        places = places_of(plan)
        return self._path(kind, places, [*places[1:], places[0]])

    def chain(self, kind: Kind, devices: Sequence[int]) -> tuple[list[Hop], tuple[str, ...]]:
        """Hops from each device of one node to the next."""
        places = [(0, device) for device in devices]
        return self._path(kind, places[:-1], places[1:])

    def all_reduce(self, nodes: int, devices_per_node: int, transport: str | None) -> AllReduce:
        """Times of the all-reduce of a geometry, through ``transport`` ("nccl", ...) if given.

        Raises:
            ConfigError: no all-reduce of that level was swept.
        """
        level = "network" if nodes > 1 else "node"
        sweeps = [
            sweep
            for sweep in self.links.sweeps
            if sweep.operation == "all_reduce"
            and sweep.level == level
            and (transport is None or sweep.transport in (transport, "given"))
        ]
        if not sweeps and any(pair.method == "given" for pair in self.links.pairs):
            return self._ring_of_given_links(nodes, devices_per_node)
        if not sweeps and nodes == 1 and self.within_node is not None:
            return self.within_node.all_reduce(nodes, devices_per_node, transport)
        if not sweeps:
            through = f" through {transport}" if transport else ""
            raise ConfigError(
                f"{self.where}: no all-reduce{through} was swept "
                f"{'between nodes' if nodes > 1 else 'within a node'}; measure the links again"
            )
        ranks = nodes * devices_per_node
        nearest = min(
            sweeps,
            key=lambda sweep: (
                (sweep.nodes, sweep.devices_per_node) != (nodes, devices_per_node),
                abs(sweep.ranks - ranks),
            ),
        )
        swept = nearest.ranks
        if swept == ranks:
            return AllReduce(nearest.fit, 1.0, 1.0, ())
        note = f"all-reduce over {ranks} ranks is carried from {swept} by the ring's formula"
        return AllReduce(
            nearest.fit,
            (ranks - 1) / (swept - 1),
            ((ranks - 1) / ranks) / ((swept - 1) / swept),
            (note,),
        )

    def sweeps_of(self, transport: str) -> bool:
        """Whether an all-reduce was swept through this transport or library."""
        return any(sweep.transport == transport for sweep in self.links.sweeps)

    def hidden_share(self, nodes: int, devices_per_node: int) -> tuple[float, str | None]:
        """Share of an all-reduce that computation hides, of the nearest geometry, and a remark.

        Where it was not measured: nothing on CPUs, all on GPUs.
        """
        level = nodes > 1
        overlaps = [each for each in self.links.overlaps if (each.nodes > 1) == level]
        if not overlaps and self.within_node is not None and not level:
            return self.within_node.hidden_share(nodes, devices_per_node)
        if not overlaps:
            is_cpu = self.links.device_kind == "cpu"
            hidden = "nothing" if is_cpu else "all"
            return float(not is_cpu), f"overlap was not measured: {hidden} of a message is hidden"
        ranks = nodes * devices_per_node
        return min(overlaps, key=lambda each: abs(each.ranks - ranks)).hidden_share, None

    def _ring_of_given_links(self, nodes: int, devices_per_node: int) -> AllReduce:
        """Links that were given by hand have no all-reduce: the ring's formula computes it."""
        ranks = nodes * devices_per_node
        hop, _ = self.hop("transport", (0, 0), (1, 0) if nodes > 1 else (0, 1))
        fit = given_hockney(
            2 * (ranks - 1) * hop.latency_s,
            hop.bandwidth_bytes_per_s * ranks / (2 * (ranks - 1)),
        )
        note = "all-reduce by the ring's formula from links given by hand"
        return AllReduce(fit, 1.0, 1.0, (note,))

    def _path(
        self, kind: Kind, sources: Sequence[Place], targets: Sequence[Place]
    ) -> tuple[list[Hop], tuple[str, ...]]:
        path = [self.hop(kind, a, b) for a, b in zip(sources, targets, strict=True)]
        remarks = dict.fromkeys(remark for _, remark in path if remark)
        return [hop for hop, _ in path], tuple(remarks)

    def _find(self, kind: Kind, source: Place, target: Place) -> tuple[Hop, str | None]:
        same_node = source[0] == target[0]
        level = "within a node" if same_node else "between nodes"
        for pair in self._matrices(kind):
            places = _places(pair)
            ends = (source, target)
            if pair.scope == "node":  # one node stands for all of its type
                ends = ((places[0][0], source[1]), (places[0][0], target[1]))
                if not same_node:
                    continue
            if ends[0] in places and ends[1] in places:
                measured = _hop(pair, places.index(ends[0]), places.index(ends[1]))
                if measured is not None:
                    return measured, None
            same_level = [
                hop
                for row, a in enumerate(places)
                for column, b in enumerate(places)
                if row != column and (a[0] == b[0]) == same_node
                for hop in [_hop(pair, row, column)]
                if hop is not None
            ]
            if same_level:
                remark = f"pairs {level} that were not measured are taken as the slowest that was"
                return max(same_level, key=lambda hop: hop.time_s(1e6)), remark
        return self._without_matrix(kind, source, target)

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

    def _matrices(self, kind: Kind) -> list[PairMatrix]:
        """Pair matrices of a kind, best first: peer access on, one direction, writes."""
        methods = _METHODS[kind]
        return sorted(
            (pair for pair in self.links.pairs if pair.method in methods),
            key=lambda pair: (
                methods.index(pair.method),
                pair.access == "staged",
                pair.direction == "bidirectional",
                pair.operation == "read",
            ),
        )


def _places(pair: PairMatrix) -> list[Place]:
    """Node and index on it of every endpoint of a matrix."""
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


_SEGMENT_BYTES = 2**20
_WINDOW_BYTES = 4 * 2**20  # the largest send buffer of a Linux host (tcp_wmem) unless it was tuned


def path_of(condition: LinkCondition, window_bytes: float = _WINDOW_BYTES) -> TcpPath:
    """TCP between two nodes; packets pass the condition's delay once each way."""
    bits = condition.bandwidth_bits_per_s
    return TcpPath(
        round_trip_s=2 * condition.latency_s,
        rate_bytes_per_s=math.inf if bits is None else bits / 8,
        loss=condition.loss,
        mtu_bytes=condition.mtu,
        congestion_control=condition.congestion_control,
        window_bytes=window_bytes,
    )


def gloo_all_reduce_s(path: TcpPath, ranks: int, message_bytes: float) -> float:
    """Seconds of gloo's all-reduce over ``ranks`` hosts; see the module."""
    if ranks < 2 or message_bytes <= 0:
        return 0.0
    least = max(math.ceil(message_bytes / _SEGMENT_BYTES), 2 * ranks)
    segments = math.ceil(least / ranks) * ranks
    rounds = 2 * math.ceil((segments - segments // ranks) / 2)
    carried = 2 * (ranks - 1) / ranks * message_bytes / path.bandwidth_bytes_per_s
    stalls = rounds * path.stall_s(message_bytes / segments)
    return rounds * path.round_trip_s + carried + stalls


@dataclass(frozen=True)
class _Computed:
    """An :class:`AllReduce` whose time is a formula."""

    path: TcpPath
    ranks: int
    floor: AllReduce | None
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        computed_s = gloo_all_reduce_s(self.path, self.ranks, message_bytes)
        return max(computed_s, self.floor.time_s(message_bytes) if self.floor else 0.0)


_NO_LINKS = Links(
    site="", fabric="", device_kind="cpu", pairs=(), sweeps=(), notes=(), provenance={}
)


class ConditionLinks(LinkTable):
    """The links of a fabric that was not measured, computed from its condition.

    Args:
        condition: delay, rate, loss between any two nodes.
        base: links of the undisturbed network, used within a node and as a lower bound.
        name: of the fabric, for messages.
    """

    def __init__(self, condition: LinkCondition, base: LinkTable | None, name: str) -> None:
        super().__init__(base.links if base else _NO_LINKS, f"fabric {name}")
        self.path, self._base = path_of(condition), base
        self._note = f"links of fabric {name} are computed from its delay, rate and loss"

    def hop(self, kind: str, source: tuple[int, int], target: tuple[int, int]) -> tuple[Hop, str]:
        """Between nodes half a round trip and TCP's bandwidth; within a node as measured."""
        if source[0] == target[0]:
            hop, remark = super().hop(kind, source, target)  # type: ignore[arg-type]
            return hop, remark or self._note
        latency_s = self.path.round_trip_s / 2 + self.path.stall_s(1)
        return Hop(latency_s, self.path.bandwidth_bytes_per_s), self._note

    def all_reduce(self, nodes: int, devices_per_node: int, transport: str | None) -> AllReduce:
        """Between nodes gloo's ring over all ranks; within one node as measured."""
        if nodes < 2:
            return super().all_reduce(nodes, devices_per_node, transport)
        floor = None
        if self._base is not None and self._base.links.sweeps:
            floor = self._base.all_reduce(nodes, devices_per_node, transport)
        computed = _Computed(self.path, nodes * devices_per_node, floor, (self._note,))
        return computed  # type: ignore[return-value]  # the same two members
