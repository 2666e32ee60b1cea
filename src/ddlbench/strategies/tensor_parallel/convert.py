"""A network converted for several ranks: first blocks to rows, or weights dealt out.

Layers are replaced where they stand, and weights are kept::

    | conv1 | bn1 | relu | layer1_0 | ... | layer4_1 | avgpool | flatten | fc |
    |<-------------- rows on p ranks -------------->|<----- whole on all ---->|

The split into rows ends before the *head*: the first block that is a linear, flattening or
adaptive-pooling layer, or whose output has fewer dimensions - or at a block that the user names.
There the parts are gathered; a mean over all positions is added up instead. No forward of the
network is rewritten: operations between layers (additions, activations, concatenations of channels)
work on rows as they are.

Convolutions and linear layers are dealt out by filters or by input channels. By channels, the first
layer with weights stays whole (an image has three channels, and its layer reads nothing that
another computed). Everything between split layers is computed by every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from torch import Tensor, nn

from ddlbench.planning.network_tables import DIMENSIONS, too_few
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.tensor_parallel.limits import (
    DEALT,
    Limit,
    called_with_weights,
    fewest_features,
    fewest_rows,
)
from ddlbench.strategies.tensor_parallel.row_layers import (
    AVERAGES,
    CONVOLUTIONS,
    MAXIMA,
    NORMS,
    SpatialAverage,
    SpatialBatchNorm,
    SpatialConvolution,
    SpatialMaximum,
    WholeAverage,
)
from ddlbench.strategies.tensor_parallel.shard_group import GridAxis, ShardGroup, gather
from ddlbench.strategies.tensor_parallel.trace import (
    DROPOUTS,
    MEANS,
    POINTWISE,
    BlockTrace,
    Shapes,
    head_of,
    innermost,
    replace_layers,
)
from ddlbench.strategies.tensor_parallel.weights import ChannelSplit, FilterSplit

GATHER_NAME = "gather_rows"
_SPLITS = {dim: name for name, dim in DIMENSIONS.items()}


@dataclass(frozen=True)
class Grid:
    """The ranks that share a sample.

    Args:
        group: all of them.
        axes: one a split dimension, first dimension first; the last axis's ranks are neighbours.
    """

    group: ShardGroup
    axes: tuple[GridAxis, ...]

    def own(self, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor that it has whole."""
        for axis in self.axes:
            whole = axis.own(whole)
        return whole.contiguous()


@dataclass(frozen=True)
class Rows:
    """What became of a network.

    Args:
        split_blocks: names of the blocks that work on rows.
        ends_with: how the rows become whole again: "gather" or "mean".
        parameters: weights whose gradients are to be added up over the group.
    """

    split_blocks: list[str]
    ends_with: str
    parameters: list[nn.Parameter]


class Gather(nn.Module):
    """Own rows -> whole, on every rank."""

    def __init__(self, grid: Grid, whole: Sequence[int]) -> None:
        super().__init__()
        self.steps = [(axis, axis.parts(whole)) for axis in reversed(grid.axes)]

    def forward(self, rows: Tensor) -> Tensor:
        """GridAxis by axis, the innermost first."""
        for axis, parts in self.steps:
            rows = gather(rows, axis.dim, parts, axis.group)
        return rows


def split_rows(
    network: nn.Sequential, traced: Sequence[BlockTrace], grid: Grid, until: str = "head"
) -> Rows:
    """Split a network, in place.

    Args:
        network: what was traced.
        traced: its blocks, with the batch that a group computes.
        grid: the ranks.
        until: the first block that is whole again; "head" finds it, "auto" the one before which
            rows are too few if that comes earlier.

    Raises:
        Unsupported: a layer cannot be split, or has too few rows; the text names it.
    """
    end = _end(network, traced, grid, until)
    for axis in grid.axes:
        fewest = _too_few(network, traced[:end], axis)
        if fewest is not None:
            text = too_few(fewest.layer, _SPLITS[axis.dim], fewest.count, axis.group.size)
            raise Unsupported(text)
    layers = dict(network.named_modules())
    # A layer that stands in a whole block too is replaced there as well, so it counts.
    calls: dict[str, list[Shapes]] = {}
    for told in traced:
        for name, shapes in told.layers.items():
            calls.setdefault(name, []).extend(shapes)
    replaced: dict[nn.Module, nn.Module] = {}
    for told in traced[:end]:
        if told.mixing:
            raise Unsupported(
                f"block {told.name} calls {told.mixing} between its layers, which does not treat "
                f"every row alike; write until: {told.name} to gather before it",
                code="cannot_be_split",
            )
        for name in told.layers:
            layer = layers[name]
            if layer not in replaced:
                replaced[layer] = _split_layer(name, layer, calls[name], grid, told.name)
    split = [block for told in traced[:end] if (block := network._modules[told.name]) is not None]
    parameters = list(dict.fromkeys(p for block in split for p in block.parameters()))
    replace_layers(network, replaced)
    ends_with = _end_split(network, traced, end, grid)
    return Rows([told.name for told in traced[:end]], ends_with, parameters)


def _too_few(network: nn.Sequential, blocks: Sequence[BlockTrace], axis: GridAxis) -> Limit | None:
    """The layer with the fewest rows, where some rank would have none of them."""
    fewest = fewest_rows(network, blocks, axis.dim)
    return fewest if fewest is not None and fewest.count < axis.group.size else None


