"""AlexNet and VGG: convolutions one after the other, then linear layers.

* AlexNet in one column (Krizhevsky 2014, "One weird trick", as torchvision has it), with 61 million
  weights. ParaDL trained the one of 2012 (96, 256, 384, 384 and 256 filters); its shapes are in the
  oracle's workload file.
* VGG-11 and VGG-16 (Simonyan and Zisserman 2015), without batch normalisation.

Blocks: the convolutions, ReLUs and poolings ``features_0``, ``features_1``, ..., ``avgpool``,
``flatten``, and the classifier. ImageNet and Highres: torchvision's, with three linear layers
(VGG's are ``classifier_0`` ... ``classifier_6``). Small images: one linear layer (``classifier``),
as in DDLBench (benchmark/{mnist,cifar10}), so that VGG-11 has 9 layers with weights instead of 11;
AlexNet's first convolution is padded by 5 instead of 2, its pooling is 2x2 instead of 3x3, and it
has no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flatten import flatten, is_small, small_network
from ddlbench.networks.torchvision_compat import models

# Output channels of the convolutions between one pooling and the next.
_Stages = tuple[tuple[int, ...], ...]
_VGG11: _Stages = ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2)
_VGG16: _Stages = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
# Filters, kernel, stride, padding, and whether pooling follows.
_ALEXNET = (
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
    for filters, kernel, stride, padding, pooled in _ALEXNET:
        layers += [nn.Conv2d(channels, filters, kernel, stride, padding), nn.ReLU()]
        channels, side = filters, -(-side // stride)
        # 28 pixels are one after the second pooling; a third would leave none.
        if pooled and side >= 2:
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            side //= 2
    return small_network(layers, channels, spec.num_classes)


def _vgg(
    torchvision_model: Callable[..., nn.Module], stages: _Stages, spec: DatasetSpec
) -> nn.Sequential:
    """(N, C, H, W) -> (N, num_classes)."""
    if not is_small(spec):
        return flatten(torchvision_model(num_classes=spec.num_classes), head="classifier")
    layers: list[nn.Module] = []
    channels, side = spec.channels, min(spec.height, spec.width)
    for stage in stages:
        for out_channels in stage:
            layers += [nn.Conv2d(channels, out_channels, kernel_size=3, padding=1), nn.ReLU()]
            channels = out_channels
        # MNIST's 28 pixels are one after four poolings; a fifth would leave none.
        if side >= 2:
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            side //= 2
    return small_network(layers, channels, spec.num_classes)


vgg11 = partial(_vgg, models.vgg11, _VGG11)  # configuration A
vgg16 = partial(_vgg, models.vgg16, _VGG16)  # configuration D
