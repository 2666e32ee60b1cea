"""Flat networks: sequences of blocks that can be cut between any two, and two of our own.

torchvision's models hold their blocks in nested sequences and call them in ``forward``. Here the
first level of nesting goes: ``layer1.0`` becomes the element ``layer1_0``, ``features.3`` becomes
``features_3``; what ``forward`` did between modules (pooling, flattening) becomes an element.
The modules are torchvision's own, so parameters and results are those of the model.

``mlp``: flatten, 128 and 64 hidden units with ReLU, one output a class; the ``mlp`` of MXNet's
image classification examples. Cheng et al. train an MLP with a parameter server and do not state
its sizes. Their 247 images a second over 1000 Mbit/s and 231 over 500 (MNIST, batch 32) would mean
about half a megabyte each way a step; this network sends 0.44 MB there.

``stack``: sixteen equal residual blocks. Two, four, eight or sixteen stages of it take equal time,
so all that a pipeline loses on it is its own bubble, messages and waits::

    stem (3x3 to 128 channels, 4 times narrower) | 16 x [ x + relu(conv3x3(x)) ] | pool | linear

There is no batch normalisation, so a synchronous pipeline with micro-batches computes the same as
sequential training.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from torch import Tensor, nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DatasetSpec


def flatten(model: nn.Module, head: str) -> nn.Sequential:
    """Makes a flat sequence with the same result as ``model``.

    Args:
        model: its ``forward`` calls its children in the order of their definition, averages
            over height and width, flattens, and calls ``head``. Its modules are reused.
        head: the child that takes the flattened features, of shape (N, features).
    """
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for name, child in model.named_children():
        if name == head:
            # MobileNetV2 averages in its forward, without a module.
            blocks.setdefault("avgpool", nn.AdaptiveAvgPool2d((1, 1)))
            blocks["flatten"] = nn.Flatten()
        if isinstance(child, nn.Sequential):
            blocks.update((f"{name}_{inner}", block) for inner, block in child.named_children())
        else:
            blocks[name] = child
    return out_of_place(nn.Sequential(blocks))


def out_of_place(network: nn.Sequential) -> nn.Sequential:
    """Makes ``network`` safe to cut at every boundary; results do not change.

    An element that overwrites its input must not come first in a partition, because another
    partition, or a recomputation, still needs that input. Operations inside a block stay in place.
    """
    for block in network:
        if getattr(block, "inplace", False):
            setattr(block, "inplace", False)  # noqa: B010 (a plain attribute, not a submodule)
    return network


def initialize(network: nn.Module) -> None:
    """Draws weights as torchvision's VGG and MobileNetV2 do.

    Convolutions: He et al. 2015 (normal, fan out); linear layers: normal, 0.01; biases: zero.
    Normalisations start as PyTorch leaves them, scale 1 and shift 0.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def small_network(layers: Iterable[nn.Module], channels: int, num_classes: int) -> nn.Sequential:
    """A convolutional network for small images, with initial weights.

    Args:
        layers: the blocks ``features_0``, ``features_1``, ...
        channels: of the last layer's output.
        num_classes: outputs of the linear layer after the average over height and width.
    """
    blocks = OrderedDict((f"features_{index}", layer) for index, layer in enumerate(layers))
    blocks["avgpool"] = nn.AdaptiveAvgPool2d((1, 1))
    blocks["flatten"] = nn.Flatten()
    blocks["classifier"] = nn.Linear(channels, num_classes)
    network = nn.Sequential(blocks)
    initialize(network)
    return network


LARGEST_SMALL_SIDE = 64


def is_small(spec: DatasetSpec) -> bool:
    """Whether images of ``spec`` take the variant for small images.

    Raises:
        ConfigError: the images are large and do not have the 3 channels that torchvision's read.
    """
    if max(spec.height, spec.width) <= LARGEST_SMALL_SIDE:
        return True
    if spec.channels != 3:
        raise ConfigError(
            f"the networks for images larger than {LARGEST_SMALL_SIDE} pixels read 3 channels, "
            f"but dataset {spec.name!r} has {spec.channels}"
        )
    return False


_HIDDEN = (128, 64)


def mlp(spec: DatasetSpec) -> nn.Sequential:
    """Three linear layers: (N, C, H, W) -> (N, num_classes); images of any size and channels."""
    blocks: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    features = spec.image_bytes  # one byte a value of the image
    for number, width in enumerate(_HIDDEN, start=1):
        blocks[f"fc{number}"] = _linear(features, width)
        blocks[f"relu{number}"] = nn.ReLU()
        features = width
    blocks[f"fc{len(_HIDDEN) + 1}"] = _linear(features, spec.num_classes)
    return nn.Sequential(blocks)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """He et al. 2015 (normal, fan in); biases zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer


_BLOCKS = 16
_CHANNELS = 128
_NARROWER = 4


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.relu(self.conv(inputs))


def stack(spec: DatasetSpec) -> nn.Sequential:
    """Sixteen equal blocks: (N, C, H, W) -> (N, num_classes)."""
    stem = nn.Conv2d(spec.channels, _CHANNELS, kernel_size=3, stride=_NARROWER, padding=1)
    blocks: OrderedDict[str, nn.Module] = OrderedDict(stem=stem)
    blocks.update((f"block_{index}", _Residual(_CHANNELS)) for index in range(_BLOCKS))
    blocks["avgpool"] = nn.AdaptiveAvgPool2d((1, 1))
    blocks["flatten"] = nn.Flatten()
    blocks["classifier"] = nn.Linear(_CHANNELS, spec.num_classes)
    network = nn.Sequential(blocks)
    initialize(network)
    # What a block adds is small beside its input, so that sixteen of them do not blow it up.
    for block in network:
        if isinstance(block, _Residual):
            block.conv.weight.data.mul_(0.25)
    return network
