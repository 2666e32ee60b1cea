"""The pairs of linear layers that tensor parallelism splits, found by names and kinds of layers.

::

    attention     query  key  value | each head by itself  | output       heads are shared out
    perceptron    fc1               | GELU, ReLU, ...      | fc2          hidden features are
                  column-parallel     own features only      row-parallel
                  own output features                        own input features, sums added up

Between the two halves of a pair every device computes with its own features only, so nothing is
sent. Therefore only layers that treat every feature alike may stand there; a dropout may not, as
devices would draw the same numbers for different features.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINEAR = "Linear"
ELEMENT_WISE = frozenset(
    {
        "CELU", "ELU", "GELU", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU",
        "LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softsign",
        "Tanh",
    }
)  # fmt: skip
_OF_ATTENTION = ("query", "key", "value", "output")


@dataclass(frozen=True)
class Pair:
    """Linear layers that are split together.

    Args:
        columns: names of the layers whose output features are split; they read the same input.
        between: names of the layers between, which compute the device's own features.
        row: name of the layer whose input features are split.
    """

    columns: tuple[str, ...]
    between: tuple[str, ...]
    row: str

    @property
    def is_attention(self) -> bool:
        return len(self.columns) > 1

    @property
    def parent(self) -> str:
        """Name of the module that holds all of them; empty for the network itself."""
        return parent_of(self.row)


def parent_of(layer: str) -> str:
    """Name of the module that holds a layer; empty for the network itself.

    >>> parent_of("layer_0.attention.query"), parent_of("fc1")
    ('layer_0.attention', '')
    """
    return layer.rpartition(".")[0]


def pairs_of(layers: Sequence[tuple[str, str]]) -> list[Pair]:
    """All pairs of a network, none of which share a layer, the first ones first.

    Args:
        layers: name and kind (class name) of the layers without children, in the order of calls.
            Whether the modules around them call one layer right after the other, these do not tell.

    >>> pairs_of([("fc1", "Linear"), ("relu", "ReLU"), ("fc2", "Linear"), ("fc3", "Linear")])
    [Pair(columns=('fc1',), between=('relu',), row='fc2')]
    """
    pairs = []
    at = 0
    while at < len(layers):
        pair = _attention(layers[at:]) or _perceptron(layers[at:])
        if pair is not None:
            pairs.append(pair)
        at += 1 if pair is None else len(pair.columns) + len(pair.between) + 1
    return pairs


def _attention(layers: Sequence[tuple[str, str]]) -> Pair | None:
    """The attention that the first of ``layers`` begins."""
    first = layers[: len(_OF_ATTENTION)]
    parent = parent_of(first[0][0])
    wanted = [(f"{parent}.{name}" if parent else name, LINEAR) for name in _OF_ATTENTION]
    if list(first) != wanted:
        return None
    *columns, row = (name for name, _ in first)
    return Pair(tuple(columns), (), row)


def _perceptron(layers: Sequence[tuple[str, str]]) -> Pair | None:
    """The perceptron that the first of ``layers`` begins."""
    (first, kind), *others = layers
    if kind != LINEAR:
        return None
    between: list[str] = []
    for name, kind in others:
        if parent_of(name) != parent_of(first):
            return None
        if kind == LINEAR:
            return Pair((first,), tuple(between), name)
        if kind not in ELEMENT_WISE:
            return None
        between.append(name)
    return None
