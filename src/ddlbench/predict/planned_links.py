"""Links of a cluster that nobody measured: collectives by names, hops by data sheets.

Collectives are those of :mod:`ddlbench.predict.collective_times`, for whichever group of the
cluster's devices; there S is the whole buffer, and links.json counts what one rank gives to a
gather. A hop has the rate of a device's link, or of its part of the network cards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import cast

import numpy as np

from ddlbench.experiment.links import Links
from ddlbench.predict.collective_times import (
    MEDIUM,
    MESH_RINGS,
    Groups,
    Library,
    Operation,
    seconds,
)
from ddlbench.predict.hardware import System
from ddlbench.predict.links import ALL_GATHER, CollectiveTimes, Hop, LinkTable

LIBRARY = "nccl"
_NOTE = "links are those of data sheets, their collectives those expected by their names"


@cache
def library() -> Library:
    """The library whose collectives strategies use."""
    return Library.load(LIBRARY)


def links_interval() -> tuple[float, float]:
    """Measured over expected seconds of 90 % of messages of gradients (1 to 64 MB)."""
    held_out = library().intervals[MEDIUM]
    return held_out.low, held_out.high


@dataclass(frozen=True)
class _ExpectedTimes:
    """A :class:`CollectiveTimes` of one group.

    Args:
        group: one row.
        operation: the collective.
        copies: the whole buffer over a message as links.json counts it.
        notes: on the links.
    """

    group: Groups
    operation: Operation
    copies: int
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        if message_bytes <= 0:
            return 0.0
        whole = np.array([message_bytes * self.copies])
        return float(seconds(self.group, whole, library(), self.operation)[0])


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
        link, nccl = self._system.device.link, library()
        mesh = link.name == "NVLink" and not link.all_to_all
        share = nccl.constant("ring_share") / (max(MESH_RINGS.values()) if mesh else 1)
        return Hop(nccl.constant("start_s"), share * link.bytes_per_s), _NOTE

    @cached_property
    def _between(self) -> tuple[Hop, str]:
        fabric, nccl = self._system.fabric, library()
        if fabric is None:
            return self._within
        rate = nccl.constant("network_share") * fabric.bytes_per_s
        return Hop(nccl.constant("start_s") + fabric.message_s, rate), _NOTE

    def collective(
        self, operation: str, nodes: int, devices_per_node: int, transport: str | None
    ) -> CollectiveTimes:
        """Of all ranks of a geometry; messages as links.json counts them."""
        system = replace(self._system, nodes=nodes, devices_per_node=devices_per_node)
        if nodes == 1:
            system = replace(system, fabric=None)
        ranks = nodes * devices_per_node
        times = _ExpectedTimes(
            Groups.of_system(system),
            cast(Operation, operation),
            ranks if operation == ALL_GATHER else 1,
            (_NOTE,),
        )
        return times  # type: ignore[return-value]  # the same two members
