"""Links of a cluster that nobody measured, from data sheets and a fabric's latency.

::

    T = min(0.32 A + c S / (0.5 B), A + c S / B)     two protocols of NCCL: low latency, full rate

    A    one node: 8.4 us + 2 (n - 1) 3.4 us; k nodes: the fabric's latency times k
    B    one node: 0.77 of what a device sends, 1.07 where a switch sums (5 devices or more);
         k nodes: that, or the network cards of the group's devices on a node x 0.97
    c    all-reduce 2 (n - 1) / n, reduce-scatter half of it; the others in docs of their formula

Half of A for a gather or scatter. A group with fewer devices a node adds less: a hop between nodes
and those inside. Source: NCCL, src/graph/tuning.cc (latencies); SimAI (NSDI 2025); rates from
published sweeps of nccl-tests (docs/oracle.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ddlbench.experiment.links import Links
from ddlbench.predict.hardware import System
from ddlbench.predict.links import (
    ALL_REDUCE,
    BROADCAST,
    CollectiveTimes,
    Hop,
    LinkTable,
    formula_terms,
)

BASE_S, HOP_S = 8.4e-6, 3.4e-6
LOW_LATENCY, LOW_RATE = 0.32, 0.5
NODE_SHARE, SWITCH_SHARE, CARD_SHARE = 0.77, 1.07, 0.97
SWITCH_DEVICES = 5
NODE_DEVICES = 8
"""Devices of the nodes that a fabric's latency was measured on."""
MESH_SHARE = 1 / 6
"""Of what a device sends, to one other in a mesh of eight (DGX-1: one or two of six links)."""
_NOTE = "links are those of data sheets, their collectives by the form of docs/oracle.md"


@dataclass(frozen=True)
class _SheetTimes:
    """A :class:`CollectiveTimes` of two protocols.

    Args:
        latency_s: A.
        s_per_byte: c / B.
        notes: on the links.
    """

    latency_s: float
    s_per_byte: float
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        if message_bytes <= 0:
            return 0.0
        carried_s = message_bytes * self.s_per_byte
        low = LOW_LATENCY * self.latency_s + carried_s / LOW_RATE
        return min(low, self.latency_s + carried_s)


class PlannedLinks(LinkTable):
    """The links of a system, for whichever group of its devices.

    Args:
        system: devices and fabric; larger groups than its geometry have the same form.
    """

    def __init__(self, system: System) -> None:
        nothing = Links(
            site="", fabric="", device_kind="cuda", pairs=(), sweeps=(), notes=(), provenance={}
        )
        super().__init__(nothing, "the data sheets")
        self._system = system

    def hop(self, kind: str, source: tuple[int, int], target: tuple[int, int]) -> tuple[Hop, str]:
        """A device's link, or its part of the network cards."""
        return self._within if source[0] == target[0] else self._between

    @cached_property
    def _within(self) -> tuple[Hop, str]:
        link = self._system.device.link
        share = NODE_SHARE if link.all_to_all or link.name == "PCIe" else MESH_SHARE
        return Hop(BASE_S + HOP_S, share * link.bytes_per_s), _NOTE

    @cached_property
    def _between(self) -> tuple[Hop, str]:
        fabric = self._system.fabric
        if fabric is None:
            return self._within
        return Hop(BASE_S + fabric.message_s, CARD_SHARE * fabric.bytes_per_s), _NOTE

    def collective(
        self, operation: str, nodes: int, devices_per_node: int, transport: str | None
    ) -> CollectiveTimes:
        """By the form of this module; messages as links.json counts them."""
        ranks = nodes * devices_per_node
        passes, share = formula_terms(operation, ranks) if ranks > 1 else (0, 0)
        if operation == BROADCAST:
            share = 1.0  # in pieces, down a ring
        rate = self._rate(operation, nodes, devices_per_node)
        latency_s = self._latency_s(nodes, devices_per_node)
        if operation != ALL_REDUCE:
            latency_s /= 2
        return _SheetTimes(latency_s * bool(passes), share / rate, (_NOTE,))  # type: ignore[return-value]

    def _latency_s(self, nodes: int, devices_per_node: int) -> float:
        fabric = self._system.fabric
        if nodes == 1 or fabric is None:
            return BASE_S + 2 * (devices_per_node - 1) * HOP_S
        hop_s = fabric.message_s + HOP_S * (devices_per_node - 1)
        whole_s = fabric.message_s + HOP_S * (NODE_DEVICES - 1)
        return nodes * fabric.latency_s * hop_s / whole_s

    def _rate(self, operation: str, nodes: int, devices_per_node: int) -> float:
        """Bytes a second through the narrowest place of the ring."""
        link, fabric = self._system.device.link, self._system.fabric
        switch = link.sharp and operation == ALL_REDUCE and devices_per_node >= SWITCH_DEVICES
        inside = (SWITCH_SHARE if switch else NODE_SHARE) * link.bytes_per_s
        if nodes == 1 or fabric is None:
            return inside
        cards = CARD_SHARE * fabric.node_bytes_per_s(devices_per_node)
        return cards if devices_per_node == 1 else min(inside, cards)
