"""The block of which transformers consist: attention, then a perceptron, each beside the identity.

::

    x -+-> norm1 -> query, key, value -> heads -> output -+-> norm2 -> fc1 -> GELU -> fc2 -+->
       |__________________________________________________|________________________________|

The three projections of the attention are linear layers of their own, so that devices can split
them by heads. The norms come first (Xiong et al. 2020), as in ViT and GPT-2; there is no dropout.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_DEVIATION = 0.02  # of initial weights, in ViT and in GPT-2
_USUAL_HIDDEN = 4  # the perceptron's hidden features over those of a token

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
    if hidden != _USUAL_HIDDEN * width:
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
