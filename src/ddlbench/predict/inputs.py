"""The inputs of predictors: a profile a network, and links a fabric, measured or computed.

Links that nobody measured are computed from the condition of an emulated or planned network, for
TCP and for gloo over it. The all-reduce is gloo's ring (``allreduce.cc``): a buffer is cut into n
segments of at most 1 MiB. Two segments are under way at a time, and the receiver asks for each
before it is sent::

    n = roundUp(max(ceil(S / 1 MiB), 2P), P)
    T(S, P) = 2 ceil((n - n/P) / 2) R  +  2 (P-1)/P S / B  +  stalls

So latency counts per segment, not per call: 16 MiB over two ranks wait for 8 round trips. B and
stalls are TCP's. If links of the undisturbed network were measured, their all-reduce and their hops
are lower bounds: a slow link does not make hosts faster.

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
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import making_command
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.links import Links, read_links
from ddlbench.experiment.paths import RESULTS, links_file, profile_file
from ddlbench.experiment.profile import InvalidProfile, ProfileKey, read_profile
from ddlbench.experiment.site import load_site
from ddlbench.planning.plan import BlockSource
from ddlbench.planning.recomputation import RecomputedWorkload, recomputes
from ddlbench.planning.workload import Workload
from ddlbench.predict.calibration import read_calibration
from ddlbench.predict.links import ALL_REDUCE, CollectiveTimes, Hop, LinkTable


def open_workload(path: Path) -> Workload:
    """Read a profile.

    Raises:
        InvalidProfile: the file is missing, or does not fit the schema.
    """
    return Workload(read_profile(path).to_dict(), str(path))


def open_links(path: Path) -> LinkTable:
    """Read a links file.

    Raises:
        ConfigError: the file is missing or does not fit the schema, a matrix has a hole, or a
            bandwidth is not above zero.
    """
    return LinkTable(read_links(path), str(path))


class Inputs:
    """The profiles and links of one site, each read once.

    Calibrated predictions take the constants of the site's calibration, if it has one.
    """

    def __init__(self, site: str, results_root: Path = RESULTS, *, calibrated: bool = True) -> None:
        self.site, self._root = site, results_root
        self._workload_of, self._links_of = cache(self._workload), cache(self._links)
        self._recomputed = cache(RecomputedWorkload)
        self.calibration = read_calibration(site, results_root) if calibrated else None

    def workload(self, cell: Cell) -> Workload:
        """The profile of a cell's network and dataset.

        Raises:
            InvalidProfile: it is missing or wrong; the message gives the command that makes it.
        """
        if cell.compile:
            raise InvalidProfile("profiles are of layers that are not compiled; this cell's are")
        try:
            measured = self._workload_of(ProfileKey.of(cell))
        except FileNotFoundError:
            missing = self.missing(cell)
            raise InvalidProfile(
                f"there is no profile of {cell.network} on {cell.dataset} at site {self.site}; "
                f"make {'it' if len(missing) == 1 else 'what is missing'} with: "
                f"{making_command(self.site, missing)}"
            ) from None
        return self._recomputed(measured) if recomputes(cell) else measured

    def check(self, cells: Sequence[Cell]) -> None:
        """Raise InvalidProfile, which names all that is missing, unless the cells have a profile.

        Of one network, the cell with the most devices needs all files that the others need.
        """
        self.workload(max(cells, key=lambda cell: cell.devices))

    def block_source(self, cell: Cell) -> BlockSource:
        """Where the cell's plan reads the times of blocks."""
        return self.site

    def missing(self, cell: Cell) -> list[Path]:
        """Files that predictions of a cell need and that the workflow can make."""
        wanted = [profile_file(self.site, ProfileKey.of(cell).id)]
        # Links of a condition that was not measured are computed from the condition.
        if cell.devices > 1 and cell.fabric not in self._conditions:
            wanted.append(links_file(self.site, cell.fabric))
        return [path for path in wanted if not self._at(path).is_file()]

    def links(self, cell: Cell) -> LinkTable | None:
        """The links of a cell's fabric, or None.

        Links that were not measured are computed from the fabric's condition in the site file; None
        if it has no condition either.

        Raises:
            ConfigError: the links file is wrong.
        """
        return self._links_of(cell.fabric)

    def _at(self, path: Path) -> Path:
        return self._root / path.relative_to(RESULTS)

    def _workload(self, key: ProfileKey) -> Workload:
        path = self._at(profile_file(self.site, key.id))
        if not path.is_file():
            raise FileNotFoundError(path)
        return open_workload(path)

    def _links(self, fabric: str) -> LinkTable | None:
        path = self._at(links_file(self.site, fabric))
        condition = self._conditions.get(fabric)
        if condition is None:
            return open_links(path) if path.is_file() else None
        computed = ConditionLinks(condition, self._links_of("default"), fabric)
        if not path.is_file():
            return computed
        # Of a fabric that says nothing of links within a node, those are the machine's.
        links = self._links_of("default") if condition.inside is None else computed
        rate = computed.node_rate_bytes_per_s
        return replace(open_links(path), within_node=links, node_rate_bytes_per_s=rate)

    @cached_property
    def _conditions(self) -> Mapping[str, LinkCondition]:
        try:
            return load_site(self.site).fabrics
        except ConfigError:  # results of a site whose file is elsewhere
            return {}


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
        ConfigError: the congestion control has no formula here.
    """

    round_trip_s: float
    rate_bytes_per_s: float = math.inf
    loss: float = 0.0
    mtu_bytes: int = 1500
    congestion_control: str = "cubic"
    window_bytes: float = math.inf

    def __post_init__(self) -> None:
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
    def payload_bytes_per_s(self) -> float:
        """Payload per second that the link carries, of all its connections."""
        payload = self.segment_bytes / self.mtu_bytes
        return self.rate_bytes_per_s * payload * (1 - self.loss)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Payload per second of a long transfer."""
        bandwidth = self.payload_bytes_per_s
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


