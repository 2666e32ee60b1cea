"""What a network consists of: names, counts, and the table of docs/networks.md."""

from __future__ import annotations

import torch
from torch import nn

from ddlbench.experiment.network_spec import pairs
from ddlbench.experiment.registry import load

__all__ = ["block_names", "markdown_table", "num_layers", "num_parameters"]


def block_names(network: nn.Sequential) -> list[str]:
    """Names of the blocks, in order; a cut lies between two of them."""
    return list(network._modules)


def num_parameters(module: nn.Module) -> int:
    """Count the trained values (not their bytes); running statistics are not counted."""
    return sum(parameter.numel() for parameter in module.parameters())


def num_layers(module: nn.Module) -> int:
    """Count convolutions and linear layers, as papers do in a network's name."""
    return sum(isinstance(child, nn.Conv2d | nn.Conv3d | nn.Linear) for child in module.modules())


def markdown_table() -> str:
    """One row for each pair of built-in network and dataset, as Markdown."""
    lines = [
        "| network | dataset | image | blocks | conv + linear | parameter tensors | parameters |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for name, spec in pairs():
        with torch.device("meta"):  # shapes only: no memory, no random numbers
            network = load("ddlbench.networks", name)(spec)
        image = "x".join(str(size) for size in spec.shape)
        tensors = len(list(network.parameters()))
        lines.append(
            f"| {name} | {spec.name} | {image} | {len(network)} | {num_layers(network)} "
            f"| {tensors} | {num_parameters(network):,} |"
        )
    return "\n".join(lines)
