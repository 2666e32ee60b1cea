"""Where a network ends to be made of rows: the first block that reads all positions at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ddlbench.strategies.tensor_parallel.trace import BlockTrace

__all__ = ["MEANS", "head_of", "innermost"]

MEANS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_MAXIMA = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_HEADS = (nn.Linear, nn.Flatten, *MEANS, *_MAXIMA)


def head_of(network: nn.Sequential, traced: Sequence[BlockTrace]) -> int:
    """Index of the first linear, flattening or adaptive-pooling block; without one, the count.

    A block whose output has other dimensions than its input is one, too.
    """
    for index, told in enumerate(traced):
        inputs, outputs = told.shapes
        layer = innermost(network._modules[told.name])
        if isinstance(layer, _HEADS) or len(outputs) != len(inputs):
            return index
    return len(traced)


def innermost(block: nn.Module | None) -> nn.Module | None:
    """The layer itself where it alone is wrapped, as by autocast."""
    while block is not None and len(children := list(block.children())) == 1:
        block = children[0]
    return block
