"""Transformers: the layer of which they consist, vision transformers, and GPT-2.

A layer is attention, then a perceptron, each beside the identity (Vaswani et al. 2017, section
3.2)::

    x -+-> norm1 -> query, key, value -> heads -> output -+-> norm2 -> fc1 -> GELU -> fc2 -+->
       |__________________________________________________|________________________________|

The three projections of the attention are linear layers of their own, so that devices can split
them by heads. The norms come first (Xiong et al. 2020), as in ViT and GPT-2; there is no dropout.

The vision transformers are ViT-Ti, ViT-S and ViT-B (Dosovitskiy et al. 2021; Touvron et al. 2021)::

    patches | layer_0 | layer_1 | ... | layer_11 | norm | class_token | head
      cut      equal blocks of one shape, (N, T, width)    first token    one value a class

An image becomes a token for each patch, of 16x16 pixels or, of small images, 4x4, and one more
whose features are classified. ViT-B/16 computes what torchvision's ``vit_b_16`` does; initial
weights are those of Touvron et al. (truncated normal, 0.02), with which the gradient reaches the
first block from the first step on.

GPT-2 (Radford et al. 2019) gives the next token at every position::

    embedding | layer_0 | layer_1 | ... | layer_11 | norm | head
    token and   equal blocks of one shape,              a value for each token of the
    position    (N, T, width), causal attention         vocabulary, at each position

The head has weights of its own. GPT-2 ties them to the token embedding, but the first and the last
block of a pipeline may lie on two devices. Layers, operations and activations are those of the tied
network. Initial weights are GPT-2's: truncated normal, 0.02; what a layer adds to the identity
starts smaller, by the square root of the number of additions (section 2.3).

``gpt-tiny`` is ours, for one core.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flat import LARGEST_SMALL_SIDE

_DEVIATION = 0.02  # of initial weights, in ViT and in GPT-2
_WIDER = 4  # the perceptron's hidden features over those of a token

SHAPE = ("layers", "hidden_size", "attention_heads", "sequence_length", "vocabulary")
"""The numbers by which models of transformers tell one from another."""


class Attention(nn.Module):
    """Self-attention of several heads: (N, T, width) -> (N, T, width).

    A device that has some of the heads computes those.

    Args:
        width: features of a token; a multiple of ``heads``.
        heads: each reads ``width / heads`` features of the projections.
        causal: a token sees itself and earlier ones only.
    """

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.heads, self.head_width, self.causal = heads, width // heads, causal

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            layer(tokens).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        mixed: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return mixed


class TransformerBlock(nn.Module):
    """One layer of a transformer: (N, T, width) -> (N, T, width).

    Args:
        width: features of a token.
        heads: of the attention.
        hidden: features inside the perceptron.
        epsilon: of the norms.
        causal: see :class:`Attention`.
        gelu: "none" for the exact function, "tanh" for its approximation.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        epsilon: float,
        *,
        causal: bool = False,
        gelu: str = "none",
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, epsilon)
        self.attention = Attention(width, heads, causal=causal)
        self.norm2 = nn.LayerNorm(width, epsilon)
        self.fc1 = nn.Linear(width, hidden)
        self.gelu = nn.GELU(gelu)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        perceived: Tensor = self.fc2(self.gelu(self.fc1(self.norm2(tokens))))
        return tokens + perceived


def shape_of(network: nn.Module, inputs: Tensor) -> dict[str, int] | None:
    """The numbers :data:`SHAPE` of a network; its vocabulary is the values of an output.

    Args:
        network: of any kind, on the device of ``inputs``; the device "meta" is enough.
        inputs: one batch, as the network reads it.

    Returns:
        None unless all layers are equal and four times as wide inside.
    """
    blocks = [module for module in network.modules() if isinstance(module, TransformerBlock)]
    kinds = {
        (block.attention.heads, block.fc1.in_features, block.fc1.out_features) for block in blocks
    }
    if len(kinds) != 1:
        return None
    [(heads, width, hidden)] = kinds
    if hidden != _WIDER * width:
        return None
    lengths: list[int] = []
    hook = blocks[0].register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    try:
        with torch.no_grad():
            outputs = network(inputs)
    finally:
        hook.remove()
    numbers = (len(blocks), width, heads, lengths[0], outputs.shape[-1])
    return dict(zip(SHAPE, numbers, strict=True))


def initialize(network: nn.Module) -> None:
    """Draw the weights of linear layers, convolutions and embeddings; biases become zero."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=_DEVIATION)
            bias = getattr(module, "bias", None)
            if bias is not None:
                nn.init.zeros_(bias)


def learnt(*shape: int) -> nn.Parameter:
    """A weight that belongs to no layer, such as positions, with random numbers."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=_DEVIATION))


_VIT_LAYERS = 12
_VIT_EPSILON, _GPT_EPSILON = 1e-6, 1e-5
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
    for number in range(_VIT_LAYERS):
        blocks[f"layer_{number}"] = TransformerBlock(width, heads, _WIDER * width, _VIT_EPSILON)
    blocks["norm"] = nn.LayerNorm(width, _VIT_EPSILON)
    blocks["class_token"] = ClassToken()
    blocks["head"] = nn.Linear(width, spec.num_classes)
    network = nn.Sequential(blocks)
    initialize(network)
    return network


vit_tiny = partial(_vit, 192, 3)
vit_small = partial(_vit, 384, 6)
vit_base = partial(_vit, 768, 12)


class Embedding(nn.Module):
    """Learnt features of tokens and of positions: (N, T) -> (N, T, width).

    Args:
        vocabulary: number of different tokens.
        length: T, the tokens of a sequence.
        width: features of a token.
    """

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = learnt(1, length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.token(tokens) + self.position
        return features


def _gpt(layers: int, width: int, heads: int, spec: DatasetSpec) -> nn.Sequential:
    """(N, T) -> (N, T, vocabulary)."""
    if spec.sequence_length is None:
        raise ConfigError(
            f"the GPT networks read sequences of tokens, but dataset {spec.name!r} has "
            f"{spec.kind}; write dataset: tokens"
        )
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["embedding"] = Embedding(spec.num_classes, spec.sequence_length, width)
    for number in range(layers):
        blocks[f"layer_{number}"] = TransformerBlock(
            *(width, heads, _WIDER * width, _GPT_EPSILON), causal=True, gelu="tanh"
        )
    blocks["norm"] = nn.LayerNorm(width, _GPT_EPSILON)
    blocks["head"] = nn.Linear(width, spec.num_classes, bias=False)
    network = nn.Sequential(blocks)
    initialize(network)
    for block in network:
        if isinstance(block, TransformerBlock):
            for addition in (block.attention.output, block.fc2):
                addition.weight.data /= math.sqrt(2 * layers)
    return network


gpt_tiny = partial(_gpt, 4, 128, 4)
gpt_small = partial(_gpt, 12, 768, 12)
gpt_medium = partial(_gpt, 24, 1024, 16)
