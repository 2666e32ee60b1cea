"""Conditions of emulated links, which a cell names in its field ``fabric``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import Form, InFile, Name, Positive, schema_of
from ddlbench.common.schema import check
from ddlbench.experiment.paths import FOLDER_NAME_PATTERN

FOLDER_NAME = {
    "pattern": f"^{FOLDER_NAME_PATTERN}$",
    "description": "Name of a link condition, of up to 100 letters, digits, dots, _ and - only; "
    "neither a dot nor a dash is first",
}
_CONGESTION_CONTROL = {"type": "string", "minLength": 1, "pattern": "^[a-z0-9_-]+$"}
# Longest time of a bundle of TCP packets on a link. A bundle arrives as a whole with its last
# packet, so its first packets are late by up to this time.
BURST_S = 0.0005
Backend = Literal["auto", "netem", "relay"]
_Latency = Annotated[float, Ge(0), Le(2_000)]


@dataclass(frozen=True, kw_only=True)
class InsideKeys(Form):
    """Keys of the link of each device to the other devices of its node."""

    latency_ms: _Latency
    """Delay of a message from one device of a node to another in milliseconds; one way."""
    bandwidth_mbit_per_s: Positive | None = None
    """Rate of each device's link in Mbit/s (10^6 bits), in either direction; empty: as fast as it
    goes."""


@dataclass(frozen=True, kw_only=True)
class LinkKeys(Form):
    """What links do to packets; latency_ms is required unless only links inside nodes are given."""

    latency_ms: _Latency = 0.0
    """Delay of a packet from one node to another in milliseconds; one way."""
    bandwidth_mbit_per_s: Positive | None = None
    """Rate of each node's link in Mbit/s (10^6 bits), in either direction; empty: as fast as it
    goes."""
    loss_percent: Annotated[float, Ge(0), Le(50)] = 0.0
    """Packets of a hundred that are lost on their way."""
    mtu: Annotated[int, Ge(576), Le(65_535)] = 1500
    """Largest packet in bytes."""
    congestion_control: Annotated[Name, InFile(_CONGESTION_CONTROL)] = "cubic"
    """TCP's congestion control, one that the kernel has: cubic, reno, bbr."""
    backend: Backend = "auto"
    """What makes the condition: the kernel's netem, or a relay in user space; auto takes netem
    where the kernel has it, and the relay for links inside nodes."""
    inside: InsideKeys | None = None
    """The link of each device to the other devices of its node: NVLink, PCIe, copies through host
    memory. Empty: as fast as this machine is."""


@cache
def link_schema() -> Mapping[str, Any]:
    """The JSON schema of a link condition in a site file."""
    schema = schema_of(LinkKeys, inline=True)
    for value in schema["properties"].values():
        value.pop("default", None)  # what is not written is judged by the other keys
    return schema


_OF_NODES = ("bandwidth_mbit_per_s", "loss_percent")


@dataclass(frozen=True)
class LinkCondition:
    """Properties of the links between nodes, and of those inside each node.

    Args:
        latency_s: one-way delay of a packet between two nodes.
        bandwidth_bits_per_s: of each node's link, in each direction; None is unlimited.
        loss: probability that a packet is lost.
        mtu: largest IP packet in bytes.
        congestion_control: of TCP; the default is that of Linux since 2006, not of this machine.
        backend: "netem" (the kernel), "relay" (a process), or "auto": netem if available. Only the
            relay makes links inside nodes.
        burst_s: longest time of a bundle of packets on a link.
        inside: delay and rate of the link that each device of a node has to its other devices; None
            lets them meet as they do on this machine.

    Raises:
        ConfigError: netem should make links inside nodes.
    """

    latency_s: float
    bandwidth_bits_per_s: float | None
    loss: float
    mtu: int = 1500
    congestion_control: str = "cubic"
    backend: str = "auto"
    burst_s: float = BURST_S
    inside: LinkCondition | None = None

    def __post_init__(self) -> None:
        if self.inside is None:
            return
        if self.backend == "netem":
            raise ConfigError(
                "backend: netem makes no links inside a node; write backend: relay, or leave it out"
            )
        object.__setattr__(self, "backend", "relay")

    def slowed(self, factor: float) -> LinkCondition:
        """The links for devices that are ``factor`` times slower than they should be.

        Bundles take as many times longer, so a byte costs this machine as many frames as before.
        """
        inside = None if self.inside is None else self.inside.slowed(factor)
        return replace(
            self._at_rate(1 / factor),
            latency_s=self.latency_s * factor,
            burst_s=self.burst_s * factor,
            inside=inside,
        )

    def shrunk(self, factor: float) -> LinkCondition:
        """The links for messages that have 1/``factor`` of the bytes that they should have."""
        inside = None if self.inside is None else self.inside.shrunk(factor)
        return replace(self._at_rate(1 / factor), inside=inside)

    def shapes(self, nodes: int, devices_per_node: int) -> bool:
        """Whether a geometry has links that the condition says something of."""
        if self.inside is None:
            return nodes > 1
        between = bool(self.latency_s or self.bandwidth_bits_per_s or self.loss)
        return devices_per_node > 1 or (nodes > 1 and between)

    def _at_rate(self, share: float) -> LinkCondition:
        rate = self.bandwidth_bits_per_s
        return replace(self, bandwidth_bits_per_s=None if rate is None else rate * share)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> LinkCondition:
        """Read a condition in milliseconds, Mbit/s and percent.

        Raises:
            ConfigError: a key is unknown or missing, or its value is not allowed.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{where}: {shown(values)} is no link condition; write latency_ms: 10"
            )
        # Without a word on the links between nodes, only those inside them are meant.
        between = values.get("inside") is None or any(values.get(name) for name in _OF_NODES)
        check(dict(values), {**link_schema(), "required": ["latency_ms"] * between}, where)
        keys = LinkKeys(**values)
        kept = {name: getattr(keys, name) for name in ("mtu", "congestion_control", "backend")}
        inside = None
        if values.get("inside") is not None:
            of_devices = InsideKeys(**values["inside"])
            rate = of_devices.bandwidth_mbit_per_s
            inside = cls(of_devices.latency_ms / 1e3, _bits_per_s(rate), 0.0, **kept)
        try:
            return cls(
                latency_s=keys.latency_ms / 1e3,
                bandwidth_bits_per_s=_bits_per_s(keys.bandwidth_mbit_per_s),
                loss=keys.loss_percent / 100,
                inside=inside,
                **kept,
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """All fields, as in a result file; younger ones only where they are set."""
        values = asdict(self)
        if self.burst_s == BURST_S:
            del values["burst_s"]
        if self.inside is None:
            del values["inside"]
        else:
            rate = self.inside.bandwidth_bits_per_s
            values["inside"] = {"latency_s": self.inside.latency_s, "bandwidth_bits_per_s": rate}
        return values


def _bits_per_s(mbit_per_s: float | None) -> float | None:
    return None if mbit_per_s is None else mbit_per_s * 1e6
