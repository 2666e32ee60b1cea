"""The input of the oracle, one strategy on some devices, and its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.common.schema import nearest

STRATEGIES = (
    "serial", "data", "spatial", "filter", "channel", "data+filter", "data+spatial", "pipeline",
)  # fmt: skip
HYBRIDS = ("data+filter", "data+spatial")


@dataclass(frozen=True)
class OwnSplit:
    """How one of this project's strategies splits a network (docs/strategies.md).

    Attributes:
        shares: the fullest device's share of each layer's filters, channels or rows.
        grid: (dimension counted from the last, devices along it) of rows; first dimension first.
        by_mean: rows end in a mean over all positions, which is all-reduced instead of gathered.
    """

    shares: tuple[float, ...]
    grid: tuple[tuple[int, int], ...] = ()
    by_mean: bool = False


@dataclass(frozen=True)
class Configuration:
    """One strategy on some devices.

    Attributes:
        devices: p.
        groups: p1, replicas that share no layer: devices for ``data``, nodes for the hybrids.
        group_batch: samples of one group's iteration, B / p1.
        segments: S, micro-batches of a pipeline.
        project_split: how this project's strategy splits; None for the strategies that ParaDL ran.
    """

    strategy: str
    devices: int
    groups: int
    group_batch: float
    segments: int
    project_split: OwnSplit | None = None

    @property
    def inside(self) -> int:
        """p2: devices of a group, which split layers between them."""
        return self.devices // self.groups

    @property
    def batch(self) -> float:
        """B: samples of one iteration over all devices."""
        return self.group_batch * self.groups

    @property
    def split_dims(self) -> tuple[int, ...]:
        """Dimensions of a layer's shape that a spatial split divides."""
        if self.project_split is None or not self.project_split.grid:
            return (1,)
        return tuple(dim for dim, _ in self.project_split.grid)


@dataclass(frozen=True)
class Projection:
    """One iteration.

    Attributes:
        computation: seconds by term ("layers", "weight update").
        communication: seconds by term ("gradients", "activations", "halo", ...).
        memory_bytes: of the fullest device.
        max_devices, limiting_layer: most devices of the strategy, and the layer that limits them.
    """

    configuration: Configuration
    computation: Mapping[str, float]
    communication: Mapping[str, float]
    memory_bytes: float
    max_devices: int
    limiting_layer: str

    @property
    def compute_s(self) -> float:
        return sum(self.computation.values())

    @property
    def communication_s(self) -> float:
        return sum(self.communication.values())

    @property
    def iteration_s(self) -> float:
        """Table III: computation and communication one after the other."""
        return self.compute_s + self.communication_s

    @property
    def bottleneck(self) -> str:
        terms = {**self.computation, **self.communication}
        return max(terms, key=lambda name: terms[name])


def groups_of(strategy: str, devices: int, devices_per_node: int) -> int:
    """p1: replicas that share no layer; of a hybrid the nodes."""
    if strategy == "data":
        return devices
    return max(1, devices // devices_per_node) if strategy in HYBRIDS else 1


def configuration_of(
    strategy: str, devices: int, devices_per_node: int, batch: float, segments: int | None = None
) -> Configuration:
    """The configuration of a strategy with ``batch`` samples an iteration over all devices.

    Raises:
        ConfigError: the strategy is unknown, or cannot run on so many devices or samples.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"unknown strategy {strategy!r}; {nearest(strategy, STRATEGIES)}")
    if devices < 1 or batch <= 0:
        raise ConfigError(
            f"{counted(devices, 'device')} and a batch of {batch:g}: write numbers above 0"
        )
    if strategy == "serial" and devices != 1:
        raise ConfigError(f"serial runs on 1 device, not on {devices}")
    uneven = devices > devices_per_node and devices % devices_per_node
    if strategy in HYBRIDS and uneven:
        raise ConfigError(
            f"{strategy} cuts layers within a node of {devices_per_node} devices; "
            f"write a multiple of that, not {devices} devices"
        )
    groups = groups_of(strategy, devices, devices_per_node)
    return Configuration(strategy, devices, groups, batch / groups, segments or devices)
