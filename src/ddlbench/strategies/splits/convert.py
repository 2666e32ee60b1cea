"""Converts a network for several ranks: splits its activations into rows, or its weights.

Layers are replaced in place and keep their weights::

    | conv1 | bn1 | relu | layer1_0 | ... | layer4_1 | avgpool | flatten | fc |
    |<-------------- rows on p ranks -------------->|<----- whole on all ---->|

The split into rows ends before the *head*, or before a block that the user names. The head is the
first block that is a linear, flattening or adaptive-pooling layer, or whose output has fewer
dimensions. There the parts are gathered, or added up if the head is a mean over all positions.
Operations between layers (additions, activations, concatenations of channels) work on rows
unchanged, so no forward method is rewritten.

The weights of convolutions and linear layers are split by filters or by input channels. By channels
the first of them stays whole: an image has three channels only, and no other rank computed them.
Every rank computes everything between split layers.

Some layer limits how far a network can be split. :func:`table` makes ``planning/split_limits.csv``,
the planner's limits of the built-in networks, for ``make tables``. It builds them on the meta
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ddlbench.common.document import csv_text
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.registry import load, pairs
from ddlbench.networks.block_forms import sample_form
from ddlbench.networks.inspection import MEANS, has_hooks, innermost
from ddlbench.networks.linear_pairs import CONVOLUTIONS
from ddlbench.planning.network_tables import (
    DIMENSION_NAMES,
    DIMENSIONS,
    LIMIT_COLUMNS,
    all_rows_needed,
    too_few,
)
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.splits.layout import (
    DROPOUTS,
    POINTWISE,
    BlockTrace,
    Shapes,
    head_of,
    replace_layers,
    trace,
)
from ddlbench.strategies.splits.row_layers import (
    AVERAGES,
    MAXIMA,
    NORMS,
    SpatialAverage,
    SpatialBatchNorm,
    SpatialConvolution,
    SpatialMaximum,
    WholeAverage,
)
from ddlbench.strategies.splits.shard_group import GridAxis, ShardGroup, gather
from ddlbench.strategies.splits.weights import ChannelSplit, FilterSplit, features_of

# Layers whose weights are split by filters or channels.
_WEIGHTED = (*CONVOLUTIONS, nn.Linear)
_SAMPLES = 2  # batch norm refuses a single value per channel

GATHER_NAME = "gather_rows"


@dataclass(frozen=True)
class Grid:
    """The ranks that compute the same samples."""

    group: ShardGroup
    axes: tuple[GridAxis, ...]  # outermost first; ranks of the last one are neighbours

    def shard(self, whole: Tensor) -> Tensor:
        """This rank's rows of a whole tensor."""
        for axis in self.axes:
            whole = axis.shard(whole)
        return whole.contiguous()


@dataclass(frozen=True)
class Rows:
    """A network that was split into rows.

    Args:
        split_blocks: names of the blocks that work on rows.
        ends_with: "gather" or "mean", which makes rows whole again.
        parameters: weights whose gradients must be added up over the group.
    """

    split_blocks: list[str]
    ends_with: str
    parameters: list[nn.Parameter]


class Gather(nn.Module):
    """This rank's rows -> the whole tensor, on every rank."""

    def __init__(self, grid: Grid, whole: Sequence[int]) -> None:
        super().__init__()
        self.steps = [(axis, axis.parts(whole)) for axis in reversed(grid.axes)]

    def forward(self, rows: Tensor) -> Tensor:
        for axis, parts in self.steps:
            rows = gather(rows, axis.dim, parts, axis.group)
        return rows


def split_rows(
    network: nn.Sequential, traced: Sequence[BlockTrace], grid: Grid, until: str = "head"
) -> Rows:
    """Split a network into rows, in place.

    Args:
        network: the traced network.
        traced: its blocks, on the batch of one group.
        grid: the ranks.
        until: name of the first block that is whole again; "head"; or "auto", the first block with
            too few rows or the head, whichever comes first.

    Raises:
        Unsupported: a layer cannot be split, or has too few rows; the message names it.
    """
    end = _end(network, traced, grid, until)
    for axis in grid.axes:
        fewest = _too_few(network, traced[:end], axis)
        if fewest is not None:
            text = too_few(fewest.layer, DIMENSION_NAMES[axis.dim], fewest.count, axis.group.size)
            raise Unsupported(text)
    layers = dict(network.named_modules())
    # A layer may also occur in a whole block: it is replaced there, too, so those calls count.
    calls: dict[str, list[Shapes]] = {}
    for block in traced:
        for name, shapes in block.layers.items():
            calls.setdefault(name, []).extend(shapes)
    replaced: dict[nn.Module, nn.Module] = {}
    for block in traced[:end]:
        if block.mixing:
            raise _refused(
                f"block {block.name} calls {block.mixing} between its layers, which does not treat "
                f'every row alike; write until: "{block.name}" to gather before it'
            )
        for name in block.layers:
            layer = layers[name]
            if layer not in replaced:
                replaced[layer] = _split_layer(name, layer, calls[name], grid, block.name)
    names = [block.name for block in traced[:end]]
    blocks = [network.get_submodule(name) for name in names]
    parameters = dict.fromkeys(p for module in blocks for p in module.parameters())
    replace_layers(network, replaced)
    return Rows(names, _end_split(network, traced, end, grid), list(parameters))


