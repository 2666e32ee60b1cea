"""Splits the linear layers of a network by DTensor's ``parallelize_module``.

::

    rank 0   x -+-> norm -> | query key value: heads 0 1 | -> output -+-> norm -> | fc1 -> fc2 | ->
    rank 1   x -+-> norm -> | query key value: heads 2 3 | -> output -+-> norm -> | fc1 -> fc2 | ->
                           f                              g                      f              g

    f    forward: nothing                backward: all-reduce of the gradient of the input
    g    forward: all-reduce of sums     backward: nothing

Everything else (norms, embeddings, dropout, the head) is computed whole by every device. Only
modules whose calls are known are split: the transformer's block and attention of this project, and
``nn.Sequential``. :func:`table` makes ``planning/tensor_pairs.csv`` for ``make tables``.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3, figure 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from ddlbench.experiment.registry import load
from ddlbench.experiment.registry import pairs as built_in_pairs
from ddlbench.networks.copying import has_hooks
from ddlbench.networks.transformer import Attention, TransformerBlock
from ddlbench.planning.network_tables import PAIR_COLUMNS, LinearPairs
from ddlbench.strategies.tensor_parallel.pairs import Pair, pairs_of
from ddlbench.strategies.training import Autocast

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class FoundPair:
    """A pair, with its modules.

    Args:
        pair: by the names of the plain network.
        parent: the module that calls its layers.
        columns, row: their names in the network that is split.
        units: heads, or hidden features, which are shared out.
    """

    pair: Pair
    parent: nn.Module
    parent_name: str
    columns: tuple[str, ...]
    row: str
    units: int


def find_pairs(network: nn.Sequential) -> list[FoundPair]:
    """The pairs of a network that can be split, in the order of calls."""
    places = dict(_plain_names(network))
    leaves = [
        (name, _kind(network.get_submodule(place)))
        for name, place in places.items()
        if name and not any(True for _ in network.get_submodule(place).children())
    ]
    return [
        FoundPair(
            pair,
            parent,
            places[pair.parent],
            tuple(places[name] for name in pair.columns),
            places[pair.row],
            _units(parent, network.get_submodule(places[pair.row])),
        )
        for pair in pairs_of(leaves)
        for parent in [network.get_submodule(places[pair.parent])]
        if _calls_in_order(parent, pair)
    ]


def linear_pairs(network: nn.Sequential) -> LinearPairs:
    """What a plan must know of a network's pairs."""
    pairs = find_pairs(network)
    layers = dict(network.named_modules())
    heads = [one.units for one in pairs if one.pair.is_attention]
    hidden = [one.units for one in pairs if not one.pair.is_attention]
    return LinearPairs(
        pairs=len(pairs),
        heads=gcd(*heads),
        hidden=gcd(*hidden),
        convolutions=sum(
            p.numel()
            for layer in layers.values()
            if isinstance(layer, _CONVOLUTIONS)
            for p in layer.parameters()
        ),
        weights=sum(p.numel() for p in network.parameters()),
    )


def split_pairs(network: nn.Sequential, mesh: DeviceMesh) -> list[FoundPair]:
    """Split all pairs over the ranks of a mesh of one dimension, in place; returns them.

    The network must lie on the mesh's device. Weights of pairs become DTensors, with this rank's
    part of the values that every rank has.
    """
    pairs = find_pairs(network)
    styles: dict[str, ParallelStyle] = {}
    for one in pairs:
        styles.update((name, ColwiseParallel()) for name in one.columns)
        styles[one.row] = RowwiseParallel()
        if one.pair.is_attention:
            # Three layers read one input. Each would all-reduce its gradient of it by itself;
            # as one DTensor, the three partial gradients are added first and sent once.
            styles[one.parent_name] = PrepareModuleInput(
                input_layouts=Replicate(), desired_input_layouts=Replicate()
            )
    parallelize_module(network, mesh, styles)
    return pairs


def table() -> str:
    """``planning/tensor_pairs.csv``: every built-in network with each dataset it reads."""
    lines = [",".join(PAIR_COLUMNS)]
    for name, spec in built_in_pairs():
        with torch.device("meta"):
            network = load("ddlbench.networks", name)(spec)
        known = linear_pairs(network)
        numbers = (getattr(known, column) for column in PAIR_COLUMNS[2:])
        lines.append(",".join([name, spec.name, *map(str, numbers)]))
    return "\n".join([*lines, ""])


def _plain_names(network: nn.Sequential) -> Iterator[tuple[str, str]]:
    """Names of modules without the wrappers of bfloat16, and with them."""
    wrappers = {name for name, one in network.named_modules() if isinstance(one, Autocast)}
    for name, _ in network.named_modules():
        if name in wrappers:
            continue
        block, _, inner = name.partition(".")
        # The wrapped block is called "block" within its wrapper.
        yield (name if block not in wrappers else f"{block}{inner[len('block') :]}"), name


def _kind(layer: nn.Module) -> str:
    """Name of a layer's class; another one if it has hooks, so that it belongs to no pair."""
    name = type(layer).__name__
    return f"{name} with hooks" if has_hooks(layer) else name


def _calls_in_order(parent: nn.Module, pair: Pair) -> bool:
    """Whether the module calls the pair's layers one after the other, and nothing else between."""
    if pair.is_attention:
        return type(parent) is Attention
    return type(parent) is TransformerBlock or isinstance(parent, nn.Sequential)


def _units(parent: nn.Module, row: nn.Module) -> int:
    if isinstance(parent, Attention):
        return parent.heads
    assert isinstance(row, nn.Linear)
    return row.in_features
