"""Platform files of accelerators: data sheets, and few constants fitted to measured steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ddlbench.experiment.document import whole_file
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.schema import check_against, nearest, read_yaml

HEADER = (
    "# Written by `ddlbench oracle calibrate --workload transformer`, or by hand: docs/oracle.md.\n"
)
PLATFORM = "a100-80gb"
FITTED = (
    "matmul_efficiency",
    "matmul_width",
    "attention_efficiency",
    "memory_efficiency",
    "kernel_s",
    "host_layer_s",
    "host_collective_s",
    "host_softmax_s",
    "node_efficiency",
    "half_node_share",
    "collective_s",
    "uneven_vocabulary",
    "network_efficiency",
    "send_s",
    "update_efficiency",
)


@dataclass(frozen=True)
class Accelerators:
    """A cluster of accelerators.

    ``config/schemas/accelerators.schema.yaml`` explains each key of ``values``.
    """

    values: Mapping[str, Any]

    @property
    def devices_per_node(self) -> int:
        return int(self.values["devices_per_node"])

    @property
    def device(self) -> Mapping[str, float]:
        """``memory_bytes``, ``flops_per_s``, ``memory_bytes_per_s``."""
        device: Mapping[str, float] = self.values["device"]
        return device

    @property
    def node_bytes_per_s(self) -> float:
        """Of one device to the others of its node, one way."""
        return float(self.values["links"]["node"]["bandwidth_bytes_per_s"])

    @property
    def network_bytes_per_s(self) -> float:
        """Of all network cards of a node together, one way."""
        return float(self.values["links"]["network"]["bandwidth_bytes_per_s"])

    @property
    def description(self) -> str:
        return str(self.values["description"])

    @property
    def interval(self) -> tuple[float, float]:
        """Measured over predicted, 5th and 95th percentile of rows that were held out."""
        found = self.values["interval"]
        return float(found["low"]), float(found["high"])

    def constant(self, name: str) -> float:
        return float(self.values["fitted"][name]["value"])

    def with_constants(self, constants: Mapping[str, float]) -> Accelerators:
        """The same platform with other fitted constants."""
        fitted = {name: dict(entry) for name, entry in self.values["fitted"].items()}
        for name, value in constants.items():
            fitted[name]["value"] = float(value)
        return replace(self, values={**self.values, "fitted": fitted})


def load_accelerators(name: str) -> Accelerators:
    """Read ``config/platforms/<name>.yaml``, or the file ``name`` if it is a path.

    Raises:
        ConfigError: there is no such platform, or one of its keys is wrong.
    """
    folder = project_root() / "config" / "platforms"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        remark = nearest(name, known_accelerators(folder))
        raise ConfigError(f"platform {name!r} has no file {path}; {remark}")
    values = read_yaml(path)
    if "levels" in values:
        remark = f"write one of {', '.join(known_accelerators(folder))}"
        raise ConfigError(f"{path}: describes a platform of ParaDL's oracle, for CNNs; {remark}")
    check_against("accelerators", values, where=str(path))
    missing = [constant for constant in FITTED if constant not in values["fitted"]]
    if missing:
        raise ConfigError(f"{path}: fitted: {missing[0]!r} is missing; add its value and prior")
    for constant, entry in values["fitted"].items():
        if entry["value"] > entry.get("at_most", float("inf")):
            raise ConfigError(
                f"{path}: fitted: {constant} is {entry['value']:g}; "
                f"write at most {entry['at_most']:g}"
            )
    return Accelerators(values)


def known_accelerators(folder: Path) -> list[str]:
    """Names of the platform files that describe accelerators."""
    found = sorted(folder.glob("*.yaml"))
    return [path.stem for path in found if "levels:" not in path.read_text(encoding="utf-8")]


def write_accelerators(path: Path, platform: Accelerators) -> None:
    """Write a platform file; ConfigError if the path cannot be written."""
    text = yaml.safe_dump(dict(platform.values), sort_keys=False, allow_unicode=True, width=100)
    try:
        with whole_file(path) as part:
            part.write_text(HEADER + text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
