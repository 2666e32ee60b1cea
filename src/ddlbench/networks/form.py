"""What a network is: blocks that share nothing, so that it can be cut, or else one block."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ddlbench.common.errors import ConfigError
from ddlbench.networks.copying import has_hooks, tensors_of
from ddlbench.networks.whole import whole


def checked(name: str, network: Any) -> nn.Sequential:
    """The network as a sequence of blocks; one that is not called block after block is one block.

    A block without weights and buffers may occur twice; it is then two blocks.

    Raises:
        ConfigError: it is no module, has no blocks, or is scripted.
    """
    where = f"network {name!r}"
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"{where} must return a torch.nn.Module, not {type(network).__name__}; a "
            "torch.nn.Sequential of single-input single-output blocks can be cut into stages, too"
        )
    parts = {"the network": network}
    if isinstance(network, nn.Sequential):
        parts |= {f"block {place!r}": block for place, block in network._modules.items()}
    for place, part in parts.items():
        if isinstance(part, torch.jit.ScriptModule):
            raise ConfigError(
                f"{where}: {place} is scripted, and copies of it do not share its weights; "
                "return the module itself"
            )
    why = _why_one_block(network)
    if why:
        return whole(network, why)
    assert isinstance(network, nn.Sequential)
    if len(network) == 0:
        raise ConfigError(f"{where} has no blocks")
    _part_repeated(network)
    return network


def _why_one_block(network: nn.Module) -> str:
    """Why a module is not its blocks, one after the other; empty if it is."""
    kind = type(network)
    if not isinstance(network, nn.Sequential):
        return f"it returns a {kind.__name__}, not a torch.nn.Sequential of blocks"
    if kind.forward is not nn.Sequential.forward or kind.__call__ is not nn.Sequential.__call__:
        return f"its class {kind.__name__} has a forward or a call of its own"
    if has_hooks(network):
        return "it has hooks, which belong to no block"
    own = [*network._parameters, *network._buffers]
    return f"{own[0]!r} is outside of its blocks" if own else ""


def apart(network: nn.Sequential) -> nn.Sequential:
    """The same network; one whose blocks share a weight, buffer or memory, as one block.

    Views of the same memory count, too.
    """
    owner: dict[int, str] = {}
    for block_name, block in network._modules.items():
        assert block is not None
        for key, tensor in _memories(block):
            if owner.setdefault(key, block_name) != block_name:
                what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                return whole(
                    network,
                    f"its blocks {owner[key]!r} and {block_name!r} share a {what}, and may lie on "
                    "two devices",
                )
    return network


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
