"""Links that are computed from a link's condition: what an emulated or planned network would do.

The all-reduce is gloo's ring (``allreduce.cc``): a buffer is cut into n segments of at most 1 MiB,
two of which are under way at a time, each asked for by its receiver before it is sent::

    n = roundUp(max(ceil(S / 1 MiB), 2P), P)
    T(S, P) = 2 ceil((n - n/P) / 2) R  +  2 (P-1)/P S / B  +  stalls

so latency counts by the segment, not by the call: 16 MiB over two ranks wait for 8 round trips.
B and stalls are TCP's (``tcp.py``). Where links of the undisturbed network were measured, their
all-reduce is a floor: a slow link does not make hosts faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.links import Links
from ddlbench.predict.link_table import AllReduce, Hop, LinkTable
from ddlbench.predict.tcp import TcpPath

__all__ = ["ConditionLinks", "gloo_all_reduce_s", "path_of"]

_SEGMENT_BYTES = 2**20
_WINDOW_BYTES = 4 * 2**20  # the largest send buffer of a Linux host (tcp_wmem) unless it was tuned


def path_of(condition: LinkCondition, window_bytes: float = _WINDOW_BYTES) -> TcpPath:
    """TCP between two nodes of a condition; packets pass one delay each way."""
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
    wanted = max(math.ceil(message_bytes / _SEGMENT_BYTES), 2 * ranks)
    segments = math.ceil(wanted / ranks) * ranks
    rounds = 2 * math.ceil((segments - segments // ranks) / 2)
    carried = 2 * (ranks - 1) / ranks * message_bytes / path.bandwidth_bytes_per_s
    stalls = rounds * path.stall_s(message_bytes / segments)
    return rounds * path.round_trip_s + carried + stalls


@dataclass(frozen=True)
class _Computed:
    """An all-reduce whose time is a formula; see ``AllReduce``."""

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
    """The links of a fabric that nobody measured, from its condition.

    Args:
        condition: delay, rate, loss between any two nodes.
        base: links of the undisturbed network, for what happens within a node and as a floor.
        name: of the fabric, for messages.
    """

    def __init__(self, condition: LinkCondition, base: LinkTable | None, name: str) -> None:
        super().__init__(base.links if base else _NO_LINKS, f"fabric {name}")
        self.path, self._base = path_of(condition), base
        self._note = f"links of fabric {name} are computed from its delay, rate and loss"

    def hop(self, kind: str, source: tuple[int, int], target: tuple[int, int]) -> tuple[Hop, str]:
        """Between nodes half a round trip and TCP's bandwidth; within a node as measured."""
        if source[0] == target[0]:
            found, remark = super().hop(kind, source, target)  # type: ignore[arg-type]
            return found, remark or self._note
        latency_s = self.path.round_trip_s / 2 + self.path.stall_s(1)
        return Hop(latency_s, self.path.bandwidth_bytes_per_s), self._note

    def all_reduce(self, nodes: int, devices_per_node: int, transport: str | None) -> AllReduce:
        """The ring of gloo over all ranks; within one node as measured."""
        if nodes < 2:
            return super().all_reduce(nodes, devices_per_node, transport)
        floor = None
        if self._base is not None and self._base.links.sweeps:
            floor = self._base.all_reduce(nodes, devices_per_node, transport)
        computed = _Computed(self.path, nodes * devices_per_node, floor, (self._note,))
        return computed  # type: ignore[return-value]  # the same two members
