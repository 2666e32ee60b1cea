"""Layers exchanged for others wherever they stand in a network, also where they stand twice."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

__all__ = ["replace_layers"]


def replace_layers(network: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    """Put every value of ``replaced`` in its key's place, in place; the mode stays."""
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replaced:
                parent._modules[name] = replaced[child].train(child.training)
