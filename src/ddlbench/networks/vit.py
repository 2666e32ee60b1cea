"""Vision transformers ViT-Ti, ViT-S and ViT-B (Dosovitskiy et al. 2021; Touvron et al. 2021).

::

    patches | layer_0 | layer_1 | ... | layer_11 | norm | class_token | head
      cut      equal blocks of one shape, (N, T, width)    first token    one value a class

An image becomes a token for each patch, and one more whose features are classified. ImageNet and
Highres have patches of 16x16 pixels (197 and 1025 tokens), small images of 4x4 (MNIST: 50 tokens,
CIFAR-10: 65), as 16 would leave four of them. All layers are equal, so 2, 3, 4, 6 or 12 stages of
them take equal time.

ViT-B/16 computes what torchvision's ``vit_b_16`` does; initial weights are those of Touvron et al.
(truncated normal, 0.02), with which the gradient reaches the first block from the first step on.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flatten import LARGEST_SMALL_SIDE
from ddlbench.networks.transformer import TransformerBlock, initialize, learnt

_LAYERS = 12
_EPSILON = 1e-6
_WIDER = 4  # the perceptron's hidden features over those of a token
_PATCH, _SMALL_PATCH = 16, 4


class Patches(nn.Module):
    """Cuts images into patches: (N, C, H, W) -> (N, 1 + patches, width), with positions.

    Raises:
        ConfigError: the patches do not cover the image.
    """

    def __init__(self, spec: DatasetSpec, size: int, width: int) -> None:
        super().__init__()
        if spec.height % size or spec.width % size:
            raise ConfigError(
                f"vision transformers cut images of {spec.height}x{spec.width} pixels into patches "
                f"of {size}x{size}, which do not cover them; make height and width of dataset "
                f"{spec.name!r} multiples of {size}"
            )
        tokens = 1 + (spec.height // size) * (spec.width // size)
        self.cut = nn.Conv2d(spec.channels, width, size, size)
        self.class_token = learnt(1, 1, width)
        self.positions = learnt(1, tokens, width)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.cut(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(patches), -1, -1)
        return torch.cat([first, patches], dim=1) + self.positions


class ClassToken(nn.Module):
    """The features of the first token: (N, T, width) -> (N, width)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]


def _vit(width: int, heads: int, spec: DatasetSpec) -> nn.Sequential:
    """(N, C, H, W) -> (N, num_classes)."""
    small = max(spec.height, spec.width) <= LARGEST_SMALL_SIDE
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["patches"] = Patches(spec, _SMALL_PATCH if small else _PATCH, width)
    for number in range(_LAYERS):
        blocks[f"layer_{number}"] = TransformerBlock(width, heads, _WIDER * width, _EPSILON)
    blocks["norm"] = nn.LayerNorm(width, _EPSILON)
    blocks["class_token"] = ClassToken()
    blocks["head"] = nn.Linear(width, spec.num_classes)
    network = nn.Sequential(blocks)
    initialize(network)
    return network


vit_tiny = partial(_vit, 192, 3)
vit_small = partial(_vit, 384, 6)
vit_base = partial(_vit, 768, 12)
