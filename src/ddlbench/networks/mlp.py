"""A multi-layer perceptron: the smallest of the networks, whose messages are short.

Flatten, 128 and 64 hidden units with ReLU, one output a class: the ``mlp`` of MXNet's image
classification examples. Cheng et al. train an MLP with a parameter server and do not say its
sizes. Their 247 images a second over 1000 Mbit/s and 231 over 500 (MNIST, batch 32), if they are
the MLP's, stand for about half a megabyte each way a step; this one has 0.44 MB there.

The first layer grows with the image: 109,386 weights for MNIST, 19.3 million for ImageNet, 100.7
million for Highres.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ddlbench.experiment.dataset_spec import DatasetSpec

__all__ = ["mlp"]

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
