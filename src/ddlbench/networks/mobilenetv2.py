"""MobileNetV2 (Sandler et al. 2018).

Blocks: ``features_0`` (first convolution), the inverted residuals ``features_1`` ...
``features_17``, ``features_18`` (last convolution), ``avgpool``, ``flatten``, and the classifier.
ImageNet and Highres: torchvision's. Small images: DDLBench's (benchmark/{mnist,cifar10}), which
halves the image three times instead of five and whose blocks differ, see :class:`SmallBlock`.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flatten import flatten, is_small, small_network
from ddlbench.networks.torchvision_compat import models, ops

# Expansion, output channels, blocks, stride of the first: the paper's Table 2, except that the
# second row has stride 1 (and so has the first convolution).
_SMALL_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

_conv_bn_relu = partial(ops.Conv2dNormActivation, activation_layer=nn.ReLU)


class SmallBlock(nn.Module):
    """DDLBench's inverted residual for small images.

    Unlike torchvision's it expands even by a factor of 1, uses ReLU rather than ReLU6, and has
    a shortcut wherever the stride is 1, projected by a 1x1 convolution where channels change.

    Shapes:
        (N, in_channels, H, W) -> (N, out_channels, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.conv = nn.Sequential(
            _conv_bn_relu(in_channels, hidden, kernel_size=1),
            _conv_bn_relu(hidden, hidden, kernel_size=3, stride=stride, groups=hidden),
            *_project(hidden, out_channels),
        )
        self.shortcut: nn.Sequential | None = None
        if stride == 1:
            same = in_channels == out_channels
            self.shortcut = nn.Sequential(*([] if same else _project(in_channels, out_channels)))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return out if self.shortcut is None else out + self.shortcut(x)


def _project(in_channels: int, out_channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False),
        nn.BatchNorm2d(out_channels),
    ]


def mobilenetv2(spec: DatasetSpec) -> nn.Sequential:
    """MobileNetV2: (N, C, H, W) -> (N, num_classes)."""
    if is_small(spec):
        return _small_mobilenetv2(spec)
    return flatten(models.mobilenet_v2(num_classes=spec.num_classes), head="classifier")


def _small_mobilenetv2(spec: DatasetSpec) -> nn.Sequential:
    layers: list[nn.Module] = [_conv_bn_relu(spec.channels, 32, kernel_size=3)]
    channels = 32
    for expansion, out_channels, count, first_stride in _SMALL_STAGES:
        for index in range(count):
            stride = first_stride if index == 0 else 1
            layers.append(SmallBlock(channels, out_channels, expansion, stride))
            channels = out_channels
    layers.append(_conv_bn_relu(channels, 1280, kernel_size=1))
    return small_network(layers, 1280, spec.num_classes)
