"""The layers that limit how far a network can be split.

:func:`table` makes ``planning/split_limits.csv``, the planner's limits of the built-in networks,
for ``make tables``. It builds them on the meta device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Literal

import torch
from torch import nn

from ddlbench.common.document import csv_text
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.registry import load, pairs
from ddlbench.networks.copying import has_hooks
from ddlbench.planning.network_tables import DIMENSIONS, LIMIT_COLUMNS
from ddlbench.strategies.pipelining.cutting import sample_form
from ddlbench.strategies.splits.row_layers import CONVOLUTIONS
from ddlbench.strategies.splits.trace import DROPOUTS, POINTWISE, BlockTrace, head_of, trace
from ddlbench.strategies.splits.weights import features_of

# Layers whose weights are split by filters or channels.
WEIGHTED = (*CONVOLUTIONS, nn.Linear)
_SAMPLES = 2  # batch norm refuses a single value per channel


@dataclass(frozen=True)
class Limit:
    """The smallest count of rows, filters or channels, and the first layer that has it."""

    count: int
    layer: str


def fewest_rows(network: nn.Module, blocks: Sequence[BlockTrace], dim: int) -> Limit | None:
    """The layer that exchanges rows and has the fewest in an input or output; None without one."""
    layers = dict(network.named_modules())
    return _smallest(
        Limit(min(shape[dim] for shape in shapes), _called(name, layers[name]))
        for block in blocks
        for name, calls in block.layers.items()
        if type(layers[name]) not in (*POINTWISE, *DROPOUTS)
        for shapes in calls
    )


def called_with_weights(
    network: nn.Module, blocks: Sequence[BlockTrace], by: Literal["filter", "channel"]
) -> list[str]:
    """Layers whose weights are split, in the order of their calls; by channel without the first."""
    layers = dict(network.named_modules())
    called = dict.fromkeys(name for block in blocks for name in block.layers)
    names = [
        name for name in called if type(layers[name]) in WEIGHTED and not has_hooks(layers[name])
    ]
    return names[1:] if by == "channel" else names


def fewest_features(
    network: nn.Module, blocks: Sequence[BlockTrace], by: Literal["filter", "channel"]
) -> Limit | None:
    """The layer with the fewest features among those whose weights are split; None without one."""
    limits = []
    for name in called_with_weights(network, blocks, by):
        layer = network.get_submodule(name)
        assert isinstance(layer, WEIGHTED)
        filters, channels, _ = features_of(layer)
        limits.append(Limit(filters if by == "filter" else channels, _called(name, layer)))
    return _smallest(limits)


def limits_of(network: str, spec: DatasetSpec) -> list[tuple[str | int, ...]]:
    """Rows of the table, in the order of ``LIMIT_COLUMNS``."""
    with torch.device("meta"):
        blocks = load("ddlbench.networks", network)(spec)
    traced = trace(blocks, sample_form(spec, _SAMPLES), torch.device("cpu"))
    split = traced[: head_of(blocks, traced)]
    limits = {name: fewest_rows(blocks, split, dim) for name, dim in DIMENSIONS.items()}
    if spec.depth is None:
        del limits["depth"]
    limits["filter"] = fewest_features(blocks, traced, "filter")
    limits["channel"] = fewest_features(blocks, traced, "channel")
    return [
        (network, spec.name, name, limit.count, limit.layer)
        for name, limit in limits.items()
        if limit is not None
    ]


def table() -> str:
    """All built-in networks on all datasets that they read, as CSV."""
    return csv_text([LIMIT_COLUMNS, *chain.from_iterable(starmap(limits_of, pairs()))])


def _called(name: str, layer: nn.Module) -> str:
    return f"{name} ({type(layer).__name__})"


def _smallest(limits: Iterable[Limit]) -> Limit | None:
    return min(limits, key=lambda limit: limit.count, default=None)
