"""Workloads: the layers of a network and the time of one sample on one device.

Those that ParaDL measured stand below, with the shapes that ParaDL ran: images of 226 x 226, and
pooling that rounds up as Chainer's does (so VGG16's first linear layer reads 512 x 8 x 8). Their
times are the per-sample times of the published profiles (one V100). Others are JSON files.

A workload has a time of the whole network (ParaDL published only this) or a time of each layer. The
variant of the oracle chooses the weights by which a single time is spread over the layers.

A network is a sequence of layers; a shortcut's projection stands at the end of its block.
|x|, |y| are items of one sample, |w| items of the layer (Kahira et al., Table II).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from ddlbench.common.document import Document
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count, Form, Name, Natural, Positive

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

    @cached_property
    def x(self) -> int:
        """|x|: input items of one sample."""
        return prod(self.input)

    @cached_property
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

    @cached_property
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
    WorkloadFile, WORKLOAD_VERSION, "workload file", ConfigError, instead="correct the file"
)


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

    @cached_property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    def times_s(self, weight: Callable[[Layer], float]) -> Sequence[float]:
        """FW + BW of each layer for one sample: measured, or the total spread by ``weight``."""
        if self.layer_times_s:
            return self.layer_times_s
        weights = [weight(layer) for layer in self.layers]
        whole = sum(weights)
        return [self.time_s * each / whole for each in weights]


def known_workloads() -> list[str]:
    """Names of the networks that ParaDL measured."""
    return sorted(PUBLISHED)


def has_workload(network: str) -> bool:
    """Whether ParaDL measured a network."""
    return _plain(network) in map(_plain, known_workloads())


def load_workload(name: str, dataset: str = "") -> Workload:
    """A network that ParaDL measured, or the workload file ``name`` if it is a path.

    Args:
        name: in any spelling of a table of measurements: "ResNet-50", "resnet50".
        dataset: distinguishes the two sizes of CosmoFlow ("... 256").

    Raises:
        ConfigError: there is none, or it does not fit the schema.
    """
    if name.endswith(".json"):
        return _read(Path(name))
    plain = {_plain(known): known for known in known_workloads()}
    wanted = _plain(name)
    if "256" in dataset and f"{wanted}256" in plain:
        wanted += "256"
    if wanted not in plain:
        raise ConfigError(
            f"there is no workload of {name!r}; write the path of a .json workload file, or a "
            f"published one: {', '.join(plain.values())}"
        )
    return _published(plain[wanted])


@cache
def _published(name: str) -> Workload:
    return _workload(published_file(name))


@cache
def _read(path: Path) -> Workload:
    file = _DOCUMENT.read(path)
    _check_times(file, str(path))
    return _workload(file)


def _workload(file: WorkloadFile) -> Workload:
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
    untimed = [layer.name for layer in file.layers if layer.forward_backward_s_per_sample is None]
    if 0 < len(untimed) < len(file.layers):
        raise ConfigError(
            f"{where}: layer {untimed[0]!r} has no time and others have; time all layers or none"
        )
    if untimed and file.forward_backward_s_per_sample is None:
        raise ConfigError(
            f"{where}: no time; write forward_backward_s_per_sample of the network or of each layer"
        )
    if file.spatial_layers > len(file.layers):
        raise ConfigError(
            f"{where}: spatial_layers is {file.spatial_layers}, the network has "
            f"{len(file.layers)} layers"
        )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


IMAGE: Shape = (3, 226, 226)


def resnet(blocks: tuple[int, ...]) -> list[Layer]:
    """Bottleneck ResNet (He et al. 2016, Table 1), downsampling in a block's first convolution."""
    net = Stack(IMAGE)
    net.conv("conv1", 64, 7, 2, 3)
    net.pointwise("bn1", "batchnorm")
    net.pointwise("relu1", "relu")
    net.pool("maxpool", 3, 2, round_up=True)
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            _bottleneck(net, f"conv{stage + 2}_{index + 1}", width, stride, project=index == 0)
    net.pool("avgpool", 7, 1)
    net.linear("fc", 1000)
    return net.layers


def _bottleneck(net: Stack, name: str, width: int, stride: int, project: bool) -> None:
    beside = Stack(net.shape)
    convolutions = ((width, 1, stride, 0), (width, 3, 1, 1), (4 * width, 1, 1, 0))
    for number, (filters, kernel, step, pad) in enumerate(convolutions, start=1):
        net.conv(f"{name}.conv{number}", filters, kernel, step, pad, bias=False)
        net.pointwise(f"{name}.bn{number}", "batchnorm")
        if number < len(convolutions):
            net.pointwise(f"{name}.relu{number}", "relu")
    if project:
        beside.conv(f"{name}.project", 4 * width, 1, stride, bias=False)
        beside.pointwise(f"{name}.project_bn", "batchnorm")
        net.shortcut(beside)
    net.pointwise(f"{name}.add", "add")
    net.pointwise(f"{name}.relu3", "relu")


