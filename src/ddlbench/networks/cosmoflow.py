"""CosmoFlow (Mathuriya et al. 2018): 3-D convolutions over volumes of dark matter.

As ParaDL trains it on volumes of 256^3 (Kahira et al., HPDC 2021, and its published profile)::

    conv1 .. conv7   16, 32, 64, 128, 256, 256 and 128 filters of 3^3 (2^3 from the fifth on);
                     the fourth halves the volume, the last is not padded
    pool1 .. pool6   means over 2^3, behind each convolution but the last
    fc1 .. fc3       2048, 256, num_classes

The original predicts four cosmological parameters with a squared error. Here the four outputs are
four classes with the cross-entropy of every other network: layers, shapes and messages are the
same. Smaller volumes, down to 4^3, have fewer poolings.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DatasetSpec

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
        sides = [_side(side, kernel, stride, last) for side in sides]
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


def _side(side: int, kernel: int, stride: int, last: bool) -> int:
    return side - kernel + 1 if last else -(-side // stride)


def _initialize(network: nn.Module) -> None:
    """He et al. 2015 (normal, fan in); biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv3d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