def _end(network: nn.Sequential, traced: Sequence[BlockTrace], grid: Grid, until: str) -> int:
    """Index of the first block that is whole again."""
    head = head_of(network, traced)
    names = [told.name for told in traced]
    end = head
    if until == "auto":
        narrow = (
            i
            for i in range(head)
            if any(_too_few(network, traced[i : i + 1], axis) for axis in grid.axes)
        )
        end = next(narrow, head)
    elif until != "head":
        if until not in names[: head + 1]:
            raise Unsupported(
                f"until: {until} names no block up to the head; write one of "
                f"{', '.join(names[1 : head + 1])}",
                code="cannot_be_split",
            )
        end = names.index(until)
    if end == 0:
        raise Unsupported(
            f"no block stands before {names[0]}, so no rows can be split", code="cannot_be_split"
        )
    return end


def _end_split(network: nn.Sequential, traced: Sequence[BlockTrace], end: int, grid: Grid) -> str:
    """Make the rows whole: as a mean where that is what comes next, else as they are."""
    if end < len(traced):
        inputs, outputs = traced[end].shapes
        layer = innermost(network._modules[traced[end].name])
        if isinstance(layer, MEANS) and prod(outputs[2:]) == 1:
            replace_layers(network, {layer: WholeAverage(grid.group, inputs)})
            return "mean"
    whole = traced[end - 1].shapes[1]
    entries = list(network._modules.items())
    entries.insert(end, (GATHER_NAME, Gather(grid, whole)))
    network._modules.clear()
    network._modules.update(entries)
    return "gather"


def _split_layer(
    name: str, layer: nn.Module, calls: list[Shapes], grid: Grid, block: str
) -> nn.Module:
    """The layer over rows.

    Raises:
        Unsupported: it has none.
    """
    kind = type(layer)
    if kind in POINTWISE:
        return layer
    if isinstance(layer, DROPOUTS) and layer.p == 0:
        return layer
    make = next((make for kinds, make in _MAKERS if kind in kinds), None)
    if make is None or not calls:
        raise Unsupported(
            f"layer {name} ({kind.__name__}) cannot be split into rows; write until: {block} to "
            "gather before its block",
            code="cannot_be_split",
        )
    if len(set(calls)) > 1:
        raise Unsupported(
            f"layer {name} is called with inputs of two sizes; rows want one",
            code="cannot_be_split",
        )
    inputs, outputs = calls[0]
    odd = _odd_setting(layer)
    if odd:
        raise Unsupported(
            f"layer {name} ({kind.__name__}) has {odd}, which rows do not know",
            code="cannot_be_split",
        )
    return make(layer, grid, inputs, outputs)


def _odd_setting(layer: nn.Module) -> str:
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        return f"padding_mode {layer.padding_mode!r}"
    if getattr(layer, "return_indices", False):
        return "return_indices"
    return ""


_Maker = Callable[[Any, Grid, Sequence[int], Sequence[int]], nn.Module]
_MAKERS: list[tuple[tuple[type[nn.Module], ...], _Maker]] = [
    (CONVOLUTIONS, lambda layer, grid, i, o: SpatialConvolution(layer, grid.axes, i, o)),
    (MAXIMA, lambda layer, grid, i, o: SpatialMaximum(layer, grid.axes, i, o)),
    (AVERAGES, lambda layer, grid, i, o: SpatialAverage(layer, grid.axes, i, o)),
    (NORMS, lambda layer, grid, i, _: SpatialBatchNorm(layer, grid.axes, grid.group, i)),
]


@dataclass(frozen=True)
class Dealt:
    """What became of a network.

    Args:
        split_layers: names of the layers whose weights are dealt out.
        whole_layers: names of the layers with weights of their own that every rank has whole.
    """

    split_layers: list[str]
    whole_layers: list[str]


def split_weights(
    network: nn.Sequential,
    traced: Sequence[BlockTrace],
    group: ShardGroup,
    by: Literal["filter", "channel"],
) -> Dealt:
    """Split a network, in place.

    Args:
        network: what was traced.
        traced: its blocks.
        group: the ranks.
        by: output features, or input features.

    Raises:
        Unsupported: a layer has too few of them; the text names it. Or no layer can be split.
    """
    layers = dict(network.named_modules())
    wanted = called_with_weights(network, traced, by)
    if not wanted:
        raise Unsupported(
            f"the network has no layer that can be split by {by}", code="cannot_be_split"
        )
    fewest = fewest_features(network, traced, by)
    if fewest is not None and fewest.count < group.size:
        raise Unsupported(too_few(fewest.layer, by, fewest.count, group.size))
    _check_ties(network, [layers[name] for name in wanted])
    make = FilterSplit if by == "filter" else ChannelSplit
    replaced: dict[nn.Module, nn.Module] = {}
    for name in wanted:
        layer = layers[name]
        assert isinstance(layer, DEALT)
        replaced[layer] = make(layer, group)
    replace_layers(network, replaced)
    called = dict.fromkeys(name for told in traced for name in told.layers)
    others = (name for name in called if name not in wanted)
    return Dealt(wanted, [name for name in others if list(layers[name].parameters())])


def _check_ties(network: nn.Module, split: Sequence[nn.Module]) -> None:
    """A weight that two layers share would no longer be shared once dealt out."""
    owners: dict[nn.Parameter, nn.Module] = {}
    for module in network.modules():
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            first = owners.setdefault(parameter, module)
            if first is not module and (first in split or module in split):
                raise Unsupported(
                    "two layers share a weight, which cannot be dealt out", code="cannot_be_split"
                )
