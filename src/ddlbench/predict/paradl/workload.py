"""Workload files: the layers of a network and the time of one sample on one device.

A file has a time of the whole network (ParaDL published only this) or a time of each layer. The
variant of the oracle chooses the weights by which a single time is spread over the layers.

A network is a sequence of layers; a shortcut's projection stands at the end of its block.
|x|, |y| are items of one sample, |w| items of the layer (Kahira et al., Table II).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import MinLen

from ddlbench.common.document import Document
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count, Form, Name, Natural, Positive
from ddlbench.common.schema import nearest

Shape = Annotated[tuple[Count, ...], MinLen(2)]
"""Channels, then the spatial extents."""
Kind = Literal["conv", "linear", "batchnorm", "relu", "add", "pool", "dropout"]


@dataclass(frozen=True)
class Layer(Form):
    """One layer.

    Attributes:
        input, output: channels and spatial extents of one sample.
        weights: trained items, with biases and both vectors of a batch normalisation.
        kernel, stride: extent and step along every spatial dimension; 1 if there is none.
        shortcut: a projection beside a residual block.
        forward_backward_s_per_sample: None where the network has one time.
    """

    name: Name
    kind: Kind
    input: Shape
    output: Shape
    weights: Natural
    kernel: Count = 1
    stride: Count = 1
    shortcut: bool = False
    forward_backward_s_per_sample: Positive | None = None

    @property
    def x(self) -> int:
        """|x|: input items of one sample."""
        return prod(self.input)

    @property
    def y(self) -> int:
        """|y|: output items of one sample."""
        return prod(self.output)

    @property
    def channels(self) -> int:
        """Input channels, C."""
        return self.input[0]

    @property
    def filters(self) -> int:
        """Output channels, F."""
        return self.output[0]

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one sample forward."""
        if self.kind == "conv":
            window = self.kernel ** len(self.input[1:])
            return self.y * self.channels * window
        return self.x * self.y if self.kind == "linear" else 0

    def slice_items(self, dim: int) -> int:
        """Items of a slice of the input with extent 1 along a dimension of its shape."""
        return self.x // self.input[dim]

    @property
    def halo_rows(self) -> int:
        """Rows that an inner part needs of both neighbours together: kernel less stride."""
        return max(0, self.kernel - self.stride) if self.kind in ("conv", "pool") else 0


class Stack:
    """A sequence of layers; each reads the output of the one before."""

    def __init__(self, sample: Shape) -> None:
        self.shape = sample
        self.layers: list[Layer] = []

    def conv(
        self,
        name: str,
        filters: int,
        kernel: int,
        stride: int = 1,
        pad: int | str = 0,
        *,
        bias: bool = True,
    ) -> None:
        """Add a convolution; ``pad="same"`` gives extent / stride, rounded up."""
        extents = tuple(
            -(-size // stride) if isinstance(pad, str) else (size + 2 * pad - kernel) // stride + 1
            for size in self.shape[1:]
        )
        window = kernel ** len(extents)
        weights = self.shape[0] * filters * window + (filters if bias else 0)
        self._add(Layer(name, "conv", self.shape, (filters, *extents), weights, kernel, stride))

    def pool(self, name: str, kernel: int, stride: int, round_up: bool = False) -> None:
        """Add a pooling layer without padding."""
        over = stride - 1 if round_up else 0
        extents = tuple((size - kernel + over) // stride + 1 for size in self.shape[1:])
        shape = (self.shape[0], *extents)
        self._add(Layer(name, "pool", self.shape, shape, 0, kernel, stride))

    def pointwise(self, name: str, kind: Kind) -> None:
        """Add a layer whose output is as large as its input."""
        weights = 2 * self.shape[0] if kind == "batchnorm" else 0
        self._add(Layer(name, kind, self.shape, self.shape, weights))

    def linear(self, name: str, features: int) -> None:
        """Add a fully connected layer over everything before it."""
        weights = (prod(self.shape) + 1) * features
        shape = (features, *(1 for _ in self.shape[1:]))
        self._add(Layer(name, "linear", self.shape, shape, weights))

    def shortcut(self, other: Stack) -> None:
        """Add the layers of a shortcut's projection; the shape stays."""
        self.layers += [replace(layer, shortcut=True) for layer in other.layers]

    def _add(self, layer: Layer) -> None:
        self.layers.append(layer)
        self.shape = layer.output


WORKLOAD_VERSION = 1


class InvalidWorkload(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A workload file that is missing, truncated, of another version, or inconsistent."""


@dataclass(frozen=True, kw_only=True)
class WorkloadFile(Form):
    """The layers of a network, and the time of one sample on one device."""

    schema_version: int
    network: Name
    dataset: Name
    samples_per_epoch: Count
    forward_backward_s_per_sample: Positive | None = None
    """Of the whole network; left out where each layer has its time."""
    time_source: str = ""
    spatial_layers: Natural
    layers: Annotated[tuple[Layer, ...], MinLen(1)]


_DOCUMENT = Document(
    WorkloadFile, WORKLOAD_VERSION, "workload file", InvalidWorkload, instead="correct the file"
)
_SHIPPED = files("ddlbench.predict.paradl").joinpath("workloads")


@dataclass(frozen=True)
class Workload:
    """A network on a dataset.

    Attributes:
        samples_per_epoch: D.
        time_s: forward and backward of one sample, whole network.
        layer_times_s: the same of each layer if it was profiled, else empty.
        spatial_layers: a spatial split divides so many of the first layers; the others compute on
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
    """Read a workload of the package, or the file ``name`` if it is a path.

    Args:
        name: in any spelling of a table of measurements: "ResNet-50", "resnet50".
        dataset: distinguishes the two sizes of CosmoFlow ("... 256").

    Raises:
        InvalidWorkload: there is none, or it does not fit the schema.
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
    file = _DOCUMENT.read(path)
    _check_times(file, str(path))
    times_s = tuple(layer.forward_backward_s_per_sample or 0.0 for layer in file.layers)
    return Workload(
        network=file.network,
        dataset=file.dataset,
        samples_per_epoch=file.samples_per_epoch,
        time_s=sum(times_s) or file.forward_backward_s_per_sample or 0.0,
        layers=file.layers,
        spatial_layers=file.spatial_layers,
        layer_times_s=times_s if any(times_s) else (),
    )


def _check_times(file: WorkloadFile, where: str) -> None:
    untimed = [one.name for one in file.layers if one.forward_backward_s_per_sample is None]
    if 0 < len(untimed) < len(file.layers):
        raise InvalidWorkload(
            f"{where}: layer {untimed[0]!r} has no time and others have; time all layers or none"
        )
    if untimed and file.forward_backward_s_per_sample is None:
        raise InvalidWorkload(
            f"{where}: no time; write forward_backward_s_per_sample of the network or of each layer"
        )
    if file.spatial_layers > len(file.layers):
        raise InvalidWorkload(
            f"{where}: spatial_layers is {file.spatial_layers}, the network has "
            f"{len(file.layers)} layers"
        )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