def _too_few(network: nn.Sequential, blocks: Sequence[BlockTrace], axis: GridAxis) -> Limit | None:
    """The layer with the fewest rows, if some rank would have none of them."""
    fewest = _fewest_rows(network, blocks, axis.dim)
    return fewest if fewest is not None and fewest.count < axis.group.size else None


def _end(network: nn.Sequential, traced: Sequence[BlockTrace], grid: Grid, until: str) -> int:
    """Index of the first block that is whole again."""
    end = head = head_of(network, traced)
    names = [block.name for block in traced]
    if until == "auto":
        thin = (
            index
            for index, block in enumerate(traced[:head])
            if any(_too_few(network, [block], axis) for axis in grid.axes)
        )
        end = next(thin, head)
    elif until != "head":
        if until not in names[: head + 1]:
            raise _refused(
                f"until: {until} names no block up to the head; write one of "
                f"{', '.join(names[1 : head + 1])}"
            )
        end = names.index(until)
    if end == 0:
        raise Unsupported(all_rows_needed(names[0]))
    return end


def _end_split(network: nn.Sequential, traced: Sequence[BlockTrace], end: int, grid: Grid) -> str:
    """Make the rows whole: by a mean if the next block is one, else by a gather."""
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
    """The layer that replaces ``layer`` on rows; Unsupported if there is none."""
    kind = type(layer)
    if kind in POINTWISE:
        return layer
    if isinstance(layer, DROPOUTS) and layer.p == 0:
        return layer
    make = next((make for kinds, make in _MAKERS if kind in kinds), None)
    if make is None or not calls:
        raise _refused(
            f"layer {name} ({kind.__name__}) cannot be split into rows; write until: "
            f'"{block}" to gather before its block'
        )
    if len(set(calls)) > 1:
        raise _refused(f"layer {name} is called with inputs of two sizes; rows want one")
    if has_hooks(layer):
        raise _refused(
            f"layer {name} ({kind.__name__}) has hooks, as of weight_norm, which rows would lose; "
            "use torch.nn.utils.parametrizations"
        )
    inputs, outputs = calls[0]
    odd = "return_indices" if getattr(layer, "return_indices", False) else ""
    if (mode := getattr(layer, "padding_mode", "zeros")) != "zeros":
        odd = f"padding_mode {mode!r}"
    if odd:
        raise _refused(f"layer {name} ({kind.__name__}) has {odd}, which rows do not know")
    return make(layer, grid, inputs, outputs)


_Maker = Callable[[Any, Grid, Sequence[int], Sequence[int]], nn.Module]
_MAKERS: list[tuple[tuple[type[nn.Module], ...], _Maker]] = [
    (CONVOLUTIONS, lambda layer, grid, i, o: SpatialConvolution(layer, grid.axes, i, o)),
    (MAXIMA, lambda layer, grid, i, o: SpatialMaximum(layer, grid.axes, i, o)),
    (AVERAGES, lambda layer, grid, i, o: SpatialAverage(layer, grid.axes, i, o)),
    (NORMS, lambda layer, grid, i, _: SpatialBatchNorm(layer, grid.axes, grid.group, i)),
]


@dataclass(frozen=True)
class WeightShards:
    """Names of the layers whose weights were split, and of the others with weights."""

    split_layers: list[str]
    whole_layers: list[str]


