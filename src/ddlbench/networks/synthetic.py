"""Two networks of our own: a small one with short messages, and one that cuts into equal stages.

``mlp``: flatten, 128 and 64 hidden units with ReLU, one output a class; the ``mlp`` of MXNet's
image classification examples. Cheng et al. train an MLP with a parameter server and do not state
its sizes. Their 247 images a second over 1000 Mbit/s and 231 over 500 (MNIST, batch 32) would mean
about half a megabyte each way a step; this network sends 0.44 MB there. Its first layer grows with
the image: 109,386 weights for MNIST, 19.3 million for ImageNet, 100.7 million for Highres.

``stack``: sixteen equal residual blocks. Two, four, eight or sixteen stages of it take equal time,
so all that a pipeline loses on it is its own bubble, messages and waits.

::

    stem (3x3 to 128 channels, 4 times narrower) | 16 x [ x + relu(conv3x3(x)) ] | pool | linear

The stem and the head have less than 2 % of a block's operations. There is no batch normalisation,
so a synchronous pipeline with micro-batches computes the same as sequential training.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flatten import initialize

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