_SEGMENT_BYTES = 2**20
_WINDOW_BYTES = 4 * 2**20  # the largest send buffer of a Linux host (tcp_wmem) unless it was tuned


def path_of(condition: LinkCondition) -> TcpPath:
    """TCP between two nodes; packets pass the condition's delay once each way."""
    bits = condition.bandwidth_bits_per_s
    return TcpPath(
        round_trip_s=2 * condition.latency_s,
        rate_bytes_per_s=math.inf if bits is None else bits / 8,
        loss=condition.loss,
        mtu_bytes=condition.mtu,
        congestion_control=condition.congestion_control,
        window_bytes=_WINDOW_BYTES,
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
    """An :class:`CollectiveTimes` whose time is a formula.

    A ring is as slow as its slowest kind of links, between nodes or inside them.
    """

    paths: tuple[TcpPath, ...]
    ranks: int
    floor: CollectiveTimes | None
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        computed_s = max(gloo_all_reduce_s(path, self.ranks, message_bytes) for path in self.paths)
        return max(computed_s, self.floor.time_s(message_bytes) if self.floor else 0.0)


_NO_LINKS = Links(
    site="", fabric="", device_kind="cpu", pairs=(), sweeps=(), notes=(), provenance={}
)


class ConditionLinks(LinkTable):
    """The links of a fabric that was not measured, computed from its condition.

    Args:
        condition: delay, rate, loss between any two nodes, and of links inside each, if it has any.
        base: links of the undisturbed network, used within a node whose links have no condition,
            and as a lower bound.
        name: of the fabric, for messages.
    """

    def __init__(self, condition: LinkCondition, base: LinkTable | None, name: str) -> None:
        super().__init__(base.links if base else _NO_LINKS, f"fabric {name}")
        self.path, self._base = path_of(condition), base
        self.node_rate_bytes_per_s = self.path.payload_bytes_per_s
        self._inside = None if condition.inside is None else path_of(condition.inside)
        self._note = f"links of fabric {name} are computed from its delay, rate and loss"

    def hop(self, kind: str, source: tuple[int, int], target: tuple[int, int]) -> tuple[Hop, str]:
        """Half a round trip and TCP's bandwidth, but no faster than the undisturbed network.

        Within a node as measured if it has no path.
        """
        path = self._inside if source[0] == target[0] else self.path
        if path is None:
            hop, remark = super().hop(kind, source, target)  # type: ignore[arg-type]
            return hop, remark or self._note
        if path.bandwidth_bytes_per_s == math.inf and self._base is not None:
            return self._base.hop(kind, source, target)  # type: ignore[arg-type,return-value]
        computed = Hop(path.round_trip_s / 2 + path.stall_s(1), path.bandwidth_bytes_per_s)
        if self._base is not None:
            with suppress(ConfigError):  # nobody has measured such a hop
                hop, _ = self._base.hop(kind, source, target)  # type: ignore[arg-type]
                computed = computed.no_faster_than(hop)
        return computed, self._note

    def class_of(self, place: tuple[int, int]) -> Hashable:
        """The class in the undisturbed network, whose hops some pairs have."""
        return super().class_of(place) if self._base is None else self._base.class_of(place)

    def collective(
        self, operation: str, nodes: int, devices_per_node: int, transport: str | None
    ) -> CollectiveTimes:
        """Gloo's all-reduce over all ranks; within a node whose links have no path as measured.

        Raises:
            ConfigError: another collective, for which no formula is known.
        """
        paths = [self.path] if nodes > 1 else []
        if self._inside is not None and devices_per_node > 1:
            paths.append(self._inside)
        if not paths:
            return super().collective(operation, nodes, devices_per_node, transport)
        if operation != ALL_REDUCE:
            raise ConfigError(
                f"{self.where}: no formula gives the {operation.replace('_', '-')} of a fabric "
                "that was not measured; measure its links"
            )
        floor = None
        if self._base is not None and self._base.links.sweeps:
            floor = self._base.all_reduce(nodes, devices_per_node, transport)
        computed = _Computed(tuple(paths), nodes * devices_per_node, floor, (self._note,))
        return computed  # type: ignore[return-value]  # the same two members
