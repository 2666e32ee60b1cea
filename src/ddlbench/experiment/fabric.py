"""Conditions of emulated links, which a cell names in its field ``fabric``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import check

BACKENDS = ("auto", "netem", "relay")
# Longest time of a bundle of TCP packets on a link. A bundle arrives as a whole with its last
# packet, so its first packets are late by up to this time.
BURST_S = 0.0005
_LATENCY = {
    "type": "number",
    "minimum": 0,
    "maximum": 2_000,
    "description": "Delay of a packet from one end to another, one way",
}
_RATE = {
    "type": ["number", "null"],
    "exclusiveMinimum": 0,
    "description": "Rate of each end's link in 10^6 bits per second, in each direction",
}
_INSIDE_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["latency_ms"],
    "properties": {"latency_ms": _LATENCY, "bandwidth_mbit_per_s": _RATE},
}
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "latency_ms": _LATENCY,
        "bandwidth_mbit_per_s": _RATE,
        "loss_percent": {
            "type": "number",
            "minimum": 0,
            "maximum": 50,
            "description": "Packets of a hundred that are lost",
        },
        "mtu": {
            "type": "integer",
            "minimum": 576,
            "maximum": 65_535,
            "description": "Largest packet in bytes",
        },
        "congestion_control": {
            "type": "string",
            "minLength": 1,
            "pattern": "^[a-z0-9_-]+$",
            "description": "TCP's, as the kernel names it: cubic, reno, bbr",
        },
        "backend": {"enum": list(BACKENDS)},
        "inside": _INSIDE_SCHEMA,
    },
}
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
        inside = values.get("inside")
        # Without a word on the links between nodes, only those inside them are meant.
        between = inside is None or any(values.get(name) for name in _OF_NODES)
        check(dict(values), {**_SCHEMA, "required": ["latency_ms"] * between}, where)
        rate = values.get("bandwidth_mbit_per_s")
        own = {
            "latency_s": values.get("latency_ms", 0) / 1e3,
            "bandwidth_bits_per_s": None if rate is None else rate * 1e6,
            "loss": values.get("loss_percent", 0) / 100,
            "mtu": values.get("mtu", cls.mtu),
            "congestion_control": values.get("congestion_control", cls.congestion_control),
            "backend": values.get("backend", cls.backend),
        }
        if inside is None:
            return cls(**own)
        shared = {name: own[name] for name in ("mtu", "congestion_control", "backend")}
        rate = inside.get("bandwidth_mbit_per_s")
        of_devices = cls(
            inside["latency_ms"] / 1e3, None if rate is None else rate * 1e6, 0.0, **shared
        )
        try:
            return cls(**own, inside=of_devices)
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
