"""A network by its name, with the same initial weights in every process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import load
from ddlbench.networks.flatten import out_of_place

__all__ = ["build"]


def build(network: str, spec: DatasetSpec, seed: int) -> nn.Sequential:
    """Build ``network`` for the images of ``spec``, on the CPU, as float32.

    Args:
        network: a name of the registry, or ``package.module:callable``; the callable takes the
            DatasetSpec and returns an ``nn.Sequential`` of single-input single-output blocks.
        spec: shape of an image and number of classes.
        seed: initial weights depend on it alone; PyTorch's global generators are not touched.

    Returns:
        (N, C, H, W) -> (N, num_classes), in training mode, safe to cut at every boundary.

    Raises:
        ConfigError: no such network, or what it returns cannot be cut into blocks.

    """
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