def split_weights(
    network: nn.Sequential,
    traced: Sequence[BlockTrace],
    group: ShardGroup,
    by: Literal["filter", "channel"],
) -> WeightShards:
    """Split the weights of a network, in place.

    Raises:
        Unsupported: no layer can be split, or one has too few features; the message names it.
    """
    layers = dict(network.named_modules())
    names = _called_with_weights(network, traced, by)
    if not names:
        raise _refused(f"the network has no layer that can be split by {by}")
    fewest = _fewest_features(network, traced, by)
    if fewest is not None and fewest.count < group.size:
        raise Unsupported(too_few(fewest.layer, by, fewest.count, group.size))
    _check_ties(network, [layers[name] for name in names])
    make = FilterSplit if by == "filter" else ChannelSplit
    replaced: dict[nn.Module, nn.Module] = {}
    for name in names:
        layer = layers[name]
        assert isinstance(layer, _WEIGHTED)
        replaced[layer] = make(layer, group)
    replace_layers(network, replaced)
    called = dict.fromkeys(name for block in traced for name in block.layers)
    others = (name for name in called if name not in names)
    return WeightShards(names, [name for name in others if list(layers[name].parameters())])


def _check_ties(network: nn.Module, split: Sequence[nn.Module]) -> None:
    """Raise Unsupported if a split layer shares a weight: the split would copy it."""
    owners: dict[nn.Parameter, nn.Module] = {}
    for module in network.modules():
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            first = owners.setdefault(parameter, module)
            if first is not module and (first in split or module in split):
                raise _refused("two layers share a weight, which cannot be split")


@dataclass(frozen=True)
class Limit:
    """The smallest count of rows, filters or channels, and the first layer that has it."""

    count: int
    layer: str


def _fewest_rows(network: nn.Module, blocks: Sequence[BlockTrace], dim: int) -> Limit | None:
    """The layer that exchanges rows and has the fewest in an input or output; None without one."""
    layers = dict(network.named_modules())
    return _smallest(
        Limit(min(shape[dim] for shape in shapes), _called(name, layers[name]))
        for block in blocks
        for name, calls in block.layers.items()
        if type(layers[name]) not in (*POINTWISE, *DROPOUTS)
        for shapes in calls
    )


def _called_with_weights(
    network: nn.Module, blocks: Sequence[BlockTrace], by: Literal["filter", "channel"]
) -> list[str]:
    """Layers whose weights are split, in the order of their calls; by channel without the first."""
    layers = dict(network.named_modules())
    called = dict.fromkeys(name for block in blocks for name in block.layers)
    names = [
        name for name in called if type(layers[name]) in _WEIGHTED and not has_hooks(layers[name])
    ]
    return names[1:] if by == "channel" else names


def _fewest_features(
    network: nn.Module, blocks: Sequence[BlockTrace], by: Literal["filter", "channel"]
) -> Limit | None:
    """The layer with the fewest features among those whose weights are split; None without one."""
    limits = []
    for name in _called_with_weights(network, blocks, by):
        layer = network.get_submodule(name)
        assert isinstance(layer, _WEIGHTED)
        filters, channels, _ = features_of(layer)
        limits.append(Limit(filters if by == "filter" else channels, _called(name, layer)))
    return _smallest(limits)


def _limits_of(network: str, spec: DatasetSpec) -> list[tuple[str | int, ...]]:
    """Rows of the table, in the order of ``LIMIT_COLUMNS``."""
    with torch.device("meta"):
        blocks = load("ddlbench.networks", network)(spec)
    traced = trace(blocks, sample_form(spec, _SAMPLES), torch.device("cpu"))
    head = head_of(blocks, traced)
    limits: dict[str, Limit | None] = {}
    for name, dim in DIMENSIONS.items():
        if len(spec.shape) > -dim:  # tokens have no rows, images have no depth
            of_rows = _fewest_rows(blocks, traced[:head], dim)
            limits[name] = of_rows if head else Limit(0, traced[0].name)
    limits["filter"] = _fewest_features(blocks, traced, "filter")
    limits["channel"] = _fewest_features(blocks, traced, "channel")
    return [
        (network, spec.name, name, limit.count, limit.layer)
        for name, limit in limits.items()
        if limit is not None
    ]


def table() -> str:
    """All built-in networks on all datasets that they read, as CSV."""
    return csv_text([LIMIT_COLUMNS, *chain.from_iterable(starmap(_limits_of, pairs()))])


def _refused(sentence: str) -> Unsupported:
    return Unsupported(sentence, code="cannot_be_split")


def _called(name: str, layer: nn.Module) -> str:
    return f"{name} ({type(layer).__name__})"


def _smallest(limits: Iterable[Limit]) -> Limit | None:
    return min(limits, key=lambda limit: limit.count, default=None)
