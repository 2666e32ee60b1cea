"""Platforms of the oracles: the data sheet of a cluster, and a few constants.

``config/platforms/<name>.yaml`` has levels of a network, for ParaDL's oracle of CNNs;
``config/transformers/<name>.yaml`` accelerators and their links, for runs of GPTs. The fields of
the dataclasses below are the keys of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Amount, Count, Form, Name, Positive
from ddlbench.predict.constants import HeldOut, WithConstants


@dataclass(frozen=True, kw_only=True)
class Device(Form):
    """The data sheet of one device."""

    memory_bytes: Positive
    flops_per_s: Positive
    """Peak of the arithmetic that training computes in."""
    memory_bytes_per_s: Positive


@dataclass(frozen=True, kw_only=True)
class TrainedDevice(Device):
    """A device of ParaDL's oracle."""

    optimizer_states: Amount = 1.0
    """Tensors as large as the weights that the optimizer keeps (momentum 1, Adam 2)."""


@dataclass(frozen=True)
class Link:
    """A link between two devices (Hockney): ``latency_s + bytes * s_per_byte``."""

    latency_s: float
    s_per_byte: float

    def slower(self, factor: float) -> Link:
        """The same link with ``factor`` times the seconds per byte."""
        return Link(self.latency_s, self.s_per_byte * factor)


@dataclass(frozen=True, kw_only=True)
class Rate(Form):
    """What a way between devices carries."""

    bandwidth_bytes_per_s: Positive
    source: Name


@dataclass(frozen=True, kw_only=True)
class Way(Rate):
    """A way between devices, with its latency."""

    latency_s: Amount

    @property
    def link(self) -> Link:
        return Link(self.latency_s, 1 / self.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Level(Way):
    """A level of a network: all rings up to a number of devices."""

    name: Name
    largest_ring: Count


@dataclass(frozen=True, kw_only=True)
class Ways(Form):
    """Ways that are no level of the network."""

    host: Way
    """From device to device through the host's memory."""


@dataclass(frozen=True, kw_only=True)
class Platform(WithConstants):
    """A cluster as ParaDL's oracle sees it: levels of a network with latency and bandwidth."""

    folder: ClassVar[str] = "platforms"
    noun: ClassVar[str] = "platform"
    needed: ClassVar[tuple[str, ...]] = (
        "ring_efficiency", "contention", "activation_efficiency", "staged_bytes_per_s",
        "layer_overhead_s",
    )  # fmt: skip

    devices_per_node: Count
    links_per_node: Count = 1
    """Network links of one node, each of the bandwidth of its level."""
    device: TrainedDevice
    levels: Annotated[tuple[Level, ...], MinLen(1)]
    """From the inside of a node outwards, largest_ring rising."""
    paths: Ways
    gradients: Mapping[str, Literal["direct", "staged"]]
    """How each strategy's gradients travel, device to device or through host memory."""

    @property
    def largest_ring(self) -> int:
        """Devices of the outermost level."""
        return self.levels[-1].largest_ring

    def level(self, ring: int) -> Link:
        """The slowest hop of a ring of ``ring`` devices that lie side by side.

        Raises:
            ConfigError: the platform has no ring of that size.
        """
        for level in self.levels:
            if ring <= level.largest_ring:
                return level.link
        raise ConfigError(
            f"{ring} devices are more than the platform's largest ring, {self.largest_ring}; "
            "ask for fewer, or add a level to the platform file"
        )

    def staged(self, strategy: str) -> bool:
        """Whether a strategy's gradients go through host memory."""
        return self.gradients.get(strategy) == "staged"

    def check(self, where: str) -> None:
        """Raise ConfigError also if levels do not grow outwards."""
        super().check(where)
        rings = [level.largest_ring for level in self.levels]
        if rings != sorted(set(rings)):
            raise ConfigError(
                f"{where}: levels: largest_ring is {rings}; write the inside of a node first, and "
                "each level larger than the one before"
            )


@dataclass(frozen=True, kw_only=True)
class Accelerator(Device):
    """A device of the oracle of transformers."""

    source: Name


@dataclass(frozen=True, kw_only=True)
class Rates(Form):
    """Links of a node."""

    node: Rate
    """Of one device to the others of its node, one way."""
    network: Rate
    """Of all network cards of a node together, one way."""


@dataclass(frozen=True, kw_only=True)
class Accelerators(WithConstants):
    """A cluster as the oracle of transformers sees it: devices of a node, and links."""

    folder: ClassVar[str] = "transformers"
    noun: ClassVar[str] = "platform of transformers"
    needed: ClassVar[tuple[str, ...]] = (
        "matmul_efficiency", "matmul_width", "attention_efficiency", "memory_efficiency",
        "kernel_s", "host_layer_s", "host_collective_s", "host_softmax_s", "node_efficiency",
        "half_node_share", "collective_s", "uneven_vocabulary", "network_efficiency", "send_s",
        "update_efficiency",
    )  # fmt: skip

    devices_per_node: Count
    device: Accelerator
    links: Rates
    interval: HeldOut
    fitted_on: Name = ""
    """Rows of the last fit."""

    @property
    def node_bytes_per_s(self) -> float:
        """What a device sends to the others of its node."""
        return self.links.node.bandwidth_bytes_per_s * self.constant("node_efficiency")

    @property
    def network_bytes_per_s(self) -> float:
        """What all network cards of a node send together."""
        return self.links.network.bandwidth_bytes_per_s * self.constant("network_efficiency")
