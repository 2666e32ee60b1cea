"""Times of collectives from the names of a device and a fabric.

::

    time |            /  long:   A + c S / B               two protocols, the faster one counts
         |        ___/
         |  _____/       short:  share_A A + c S / (share_B B)
         +------------ S

    A = start + device_s (devices of a node - 1) + node_s nodes [nodes > 1]
    B = the slower of link and network:  ring_share x link; switch_share x link where switches sum
                                         tree_share c x cards of two nodes; network_share x cards
    c = 2 (n - 1) / n for an all-reduce, half for all-gather and reduce-scatter (bytes a ring sends)

S is the whole buffer, as nccl-tests counts it. The terms are NCCL's (src/graph/tuning.cc); a tree
over two nodes sends the buffer once. Eight V100s form a cube mesh (DGX-1), where fewer devices
have fewer rings. Measured points: :mod:`ddlbench.predict.collective_points`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count
from ddlbench.predict.constants import Array, HeldOut, Rows, WithConstants
from ddlbench.predict.hardware import DeviceSheet, Fabric, Sourced, System, chip_of

COLLECTIVES = "nccl"
"""The library that is expected if none is named."""
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_SENT: Mapping[Operation, float] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Times (n - 1) / n: bytes that each rank of a ring sends, of each byte of the buffer."""
CONSTANTS = (
    "ring_share", "switch_share", "tree_share", "network_share", "start_s", "device_s", "node_s",
    "short_latency_share", "short_rate_share",
)  # fmt: skip
MESH_RINGS = {2: 1, 3: 2, 4: 4, 5: 2, 6: 2, 7: 4, 8: 6}
"""Rings over the first n devices of a DGX-1's cube mesh (NVIDIA, DGX-1 with V100 system
architecture, figure 4), each of one link of six. Five devices have no ring of their links: one
passes through another device twice."""
SHORT, MEDIUM, LONG = "below 1 MB", "1 to 64 MB", "64 MB and more"
SIZE_CLASSES: Mapping[str, float] = {SHORT: 0, MEDIUM: 2**20, LONG: 2**26}
"""Smallest messages whose intervals differ."""


@dataclass(frozen=True, kw_only=True)
class Library(WithConstants, Sourced):
    """A library of collectives."""

    folder: ClassVar[str] = "collectives"
    noun: ClassVar[str] = "library"
    needed: ClassVar[tuple[str, ...]] = CONSTANTS

    intervals: Mapping[str, HeldOut] = field(default_factory=dict)
    """Measured over expected times of sweeps that were held out, by size of the message."""
    fitted_on: str = ""
    """Points of the last fit."""
    most_nodes: Count = 1
    """Of these points."""
    of_one_cluster: bool = False
    """They are of one cluster."""
    device: str = ""
    """Of that cluster."""
    fabric: str = ""
    """Of that cluster, by its name, if points of several nodes were given with it."""

    def check(self, where: str) -> None:
        """Raise ConfigError if a constant or an interval is missing, or cannot be."""
        super().check(where)
        for name in SIZE_CLASSES:
            if name not in self.intervals:
                raise ConfigError(
                    f"{where}: intervals: {name!r} is missing; add low, high and source"
                )
        for name, interval in self.intervals.items():
            if name not in SIZE_CLASSES:
                known = ", ".join(map(repr, SIZE_CLASSES))
                raise ConfigError(f"{where}: intervals: {name!r} is unknown; write {known}")
            if interval.low > interval.high:
                raise ConfigError(
                    f"{where}: intervals: low of {name!r} is {interval.low:g}; write at most its "
                    f"high, {interval.high:g}"
                )

    @property
    def tells_latency(self) -> bool:
        """``node_s`` is the latency of the cluster's fabric, whatever is known by its name."""
        return self.of_one_cluster and self.most_nodes > 1

    def remarks(self, device: DeviceSheet, fabric: str, nodes: int) -> Iterator[str]:
        """Sentences on what this library does not tell of so many nodes of devices."""
        begin = "The library of collectives is of"
        if self.device not in ("", device.description, chip_of(device.description)):
            yield f"{begin} {self.device}, not of {device.description}."
        if nodes > 1 and self.fabric not in ("", fabric):
            yield f"{begin} fabric {self.fabric}, not of {fabric}."
        if nodes > 1 and self.of_one_cluster and self.most_nodes == 1:
            yield f"{begin} sweeps of one node, which tell nothing of links between nodes."

    def with_latency(self, fabric: Fabric) -> Fabric:
        """The fabric with the latency that this library tells, if it does."""
        return replace(fabric, latency_s=self.constant("node_s")) if self.tells_latency else fabric


