"""Workload files: the layers of a network and what one sample costs on one device.

Either one time for the whole network (all that ParaDL published) or a time for each layer. A
single time is spread over the layers by a weight that the variant of the oracle chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ddlbench.experiment.document import Document
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import nearest
from ddlbench.predict.paradl.layers import Layer

__all__ = [
    "WORKLOAD_VERSION",
    "InvalidWorkload",
    "Workload",
    "check_workload",
    "known_workloads",
    "load_workload",
]

WORKLOAD_VERSION = 1


class InvalidWorkload(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A workload file that is missing, truncated, of another version, or wrong in itself."""


_DOCUMENT = Document("workload", "workload file", InvalidWorkload)
_SHIPPED = files("ddlbench.predict.paradl").joinpath("workloads")


@dataclass(frozen=True)
class Workload:
    """A network on a dataset.

    Attributes:
        samples_per_epoch: D.
        time_s: forward and backward of one sample, whole network.
        layer_times_s: the same of each layer, where it was profiled; else empty.
        spatial_layers: how many of the first layers a spatial split takes; the rest runs on
            gathered activations.
    """

    network: str
    dataset: str
    samples_per_epoch: int
    time_s: float
    layers: tuple[Layer, ...]
    spatial_layers: int
    layer_times_s: tuple[float, ...] = ()

    @property
    def weights(self) -> int:
        """Trained items of all layers."""
        return sum(layer.weights for layer in self.layers)

    def times_s(self, weight: Callable[[Layer], float]) -> Sequence[float]:
        """FW + BW of each layer for one sample: measured, or the total spread by ``weight``."""
        if self.layer_times_s:
            return self.layer_times_s
        weights = [weight(layer) for layer in self.layers]
        return [self.time_s * each / sum(weights) for each in weights]


def known_workloads() -> list[str]:
    """Names of the workloads that come with the package."""
    return sorted(
        entry.name.removesuffix(".json")
        for entry in _SHIPPED.iterdir()
        if entry.name.endswith(".json")
    )


def load_workload(name: str, dataset: str = "") -> Workload:
    """Read the workload that comes with the package, or the file itself when ``name`` is a path.

    Args:
        name: as it may be spelt in a table of measurements: "ResNet-50", "resnet50".
        dataset: tells the two sizes of CosmoFlow apart ("... 256").

    Raises:
        InvalidWorkload: there is none, or it is not what the schema says.
    """
    if name.endswith(".json"):
        return _workload(Path(name))
    plain = {_plain(known): known for known in known_workloads()}
    wanted = _plain(name)
    if "256" in dataset and f"{wanted}256" in plain:
        wanted += "256"
    if wanted not in plain:
        raise InvalidWorkload(
            f"there is no workload of {name!r}; {nearest(name, plain.values())}; or write the path "
            "of a .json workload file"
        )
    return _workload(Path(str(_SHIPPED.joinpath(f"{plain[wanted]}.json"))))


@cache
def _workload(path: Path) -> Workload:
    value = _DOCUMENT.read(path)
    check_workload(value, str(path))
    layers = tuple(
        Layer(**{**said, "input": tuple(said["input"]), "output": tuple(said["output"])})
        for said in (_without_time(layer) for layer in value["layers"])
    )
    times = tuple(layer.get("forward_backward_s_per_sample", 0.0) for layer in value["layers"])
    return Workload(
        network=value["network"],
        dataset=value["dataset"],
        samples_per_epoch=value["samples_per_epoch"],
        time_s=sum(times) or value["forward_backward_s_per_sample"],
        layers=layers,
        spatial_layers=value["spatial_layers"],
        layer_times_s=times if any(times) else (),
    )


def _without_time(layer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key != "forward_backward_s_per_sample"}


def check_workload(value: dict[str, Any], where: str) -> None:
    """Check the content of a workload file, also what its schema cannot say.

    Raises:
        InvalidWorkload: it does not fit the schema, or layers and times do not match.
    """
    _DOCUMENT.check(value, where)
    timed = ["forward_backward_s_per_sample" in layer for layer in value["layers"]]
    if any(timed) and not all(timed):
        without = value["layers"][timed.index(False)]["name"]
        raise InvalidWorkload(
            f"{where}: layer {without!r} has no time and others have; time all layers or none"
        )
    if not any(timed) and "forward_backward_s_per_sample" not in value:
        raise InvalidWorkload(
            f"{where}: no time; write forward_backward_s_per_sample of the network or of each layer"
        )
    if value["spatial_layers"] > len(value["layers"]):
        raise InvalidWorkload(
            f"{where}: spatial_layers is {value['spatial_layers']}, the network has "
            f"{len(value['layers'])} layers"
        )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
