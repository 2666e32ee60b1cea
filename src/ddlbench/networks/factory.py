"""Builds a network by name, with the same initial weights in every process, and describes it."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import load, pairs
from ddlbench.experiment.site import Accelerator
from ddlbench.networks.emulated import emulated_network
from ddlbench.networks.flatten import out_of_place


def build(network: str, spec: DatasetSpec, seed: int) -> nn.Sequential:
    """Builds ``network`` for the images of ``spec``, on the CPU, as float32.

    Args:
        network: a name of the registry, or ``package.module:callable``; the callable takes the
            DatasetSpec and returns an ``nn.Sequential`` of single-input single-output blocks.
            On an emulated accelerator it is the name of a profile.
        spec: shape of an image and number of classes.
        seed: decides the initial weights; PyTorch's global generators do not change.

    Returns:
        (N, C, H, W) -> (N, num_classes), in training mode, safe to cut at every boundary.

    Raises:
        ConfigError: there is no such network, or it cannot be cut into blocks.
    """
    accelerator = Accelerator.of_this_process()
    if accelerator is not None:
        return emulated_network(accelerator, network, spec)
    factory = load("ddlbench.networks", network)
    if not callable(factory):
        raise ConfigError(f"network {network!r} is not callable")
    # Only the CPU's generator is forked and seeded: torch.manual_seed would seed GPUs as well.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return out_of_place(_checked(network, factory(spec)))


def _checked(name: str, network: Any) -> nn.Sequential:
    if not isinstance(network, nn.Sequential):
        raise ConfigError(
            f"network {name!r} must return a torch.nn.Sequential of single-input single-output "
            f"blocks, not {type(network).__name__}"
        )
    if type(network).forward is not nn.Sequential.forward:
        raise ConfigError(
            f"network {name!r} must be called block after block, but its class "
            f"{type(network).__name__} has a forward of its own"
        )
    if len(network) == 0:
        raise ConfigError(f"network {name!r} has no blocks")
    owner: dict[nn.Parameter, str] = {}
    for block_name, block in network._modules.items():  # named_children skips repeated modules
        assert block is not None
        for parameter in block.parameters():
            if owner.setdefault(parameter, block_name) != block_name:
                raise ConfigError(
                    f"network {name!r} shares a parameter between its blocks "
                    f"{owner[parameter]!r} and {block_name!r}, which may lie on two devices"
                )
    return network


_Module = TypeVar("_Module", bound=nn.Module)


def without_dropout(module: _Module) -> _Module:
    """Sets the probability of every dropout in ``module`` to zero, in place; returns ``module``."""
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd):
            child.p = 0.0
    return module


def block_names(network: nn.Sequential) -> list[str]:
    """Names of the blocks, in order."""
    return list(network._modules)


def num_parameters(module: nn.Module) -> int:
    """Number of trained values; running statistics do not count."""
    return sum(parameter.numel() for parameter in module.parameters())


def num_layers(module: nn.Module) -> int:
    """Number of convolutions and linear layers, as in a network's published name."""
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
