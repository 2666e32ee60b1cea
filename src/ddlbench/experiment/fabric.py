"""Conditions of emulated links, which a cell names in its field ``fabric``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddlbench.experiment.errors import ConfigError, shown
from ddlbench.experiment.schema import check

BACKENDS = ("auto", "netem", "relay")
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["latency_ms"],
    "properties": {
        "latency_ms": {
            "type": "number",
            "minimum": 0,
            "maximum": 2_000,
            "description": "Delay of a packet from one node to another, one way",
        },
        "bandwidth_mbit_per_s": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "description": "Rate of each node's link in 10^6 bits per second, in each direction",
        },
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
    },
}


@dataclass(frozen=True)
class LinkCondition:
    """Properties of every link between two nodes.

    Args:
        latency_s: one-way delay of a packet between two nodes.
        bandwidth_bits_per_s: of each node's link, in each direction; None is unlimited.
        loss: probability that a packet is lost.
        mtu: largest IP packet in bytes.
        congestion_control: of TCP; the default is that of Linux since 2006, not of this machine.
        backend: "netem" (the kernel), "relay" (a process), or "auto": netem if available.
    """

    latency_s: float
    bandwidth_bits_per_s: float | None
    loss: float
    mtu: int = 1500
    congestion_control: str = "cubic"
    backend: str = "auto"

    def slowed(self, factor: float) -> LinkCondition:
        """The link for devices that are ``factor`` times slower than they should be."""
        rate = self.bandwidth_bits_per_s
        return replace(
            self,
            latency_s=self.latency_s * factor,
            bandwidth_bits_per_s=None if rate is None else rate / factor,
        )

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
        check(dict(values), _SCHEMA, where)
        rate = values.get("bandwidth_mbit_per_s")
        return cls(
            latency_s=values["latency_ms"] / 1e3,
            bandwidth_bits_per_s=None if rate is None else rate * 1e6,
            loss=values.get("loss_percent", 0) / 100,
            mtu=values.get("mtu", cls.mtu),
            congestion_control=values.get("congestion_control", cls.congestion_control),
            backend=values.get("backend", cls.backend),
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, as in a result file."""
        return asdict(self)
