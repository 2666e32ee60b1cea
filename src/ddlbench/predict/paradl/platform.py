"""Platform files: levels of a network with latency and bandwidth, and a few fitted constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.schema import check_against, fill_defaults, nearest, read_yaml

HEADER = "# Written by `ddlbench oracle calibrate`, or by hand: see docs/oracle.md.\n"
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
class Platform:
    """The values of a platform file; ``config/schemas/platform.schema.yaml`` explains each key."""

    values: Mapping[str, Any]

    @property
    def devices_per_node(self) -> int:
        return int(self.values["devices_per_node"])

    @property
    def links_per_node(self) -> int:
        """Network links of one node."""
        return int(self.values["links_per_node"])

    @property
    def device(self) -> Mapping[str, float]:
        """Memory, floating-point and memory rates, and optimizer states of one device."""
        device: Mapping[str, float] = self.values["device"]
        return device

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

    def constant(self, name: str) -> float:
        return float(self.values["fitted"][name]["value"])

    def with_constants(self, constants: Mapping[str, float]) -> Platform:
        """The same platform with other fitted constants."""
        fitted = {name: dict(entry) for name, entry in self.values["fitted"].items()}
        for name, value in constants.items():
            fitted[name]["value"] = value
        return replace(self, values={**self.values, "fitted": fitted})


def _link(entry: Mapping[str, float]) -> Link:
    return Link(entry["latency_s"], 1 / entry["bandwidth_bytes_per_s"])


def load_platform(name: str) -> Platform:
    """Read ``config/platforms/<name>.yaml``, or the file ``name`` if it is a path.

    Raises:
        ConfigError: there is no such platform, or one of its keys is wrong.
    """
    folder = project_root() / "config" / "platforms"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        remark = nearest(name, [file.stem for file in folder.glob("*.yaml")])
        raise ConfigError(f"platform {name!r} has no file {path}; {remark}")
    values = read_yaml(path)
    check_against("platform", values, where=str(path))
    values = fill_defaults("platform", values)
    rings = [level["largest_ring"] for level in values["levels"]]
    if rings != sorted(set(rings)):
        raise ConfigError(
            f"{path}: levels: largest_ring is {rings}; write the inside of a node first, and each "
            "level larger than the one before"
        )
    missing = [name for name in FITTED if name not in values["fitted"]]
    if missing:
        raise ConfigError(f"{path}: fitted: {missing[0]!r} is missing; add its value and prior")
    return Platform(values)


def write_platform(path: Path, platform: Platform) -> None:
    """Write a platform file; ConfigError if the path cannot be written."""
    text = yaml.safe_dump(dict(platform.values), sort_keys=False, allow_unicode=True, width=100)
    try:
        path.write_text(HEADER + text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
