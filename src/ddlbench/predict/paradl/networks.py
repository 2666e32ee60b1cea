"""Workload files of the networks that ParaDL measured, made from their definitions.

``make tables`` writes them. Shapes are those that ParaDL ran: images of 226 x 226, and pooling that
rounds up as Chainer's does (so VGG16's first linear layer reads 512 x 8 x 8). Times are the
per-sample times of the published profiles (one V100).
"""

from __future__ import annotations

from typing import Any

from ddlbench.common.document import json_text
from ddlbench.predict.paradl.workload import WORKLOAD_VERSION, Layer, Shape, Stack, WorkloadFile

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


def workload_text(name: str) -> str:
    """The text of a published network's workload file."""
    network = PUBLISHED[name]
    dataset = network.get("dataset", "ImageNet")
    layers = network["layers"]()
    file = WorkloadFile(
        schema_version=WORKLOAD_VERSION,
        network=name,
        dataset=dataset,
        samples_per_epoch=SAMPLES[dataset.split()[0]],
        forward_backward_s_per_sample=network["time_s"],
        time_source=network.get("source", PROFILE),
        spatial_layers=network.get("split", _before_the_classifier(layers)),
        layers=tuple(layers),
    )
    return json_text(file.to_dict(without_defaults=True))


def _before_the_classifier(layers: list[Layer]) -> int:
    """Number of layers before the pool or linear layer over whole images."""
    last = next(index for index, layer in enumerate(layers) if layer.kind == "linear")
    whole = layers[last - 1]
    return last - 1 if whole.kind == "pool" and whole.output[1] == 1 else last
