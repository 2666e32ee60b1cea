"""Convolutional networks: AlexNet, VGG, MobileNetV2, ResNet and CosmoFlow.

ImageNet and Highres take torchvision's; small images take DDLBench's (benchmark/{mnist,cifar10}).

* AlexNet in one column (Krizhevsky 2014, "One weird trick", as torchvision has it), and VGG-11 and
  VGG-16 (Simonyan and Zisserman 2015): ``features_0`` ..., ``avgpool``, ``flatten``, and the
  classifier, of three linear layers (VGG's are ``classifier_0`` ... ``classifier_6``). Small
  images: one linear layer; AlexNet's first convolution is padded by 5 instead of 2, its pooling is
  2x2 instead of 3x3, and it has no dropout.
* MobileNetV2 (Sandler et al. 2018): ``features_0`` (first convolution), the inverted residuals
  ``features_1`` ... ``features_17``, ``features_18`` (last convolution), ``avgpool``, ``flatten``,
  and the classifier. Small images: halved three times instead of five; see :class:`SmallBlock`.
* ResNet (He et al. 2016): ``conv1``, ``bn1``, ``relu``, ``maxpool``, the residual blocks
  ``layer1_0`` ... ``layer4_2``, ``avgpool``, ``flatten``, ``fc``. Small images: the first
  convolution is 3x3 with stride 1, and there is no ``maxpool``.

CosmoFlow (Mathuriya et al. 2018) has 3-D convolutions over volumes of dark matter, as ParaDL
trains it on volumes of 256^3 (Kahira et al., HPDC 2021, and its published profile)::

    conv1 .. conv7   16, 32, 64, 128, 256, 256 and 128 filters of 3^3 (2^3 from the fifth on);
                     the fourth halves the volume, the last is not padded
    pool1 .. pool6   means over 2^3, after each convolution but the last
    fc1 .. fc3       2048, 256, num_classes

The original predicts four cosmological parameters with a squared error. Here they are four classes
with the cross-entropy of every other network: layers, shapes and messages are the same. Smaller
volumes, down to 4^3, have fewer poolings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flat import flatten, initialize, is_small, small_network
from ddlbench.networks.torchvision_compat import models, ops

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


def _resnet(torchvision_model: Callable[..., nn.Module], spec: DatasetSpec) -> nn.Sequential:
    """(N, C, H, W) -> (N, num_classes)."""
    small = is_small(spec)  # first, as it refuses some images
    model = torchvision_model(num_classes=spec.num_classes)
    if small:
        model.conv1 = nn.Conv2d(spec.channels, 64, kernel_size=3, padding=1, bias=False)
        initialize(model.conv1)
        del model.maxpool
    return flatten(model, head="fc")


resnet18 = partial(_resnet, models.resnet18)
resnet50 = partial(_resnet, models.resnet50)
resnet101 = partial(_resnet, models.resnet101)
resnet152 = partial(_resnet, models.resnet152)


# Filters, kernel, stride.
_CONVOLUTIONS = (
    (16, 3, 1),
    (32, 3, 1),
    (64, 3, 1),
    (128, 3, 2),
    (256, 2, 1),
    (256, 2, 1),
    (128, 2, 1),
)
_HIDDEN = (2048, 256)
_SMALLEST_SIDE = 4


def cosmoflow(spec: DatasetSpec) -> nn.Sequential:
    """CosmoFlow: (N, C, D, H, W) -> (N, num_classes).

    Raises:
        ConfigError: the dataset has no volumes, or volumes that are too small.
    """
    if spec.depth is None:
        raise ConfigError(
            f"network cosmoflow reads volumes, but dataset {spec.name!r} has images; write "
            "dataset: cosmoflow"
        )
    sides = [spec.depth, spec.height, spec.width]
    if min(sides) < _SMALLEST_SIDE:
        raise ConfigError(
            f"network cosmoflow reads volumes of {_SMALLEST_SIDE} voxels a side at least, but "
            f"dataset {spec.name!r} has {min(sides)}"
        )
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    channels = spec.channels
    for number, (filters, kernel, stride) in enumerate(_CONVOLUTIONS, start=1):
        last = number == len(_CONVOLUTIONS)
        blocks[f"conv{number}"] = nn.Conv3d(
            channels, filters, kernel, stride, padding=_padding(kernel, last)
        )
        blocks[f"relu{number}"] = nn.ReLU()
        channels = filters
        sides = [side - kernel + 1 if last else -(-side // stride) for side in sides]
        # The last convolution needs two voxels; the fourth will halve what is left.
        if not last and min(sides) >= (8 if number < 4 else 4):
            blocks[f"pool{number}"] = nn.AvgPool3d(kernel_size=2, stride=2)
            sides = [side // 2 for side in sides]
    blocks["flatten"] = nn.Flatten()
    features = channels * sides[0] * sides[1] * sides[2]
    for number, width in enumerate(_HIDDEN, start=1):
        blocks[f"fc{number}"] = nn.Linear(features, width)
        blocks[f"relu_fc{number}"] = nn.ReLU()
        features = width
    blocks["fc3"] = nn.Linear(features, spec.num_classes)
    network = nn.Sequential(blocks)
    _initialize(network)
    return network


def _padding(kernel: int, last: bool) -> int | str:
    """Padding that leaves ``side / stride``, rounded up; a kernel of two pads at the end only."""
    if last:
        return 0
    return "same" if kernel % 2 == 0 else kernel // 2


def _initialize(network: nn.Module) -> None:
    """He et al. 2015 (normal, fan in); biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv3d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
