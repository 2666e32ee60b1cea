"""A cluster as ParaDL's oracle sees it: levels of a network, and a few fitted constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from ddlbench.common.errors import ConfigError
from ddlbench.predict.platform_file import PlatformFile

FITTED = (
    "ring_efficiency",
    "contention",
    "activation_efficiency",
    "staged_bytes_per_s",
    "layer_overhead_s",
)


@dataclass(frozen=True)
class Link:
    """A link between two devices (Hockney): ``latency_s + bytes * s_per_byte``."""

    latency_s: float
    s_per_byte: float

    def slower(self, factor: float) -> Link:
        """The same link with ``factor`` times the seconds per byte."""
        return Link(self.latency_s, self.s_per_byte * factor)


@dataclass(frozen=True)
class Platform(PlatformFile):
    """Levels of a network with latency and bandwidth, and fitted constants."""

    schema: ClassVar[str] = "platform"
    mark: ClassVar[str] = "levels"
    other_mark: ClassVar[str] = "links"
    fitted: ClassVar[Sequence[str]] = FITTED

    @property
    def links_per_node(self) -> int:
        """Network links of one node."""
        return int(self.values["links_per_node"])

    @property
    def largest_ring(self) -> int:
        """Devices of the outermost level."""
        return int(self.values["levels"][-1]["largest_ring"])

    def level(self, ring: int) -> Link:
        """The slowest hop of a ring of ``ring`` devices that lie side by side.

        Raises:
            ConfigError: the platform has no ring of that size.
        """
        for level in self.values["levels"]:
            if ring <= level["largest_ring"]:
                return _link(level)
        raise ConfigError(
            f"{ring} devices are more than the platform's largest ring, {self.largest_ring}; "
            "ask for fewer, or add a level to the platform file"
        )

    @property
    def host(self) -> Link:
        """From device to device through the host's memory."""
        return _link(self.values["paths"]["host"])

    def staged(self, strategy: str) -> bool:
        """Whether a strategy's gradients go through host memory."""
        return bool(self.values["gradients"].get(strategy, "direct") == "staged")

    @classmethod
    def load(cls, name: str) -> Self:
        """See :meth:`PlatformFile.load`; levels must grow outwards."""
        platform = super().load(name)
        rings = [level["largest_ring"] for level in platform.values["levels"]]
        if rings != sorted(set(rings)):
            raise ConfigError(
                f"platform {name}: levels: largest_ring is {rings}; write the inside of a node "
                "first, and each level larger than the one before"
            )
        return platform


def _link(entry: Mapping[str, float]) -> Link:
    return Link(entry["latency_s"], 1 / entry["bandwidth_bytes_per_s"])