def vgg16() -> list[Layer]:
    """VGG16 (Simonyan and Zisserman 2015, configuration D)."""
    net = Stack(IMAGE)
    for stage, (filters, count) in enumerate(
        ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1
    ):
        for index in range(1, count + 1):
            net.conv(f"conv{stage}_{index}", filters, 3, 1, 1)
            net.pointwise(f"relu{stage}_{index}", "relu")
        net.pool(f"pool{stage}", 2, 2, round_up=True)
    _classifier(net)
    return net.layers


def alexnet() -> list[Layer]:
    """AlexNet in one column (Krizhevsky et al. 2012), as trained by ParaDL."""
    net = Stack(IMAGE)
    for number, (filters, kernel, stride, pad, pooled) in enumerate(
        ((96, 11, 4, 0, 1), (256, 5, 1, 2, 1), (384, 3, 1, 1, 0), (384, 3, 1, 1, 0),
         (256, 3, 1, 1, 1)), start=1,
    ):  # fmt: skip
        net.conv(f"conv{number}", filters, kernel, stride, pad)
        net.pointwise(f"relu{number}", "relu")
        if pooled:
            net.pool(f"pool{number}", 3, 2, round_up=True)
    _classifier(net)
    return net.layers


def _classifier(net: Stack) -> None:
    for name in ("6", "7"):
        net.linear(f"fc{name}", 4096)
        net.pointwise(f"relu{name}", "relu")
        net.pointwise(f"dropout{name}", "dropout")
    net.linear("fc8", 1000)


def cosmoflow_512() -> list[Layer]:
    """CosmoFlow on volumes of 512^3, with the shapes of ParaDL's profile."""
    return _cosmoflow(
        (4, 512, 512, 512),
        ((16, 3, 1, 0), (32, 3, 1, 0), (64, 3, 2, 0), (128, 3, 1, 0), (256, 2, 1, 0),
         (256, 2, 1, 0), (128, 2, 1, 0)),
    )  # fmt: skip


def cosmoflow_256() -> list[Layer]:
    """CosmoFlow on volumes of 256^3: padded convolutions, the fourth with stride 2."""
    return _cosmoflow(
        (4, 256, 256, 256),
        ((16, 3, 1, "same"), (32, 3, 1, "same"), (64, 3, 1, "same"), (128, 3, 2, "same"),
         (256, 2, 1, "same"), (256, 2, 1, "same"), (128, 2, 1, 0)),
    )  # fmt: skip


def _cosmoflow(sample: Shape, convolutions: tuple[tuple[int, int, int, int | str], ...]) -> Any:
    net = Stack(sample)
    for number, (filters, kernel, stride, pad) in enumerate(convolutions, start=1):
        net.conv(f"conv{number}", filters, kernel, stride, pad)
        net.pointwise(f"relu{number}", "relu")
        if number < len(convolutions):
            net.pool(f"pool{number}", 2, 2)
    for number, features in ((1, 2048), (2, 256)):
        net.linear(f"fc{number}", features)
        net.pointwise(f"relu_fc{number}", "relu")
    net.linear("fc3", 4)
    return net.layers


PROFILE = "ParaDL's published profile, one V100, forward and backward"
PUBLISHED: dict[str, dict[str, Any]] = {
    # name: layers, seconds per sample, source of the seconds, dataset, spatial layers
    "resnet50": {"layers": lambda: resnet((3, 4, 6, 3)), "time_s": 0.003119502},
    "resnet152": {"layers": lambda: resnet((3, 8, 36, 3)), "time_s": 0.474 / 64,
                  "source": "published: 0.474 s for 64 samples, one V100"},
    "vgg16": {"layers": vgg16, "time_s": 0.008245589},
    "alexnet": {"layers": alexnet, "time_s": 0.000610938},
    "cosmoflow": {"layers": cosmoflow_512, "time_s": 2.108143184, "dataset": "CosmoFlow 512^3",
                  "split": 6},
    "cosmoflow-256": {"layers": cosmoflow_256, "time_s": 0.263517898,
                      "dataset": "CosmoFlow 256^3", "split": 6},
}  # fmt: skip
SAMPLES = {"ImageNet": 1_280_000, "CosmoFlow": 1_584}


def published_file(name: str) -> WorkloadFile:
    """A network that ParaDL measured, as its workload file would say it."""
    network = PUBLISHED[name]
    dataset = network.get("dataset", "ImageNet")
    layers = network["layers"]()
    return WorkloadFile(
        schema_version=WORKLOAD_VERSION,
        network=name,
        dataset=dataset,
        samples_per_epoch=SAMPLES[dataset.split()[0]],
        forward_backward_s_per_sample=network["time_s"],
        time_source=network.get("source", PROFILE),
        spatial_layers=network.get("split", _before_the_classifier(layers)),
        layers=tuple(layers),
    )


def _before_the_classifier(layers: list[Layer]) -> int:
    """Number of layers before the pool or linear layer over whole images."""
    last = next(index for index, layer in enumerate(layers) if layer.kind == "linear")
    whole = layers[last - 1]
    return last - 1 if whole.kind == "pool" and whole.output[1] == 1 else last
