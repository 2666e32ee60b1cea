"""A cluster as the oracle of transformers sees it: data sheets, and a few fitted constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddlbench.predict.platform_file import PlatformFile

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
class Accelerators(PlatformFile):
    """Devices of a node, the links between them, and between nodes."""

    schema: ClassVar[str] = "accelerators"
    mark: ClassVar[str] = "links"
    other_mark: ClassVar[str] = "levels"
    fitted: ClassVar[Sequence[str]] = FITTED

    @property
    def node_bytes_per_s(self) -> float:
        """Of one device to the others of its node, one way."""
        return float(self.values["links"]["node"]["bandwidth_bytes_per_s"])

    @property
    def network_bytes_per_s(self) -> float:
        """Of all network cards of a node together, one way."""
        return float(self.values["links"]["network"]["bandwidth_bytes_per_s"])

    @property
    def interval(self) -> tuple[float, float]:
        """Measured over predicted, 5th and 95th percentile of rows that were held out."""
        found = self.values["interval"]
        return float(found["low"]), float(found["high"])
