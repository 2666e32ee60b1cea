"""AlexNet in one column (Krizhevsky 2014, "One weird trick", as torchvision has it).

Blocks: the convolutions, ReLUs and poolings ``features_0`` ... ``features_12``, ``avgpool``,
``flatten``, and the classifier. ImageNet and Highres: torchvision's, with 61 million weights. Small
images: the same filters, the first convolution padded by 5 instead of 2 and pooling 2x2 instead of
3x3, one linear layer (``classifier``), no dropout. ParaDL trained the one of 2012 (96, 256, 384,
384 and 256 filters); its shapes are in the oracle's workload file.
"""

from __future__ import annotations

from torch import nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flatten import flatten, is_small, small_network
from ddlbench.networks.torchvision_compat import models

# Filters, kernel, stride, padding, and whether pooling follows.
_SMALL = (
    (64, 11, 4, 5, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


def alexnet(spec: DatasetSpec) -> nn.Sequential:
    """AlexNet: (N, C, H, W) -> (N, num_classes)."""
    if is_small(spec):
        return _small_alexnet(spec)
    return flatten(models.alexnet(num_classes=spec.num_classes), head="classifier")


def _small_alexnet(spec: DatasetSpec) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels, side = spec.channels, min(spec.height, spec.width)
    for filters, kernel, stride, padding, pooled in _SMALL:
        layers += [nn.Conv2d(channels, filters, kernel, stride, padding), nn.ReLU()]
        channels, side = filters, -(-side // stride)
        # 28 pixels are one after the second pooling; a third would leave none.
        if pooled and side >= 2:
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            side //= 2
    return small_network(layers, channels, spec.num_classes)
