r"""Operations, parameters and activations of a transformer, from its shape.

A decoder of l layers: hidden size h, a heads, sequence s, vocabulary V, micro-batch b, cut over t
devices (tensor parallelism)::

    x --+-- norm - QKV - softmax(Q K') V - projection --+-- norm - h -> 4h - GELU - 4h -> h --+-- y
        |                                               |                                     |
        +-----------------------------------------------+-------------------------------------+
            h x 3h/t  a/t heads  h/t x h  sum over t     h x 4h/t  4h/t x h  sum over t

All functions take numbers or arrays of them.

Sources: Megatron-LM (Narayanan et al., SC 2021), Equations 2 (parameters) and 3 (operations);
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022),
Equations 1 to 6 and Table 2 (activations).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any] | float
"""A number, or one number a configuration."""

RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True)
class Precision:
    """Bytes of what training keeps and moves.

    Args:
        item: of one activation, and of one weight as messages carry it.
        weight, gradient, optimizer: that a parameter takes on its device.
        update: read and written to update one parameter.
    """

    item: float
    weight: float
    gradient: float
    optimizer: float
    update: float


PRECISIONS: Mapping[str, Precision] = {
    # Update: gradient to single precision (6), Adam on the master weight and two moments (28), the
    # new weight in half precision (2).
    "mixed": Precision(item=2, weight=2, gradient=4, optimizer=12, update=36),
    # SGD with momentum, as the suite's own cells: three items are read, two are written.
    "single": Precision(item=4, weight=4, gradient=4, optimizer=4, update=20),
}
"""By name; the first is usual: half precision with master weights in single precision, and Adam."""
HALF = 2.0
"""Bytes of an item, of which bytes of activations are given here and in the sources."""
VOCABULARY, WHOLE_VOCABULARY = 50257, 51200
"""GPT-2's byte pairs; and what Megatron-LM pads them to for its published runs."""
PADDING = 128


def padded_vocabulary(vocabulary: Numbers, tensor: Numbers) -> Numbers:
    """Rows of the embedding; if it is cut, a multiple of 128 on each of ``tensor`` devices."""
    rows = np.asarray(vocabulary, dtype=float)
    unit = PADDING * np.asarray(tensor, dtype=float)
    return np.where(np.asarray(tensor) > 1, np.ceil(rows / unit) * unit, rows)


def layer_parameters(hidden: Numbers) -> Numbers:
    """Weights and biases of a layer: 12 h^2 + 13 h."""
    return 12 * hidden**2 + 13 * hidden


def embedding_parameters(hidden: Numbers, vocabulary: Numbers, sequence: Numbers) -> Numbers:
    """Embeddings of words and positions, (V + s) h; the logits use the words' again."""
    return (vocabulary + sequence) * hidden


def parameters(layers: Numbers, hidden: Numbers, vocabulary: Numbers, sequence: Numbers) -> Numbers:
    """All parameters: 12 l h^2 (1 + 13 / 12h + (V + s) / 12 l h), Megatron-LM's Equation 2."""
    each = layer_parameters(hidden)
    return layers * each + embedding_parameters(hidden, vocabulary, sequence)


def layer_forward_operations(
    samples: Numbers, sequence: Numbers, hidden: Numbers
) -> tuple[Numbers, Numbers]:
    """Operations of one layer's forward pass: of products with weights, and of attention.

    24 b s h^2 and 4 b s^2 h: a multiplication and an addition are two operations.
    """
    return 24 * samples * sequence * hidden**2, 4 * samples * sequence**2 * hidden


def head_forward_operations(
    samples: Numbers, sequence: Numbers, hidden: Numbers, vocabulary: Numbers
) -> Numbers:
    """Operations of the logits' forward pass: 2 b s h V."""
    return 2 * samples * sequence * hidden * vocabulary


def step_operations(
    samples: Numbers,
    sequence: Numbers,
    layers: Numbers,
    hidden: Numbers,
    vocabulary: Numbers,
    *,
    recomputation: str = "full",
) -> Numbers:
    """Operations of one step of ``samples`` sequences.

    A backward pass is two forward passes. Full recomputation adds a forward pass of each layer
    (then this is Megatron-LM's Equation 3, 96 B s l h^2 (1 + s / 6h + V / 16 l h)); selective
    adds one of attention.
    """
    weights, attention = layer_forward_operations(samples, sequence, hidden)
    again = {"none": (3, 3), "selective": (3, 4), "full": (4, 4)}[recomputation]
    head = head_forward_operations(samples, sequence, hidden, vocabulary)
    return layers * (again[0] * weights + again[1] * attention) + 3 * head


def activation_bytes(
    samples: Numbers,
    sequence: Numbers,
    hidden: Numbers,
    heads: Numbers,
    tensor: Numbers,
    *,
    recomputation: str = "none",
    sequence_parallel: Numbers = False,
) -> Numbers:
    """Bytes that one layer keeps of a micro-batch for its backward pass, on one device.

    ::

        none        s b h (10 + 24 / t + 5 a s / h t)
        selective   s b h (10 + 24 / t)
        full        2 s b h                              only the layer's input

    With sequence parallelism the 10 is divided by t, too. The input of full recomputation is
    whole on each device without sequence parallelism.
    """
    unit = sequence * samples * hidden
    shared = np.where(sequence_parallel, 1 / np.asarray(tensor, dtype=float), 1.0)
    if recomputation == "full":
        return 2 * unit * shared
    kept = 10 * shared + 24 / tensor
    if recomputation == "none":
        kept = kept + 5 * heads * sequence / (hidden * tensor)
    return unit * kept