@dataclass(frozen=True)
class Groups(Rows):
    """Groups of ranks, and the links between them; each array is (n,).

    Args:
        nodes, devices_per_node: geometry.
        link_bytes_per_s: of one device to the others of its node, one way.
        sums: the switch sums, if all eight devices of a node take part.
        mesh: devices of a node form a cube mesh.
        cards_bytes_per_s: of all network cards of a node, one way; nan on one node.
        node_s: seconds that each node adds to an all-reduce; nan takes the library's.
    """

    nodes: Array
    devices_per_node: Array
    link_bytes_per_s: Array
    sums: Array
    mesh: Array
    cards_bytes_per_s: Array
    node_s: Array

    @property
    def ranks(self) -> Array:
        return np.asarray(self.nodes * self.devices_per_node)

    @classmethod
    def of_system(cls, system: System, count: int = 1) -> Groups:
        """All ranks of a system, ``count`` times."""
        link, fabric = system.device.link, system.fabric
        latency_s = fabric.latency_s if fabric else np.nan
        cards = system.node_bytes_per_s if fabric else np.nan
        values = (
            float(system.nodes), float(system.devices_per_node), link.bytes_per_s, link.sharp,
            is_mesh(system.device), cards, latency_s,
        )  # fmt: skip
        return cls(*(np.full(count, value) for value in values))


def is_mesh(device: DeviceSheet) -> bool:
    """Whether the devices of a node form a cube mesh."""
    return device.link.name == "NVLink" and not device.link.all_to_all


def seconds(
    groups: Groups, payload_bytes: Array, library: Library, operation: Operation = "all_reduce"
) -> Array:
    """Expected seconds of a collective.

    Args:
        groups: n of them.
        payload_bytes: of the whole buffer, (n,).
        library: with constants.
        operation: which.
    """
    constants = library.values()
    several = groups.nodes > 1
    ranks = groups.ranks
    is_sum = operation == "all_reduce"
    sent = _SENT[operation] * (ranks - 1) / ranks if operation in _SENT else np.ones(len(ranks))
    switch = groups.sums & (groups.devices_per_node >= 8) & is_sum
    rings = np.array([MESH_RINGS.get(int(n), 6) / 6 for n in groups.devices_per_node])
    ring = constants["ring_share"] * np.where(groups.mesh, rings, 1.0)
    rate = groups.link_bytes_per_s * np.where(switch, constants["switch_share"], ring)
    tree = constants["tree_share"] * (sent if is_sum else 1.0)
    share = np.where(groups.nodes == 2, tree, constants["network_share"])
    network = np.where(several, share * groups.cards_bytes_per_s, np.inf)
    rate = np.minimum(rate, network)
    node_s = np.where(np.isnan(groups.node_s), constants["node_s"], groups.node_s)
    latency_s = constants["start_s"] + constants["device_s"] * (groups.devices_per_node - 1)
    # A ring passes twice for a sum.
    latency_s = (latency_s + np.where(several, node_s * groups.nodes, 0.0)) / (1 if is_sum else 2)
    sent_s = sent * payload_bytes / rate
    short_s = constants["short_latency_share"] * latency_s + sent_s / constants["short_rate_share"]
    return np.asarray(np.minimum(short_s, latency_s + sent_s))


def size_class(payload_bytes: float) -> str:
    """The name of the sizes that have one interval."""
    return next(
        name for name, least in reversed(list(SIZE_CLASSES.items())) if payload_bytes >= least
    )
