"""A network whose convolutions and linear layers are dealt out by filters or by input channels.

Which layers stay whole on every rank: by channels, the first layer with weights (an image has
three channels, and its layer reads nothing that another computed); layers that are neither
convolutions nor linear. Everything between split layers is computed by every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from ddlbench.planning.split_limits import too_few
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.tensor_parallel.limits import DEALT, called_with_weights, fewest_features
from ddlbench.strategies.tensor_parallel.replace import replace_layers
from ddlbench.strategies.tensor_parallel.shard_group import ShardGroup
from ddlbench.strategies.tensor_parallel.trace import BlockTrace
from ddlbench.strategies.tensor_parallel.weights import ChannelSplit, FilterSplit

__all__ = ["Dealt", "split_weights"]


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
    team: ShardGroup,
    by: Literal["filter", "channel"],
) -> Dealt:
    """Split a network, in place.

    Args:
        network: what was traced.
        traced: its blocks.
        team: the ranks.
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
    if fewest is not None and fewest.count < team.size:
        raise Unsupported(too_few(fewest.layer, by, fewest.count, team.size))
    _check_ties(network, [layers[name] for name in wanted])
    make = FilterSplit if by == "filter" else ChannelSplit
    replaced: dict[nn.Module, nn.Module] = {}
    for name in wanted:
        layer = layers[name]
        assert isinstance(layer, DEALT)
        replaced[layer] = make(layer, team)
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
