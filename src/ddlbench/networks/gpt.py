"""GPT-2 as a flat sequence (Radford et al. 2019), for the next token at every position.

::

    embedding | layer_0 | layer_1 | ... | layer_11 | norm | head
    token and   equal blocks of one shape,              a value for each token of the
    position    (N, T, width), causal attention         vocabulary, at each position

The head has weights of its own. GPT-2 ties them to the token embedding, but the first and the last
block of a pipeline may lie on two devices. So GPT-2 small has 163.0 million weights here instead of
the published 124.4 million: the head's 38.6 million are the difference. Layers, operations and
activations are those of the tied network.

There is no dropout. Initial weights are GPT-2's: truncated normal, 0.02; what a layer adds to the
identity starts smaller, by the square root of the number of additions (section 2.3).

``gpt-tiny`` is ours, for one core.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

from torch import Tensor, nn

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.transformer import TransformerBlock, initialize, learnt

_EPSILON = 1e-5
_WIDER = 4  # the perceptron's hidden features over those of a token


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
            *(width, heads, _WIDER * width, _EPSILON), causal=True, gelu="tanh"
        )
    blocks["norm"] = nn.LayerNorm(width, _EPSILON)
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
