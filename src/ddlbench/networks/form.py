"""What a network must be: a flat sequence whose blocks share nothing, so that it can be cut."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ddlbench.common.errors import ConfigError
from ddlbench.networks.copying import has_hooks, tensors_of


def checked(name: str, network: Any) -> nn.Sequential:
    """The network, if it is called block after block, and each block has what it needs.

    A block without weights and buffers may occur twice; it is then two blocks.

    Raises:
        ConfigError: it is anything else.
    """
    where = f"network {name!r}"
    if not isinstance(network, nn.Sequential):
        raise ConfigError(
            f"{where} must return a torch.nn.Sequential of single-input single-output blocks, not "
            f"{type(network).__name__}"
        )
    kind = type(network)
    if kind.forward is not nn.Sequential.forward or kind.__call__ is not nn.Sequential.__call__:
        raise ConfigError(
            f"{where} must be called block after block, but its class {kind.__name__} has a "
            "forward or a call of its own"
        )
    if has_hooks(network):
        raise ConfigError(f"{where} has hooks, which belong to no block; register them on a block")
    own = [*network._parameters, *network._buffers]
    if own:
        raise ConfigError(f"{where} has {own[0]!r} outside of its blocks; put it into a block")
    if len(network) == 0:
        raise ConfigError(f"{where} has no blocks")
    for place, block in network._modules.items():
        if isinstance(block, torch.jit.ScriptModule):
            raise ConfigError(
                f"{where}: block {place!r} is scripted, and copies of it do not share its weights; "
                "return the module itself"
            )
    _part_repeated(network)
    return network


def check_apart(name: str, network: nn.Sequential) -> None:
    """Check that blocks share no weight, buffer or memory, also not by views.

    Raises:
        ConfigError: they do.
    """
    owner: dict[int, str] = {}
    for block_name, block in network._modules.items():
        assert block is not None
        for key, tensor in _memories(block):
            if owner.setdefault(key, block_name) != block_name:
                what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                raise ConfigError(
                    f"network {name!r} shares a {what} between its blocks {owner[key]!r} and "
                    f"{block_name!r}, which may lie on two devices"
                )


def _memories(block: nn.Module) -> Iterator[tuple[int, Tensor]]:
    """A number for the memory of each parameter and buffer; of empty ones for the object."""
    for tensor in tensors_of(block):
        if is_lazy(tensor) or tensor.numel() == 0 or tensor.layout != torch.strided:
            yield id(tensor), tensor
        else:
            yield tensor.untyped_storage()._cdata, tensor


def _part_repeated(network: nn.Sequential) -> None:
    """Have each place of the sequence a module of its own, where nothing is kept in it."""
    seen: set[int] = set()
    for place, block in list(network._modules.items()):
        assert block is not None
        if id(block) in seen and not any(True for _ in tensors_of(block)):
            network._modules[place] = copy.copy(block)
        seen.add(id(block))
