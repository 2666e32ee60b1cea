"""Hardware and software as files, before anything is measured on them.

::

    config/hardware/<device>.yaml    one device and its link inside a node    data sheet
    config/fabrics/<name>.yaml       what nodes send to each other            data sheet, priors
    config/software/<name>.yaml      what trains on them                      settings, constants

The fields of the dataclasses below are the keys of a file. Rates count one way.

Platforms are older forms of the same: ``config/platforms/<name>.yaml`` has levels of a network, for
ParaDL's oracle of CNNs; ``config/transformers/<name>.yaml`` accelerators and their links, for runs
of GPTs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Amount, Count, Form, Interval, Name, Positive
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import Precision
from ddlbench.predict.constants import Described, HeldOut, WithConstants

_WITHOUT_BF16 = ("fp16", "fp32")
"""What a device without bf16 trains in."""
RESERVED_BYTES = 2 * 2**30
"""Of a device's memory, that no process of training gets: driver's context and NCCL."""


@dataclass(frozen=True, kw_only=True)
class Sourced(Described):
    """A file that says where its values are from."""

    sources: Mapping[str, Name]
    """Where each value is from, by its key."""

    def check(self, where: str) -> None:
        """Raise ConfigError if a source is of no key."""
        super().check(where)
        for key in self.sources:
            if not hasattr(self, key):
                raise ConfigError(
                    f"{where}: sources: {key!r} is no key; {nearest(key, vars(self))}"
                )


@dataclass(frozen=True, kw_only=True)
class NodeLink(Form):
    """What a device sends to the others of its node."""

    name: Literal["NVLink", "NVSwitch", "PCIe", "Infinity Fabric"]
    bytes_per_s: Positive
    """Of one device over all its links together, one way."""
    all_to_all: bool = False
    """Every two devices of a node are connected, through a switch or directly. NVLink without it is
    the cube mesh of eight devices."""
    sharp: bool = False
    """The switch sums (NVLink SHARP)."""


@dataclass(frozen=True, kw_only=True)
class DeviceSheet(Sourced):
    """The data sheet of one device."""

    folder: ClassVar[str] = "hardware"
    noun: ClassVar[str] = "device"

    memory_bytes: Positive
    memory_bytes_per_s: Positive
    peak_flops_per_s: Mapping[Precision, Positive]
    """Dense peaks; 16-bit ones with matrix units."""
    link: NodeLink
    aliases: tuple[Name, ...] = ()
    """Other names under which tables name the device."""

    def peak(self, precision: str) -> float:
        """Dense operations a second; where bf16 is missing, those of fp16 or else fp32.

        Raises:
            ConfigError: the data sheet has no such precision.
        """
        return dict(self.peak_flops_per_s)[self._peak_taken(precision)]

    def stand_in(self, precision: str) -> str:
        """A sentence where :meth:`peak` is that of another precision; empty where it is not."""
        taken = self._peak_taken(precision)
        if taken == precision:
            return ""
        return f"{self.description} has no peak for {precision}: that of {taken} is taken."

    def _peak_taken(self, precision: str) -> Precision:
        others = _WITHOUT_BF16 if precision in ("bf16", "fp16") else ()
        for name in (precision, *others):
            for known in self.peak_flops_per_s:
                if known == name:
                    return known
        peaks = list(self.peak_flops_per_s)
        raise ConfigError(
            f"{self.description} has no peak for {precision!r}, only for {', '.join(peaks)}; "
            f"write {peaks[0]}, or add the peak to peak_flops_per_s"
        )

    @classmethod
    def named(cls, name: str) -> DeviceSheet:
        """The device of a file name, an alias, or a file.

        Raises:
            ConfigError: there is none, or a key is wrong.
        """
        return cls.called(name) or cls.load(name)

    @classmethod
    def called(cls, alias: str) -> DeviceSheet | None:
        """The shipped device of that file name or alias; None if there is none."""
        name = cls.name_of(alias)
        return None if name is None else cls.load(name)

    @classmethod
    def name_of(cls, alias: str) -> str | None:
        """The file name of the shipped device that has that name or alias, however it is written.

        ``NVIDIA A100-SXM4-80GB (400W)``, ``nvidia_a100-sxm4-80gb`` and ``a100 sxm 80gb`` are one.
        """
        words = _words(alias)
        for name in cls.names():
            if words in map(_words, (name, *cls.load(name).aliases)):
                return name
        return None


_WORD = re.compile(r"[a-z0-9.]+")
# Who makes or sells a device, and its power; SXM is one socket for each generation.
_SAYS_NOTHING = re.compile(r"nvidia|amd|tesla|geforce|instinct|\d+w")


def _words(name: str) -> frozenset[str]:
    """The words of a name that tell devices apart."""
    words = _WORD.findall(name.casefold())
    return frozenset(
        re.sub(r"^sxm\d$", "sxm", word) for word in words if not _SAYS_NOTHING.fullmatch(word)
    )


_CHIP = re.compile(r"\b[A-Z]+\d+S?(?=\W|$)")


@cache
def device_of(name: str) -> str:
    """The description of the device that a table names so; the name itself if it is not known."""
    sheet = DeviceSheet.called(name)
    return name if sheet is None else sheet.description


def chip_of(name: str) -> str:
    """``NVIDIA A100-SXM4-80GB (400W)`` and ``a100-pcie-40gb`` are an A100."""
    device = device_of(name)
    match = _CHIP.search(device.upper())
    return match[0] if match else device


@dataclass(frozen=True, kw_only=True)
class Fabric(Sourced):
    """What nodes send to each other."""

    folder: ClassVar[str] = "fabrics"
    noun: ClassVar[str] = "fabric"

    bytes_per_s: Positive
    """One way."""
    per: Literal["device", "node"]
    """Whether each device or each node has that rate."""
    latency_s: Positive
    """That each node adds to an all-reduce."""
    latency_interval_s: Interval
    message_s: Amount
    """Of one message between two nodes."""

    def node_bytes_per_s(self, devices_per_node: int) -> float:
        """Bytes per second of all network cards of a node together."""
        return self.bytes_per_s * (devices_per_node if self.per == "device" else 1)


@dataclass(frozen=True, kw_only=True)
class Software(WithConstants, Sourced):
    """What trains: settings that decide memory and time, and constants that are fitted."""

    folder: ClassVar[str] = "software"
    noun: ClassVar[str] = "software"

    gathered_inputs: Literal["keep", "again", "unknown"] = "unknown"
    """Whether inputs of products that tensor parallelism gathers are kept for the backward pass,
    or gathered again."""
    gradient_bytes: Positive = 4
    """Of a gradient as it is summed over micro-batches."""
    gradient_message_bytes: Positive = 4
    """Of a gradient as replicas exchange it."""
    message_buffer_bytes: Amount = 0
    """Of a parameter, in buffers that exchange gradients."""
    moment_bytes: Amount = 8
    """Of a parameter, what the optimizer keeps in single precision: Adam's two moments 8, SGD's
    momentum 4."""
    temporary_bytes: Amount = 0
    """Of a parameter's share, while the optimizer updates it."""
    bucket_bytes: Positive = 25e6
    """Of gradients that one all-reduce sums."""
    whole_sums: tuple[Literal[1, 2], ...] = ()
    """Stages of ZeRO whose sums of gradients take as long as whole ones; others scatter them, half
    the bytes of an all-reduce."""
    stage_cut: Literal["cost", "layers"] = "layers"
    """Stages have equal cost, the output layer counted, or equally many layers."""
    precision: Precision = "bf16"
    tensor: bool = True
    """It cuts layers over devices."""
    pipeline: bool = True
    """It cuts the network into stages."""
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = (0, 1)
    """Stages of ZeRO that it has; 3 is FSDP."""
    cut_zero_stages: tuple[Literal[0, 1], ...] = (0, 1)
    """Those of them that it also has where it cuts layers or the network."""
    flash_attention: bool = True
    """Attention keeps no scores and moves none through memory."""
    intervals: Mapping[str, HeldOut] = field(default_factory=dict)
    """Measured over predicted steps of rows that were held out, by kind of layout: "pipeline" or
    "no pipeline"."""
    fitted_on: str = ""
    """Rows of the last fit."""

    @property
    def item_bytes(self) -> float:
        """Bytes of an item of an activation, or of a weight as messages carry it."""
        return 4.0 if self.precision in ("fp32", "tf32") else 2.0

    @property
    def master_bytes(self) -> float:
        """Bytes of a weight's float32 copy, which the optimizer updates; 0 without a copy."""
        return 0.0 if self.precision in ("fp32", "tf32") else 4.0


@dataclass(frozen=True)
class System:
    """A cluster that need not exist.

    Args:
        device: of which all nodes are made.
        fabric: between nodes; None for a single node.
        nodes, devices_per_node: the geometry.
    """

    device: DeviceSheet
    fabric: Fabric | None
    nodes: Count
    devices_per_node: Count

    def __post_init__(self) -> None:
        if self.nodes > 1 and self.fabric is None:
            raise ConfigError(
                f"{self.nodes} nodes need a fabric; write one of {', '.join(Fabric.names())}"
            )

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def node_bytes_per_s(self) -> float:
        """What all network cards of a node send; endless if there is one node only."""
        return self.fabric.node_bytes_per_s(self.devices_per_node) if self.fabric else float("inf")


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
