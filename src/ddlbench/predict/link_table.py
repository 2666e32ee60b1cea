"""A read-only view of links.json: the hop between two devices, the time of an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fits import HockneyFit, given_hockney
from ddlbench.experiment.links import Links, PairMatrix
from ddlbench.planning.plan import Plan

__all__ = ["AllReduce", "Hop", "Kind", "LinkTable", "Place"]

Kind = Literal["p2p", "transport"]
Place = tuple[int, int]  # node, index of the device on its node

# In order of preference. p2p is what a link can do; transport is what training sends through.
_METHODS: dict[Kind, tuple[str, ...]] = {
    "p2p": ("p2pBandwidthLatencyTest", "nvbandwidth", "device-copies", "given"),
    "transport": ("nccl", "horovod", "gloo", "given"),
}


@dataclass(frozen=True)
class Hop:
    """From one device to another: seconds before the first byte, bytes a second after it."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, message_bytes: float) -> float:
        """Time of one message."""
        return self.latency_s + message_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class AllReduce:
    """Times of an all-reduce over a fixed number of ranks.

    ``alpha_factor`` and ``beta_factor`` carry the fit from the ranks it was swept with to those
    asked for, by the ring's 2(P-1) alpha + 2(P-1)/P S beta; both are 1 where it was swept.
    """

    fit: HockneyFit
    alpha_factor: float
    beta_factor: float
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        """Time of one all-reduce of so many bytes a rank."""
        alpha_s, beta_s_per_byte = self.fit.terms(message_bytes)
        return self.alpha_factor * alpha_s + self.beta_factor * beta_s_per_byte * message_bytes


@dataclass
class LinkTable:
    """The links of one fabric.

    Args:
        links: a links file that was checked.
        where: the file, for messages.
        within_node: serves within a node where ``links`` hold nothing of that level: an emulated
            fabric that a cluster measured has one device a node.
    """

    links: Links
    where: str = "the links file"
    within_node: LinkTable | None = None
    _hops: dict[tuple[Kind, Place, Place], tuple[Hop, str | None]] = field(default_factory=dict)

    def hop(self, kind: Kind, source: Place, target: Place) -> tuple[Hop, str | None]:
        """The hop between two devices, and a remark where it stands for another pair.

        A pair that was not measured gets the slowest measured one of its level (same node, or
        across nodes); across nodes a point-to-point sweep serves where no matrix does.

        Raises:
            ConfigError: the file holds nothing of that level.
        """
        key = (kind, source, target)
        if key not in self._hops:
            self._hops[key] = self._find(*key)
        return self._hops[key]

    def ring(self, kind: Kind, plan: Plan) -> tuple[list[Hop], tuple[str, ...]]:
        """Hops of the ring over a plan's processes, in the order of ranks, the closing one last."""
        places = [(process.node, process.devices[0]) for process in plan.processes]
        return self._path(kind, places, [*places[1:], places[0]])

    def chain(self, kind: Kind, devices: Sequence[int]) -> tuple[list[Hop], tuple[str, ...]]:
        """Hops from each device of one node to the next."""
        places = [(0, device) for device in devices]
        return self._path(kind, places[:-1], places[1:])

    def all_reduce(self, nodes: int, devices_per_node: int, transport: str | None) -> AllReduce:
        """Times of the all-reduce of a geometry, of ``transport`` ("nccl", ...) where given.

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

    def _ring_of_given_links(self, nodes: int, devices_per_node: int) -> AllReduce:
        """Links given by hand hold no collective: the ring's formula makes one of their hops."""
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
        found = [self.hop(kind, a, b) for a, b in zip(sources, targets, strict=True)]
        remarks = dict.fromkeys(remark for _, remark in found if remark)
        return [hop for hop, _ in found], tuple(remarks)

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
                found = _hop(pair, places.index(ends[0]), places.index(ends[1]))
                if found is not None:
                    return found, None
            alike = [
                hop
                for row, a in enumerate(places)
                for column, b in enumerate(places)
                if row != column and (a[0] == b[0]) == same_node
                for hop in [_hop(pair, row, column)]
                if hop is not None
            ]
            if alike:
                remark = f"pairs {level} that were not measured are taken as the slowest that was"
                return max(alike, key=lambda hop: hop.time_s(1e6)), remark
        return self._swept(kind, source, target)

    def _swept(self, kind: Kind, source: Place, target: Place) -> tuple[Hop, str | None]:
        same_node = source[0] == target[0]
        wanted = "node" if same_node else "network"
        level = "within a node" if same_node else "between nodes"
        for sweep in self.links.sweeps:
            if sweep.operation == "p2p" and sweep.level == wanted:
                pieces = sweep.fit.pieces
                slope = pieces[-1].beta_s_per_byte
                if slope > 0:
                    remark = f"{level} the point-to-point sweep of {sweep.transport} is used"
                    return Hop(pieces[0].alpha_s, 1 / slope), remark
        if same_node and self.within_node is not None:
            found, more = self.within_node.hop(kind, source, target)
            return found, more or "links within a node are those of the site's own network"
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
    """None where a pair was not measured, as in the sample of a large site."""
    latency_s = pair.latency_s[row][column]
    bandwidth_bytes_per_s = pair.bandwidth_bytes_per_s[row][column]
    if latency_s is None or bandwidth_bytes_per_s is None:
        return None
    return Hop(latency_s, bandwidth_bytes_per_s)
