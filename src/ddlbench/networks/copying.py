"""Copies of a module, also of such that ``copy.deepcopy`` refuses.

torch copies no tensor that an operation has computed. Some modules hold such a tensor as a plain
attribute: ``torch.nn.utils.weight_norm`` keeps the weight of the last forward pass, for example.
The next forward pass computes it anew, so its value is enough for a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_Module = TypeVar("_Module", bound=nn.Module)


def copy_of(module: _Module, tensors: Mapping[Tensor, Tensor] | None = None) -> _Module:
    """A deep copy of a module; what cannot be copied, as a lock or an open file, is shared.

    Args:
        module: anything.
        tensors: what the copy has in place of some of the module's tensors.
    """
    known: dict[int, object] = {id(old): new for old, new in (tensors or {}).items()}
    known.update((id(tensor), tensor.detach().clone()) for tensor in _computed(module))
    with torch.no_grad():  # else copies of scripted modules hold the graph of their copying
        try:
            return copy.deepcopy(module, dict(known))
        except Exception:
            known.update((id(value), value) for value in _uncopied(module))
            return copy.deepcopy(module, known)


def copy_without_data(module: _Module, device: torch.device | str = "cpu") -> _Module:
    """A copy whose parameters and buffers have shapes only; call it within a FakeTensorMode."""
    fakes: dict[Tensor, Tensor] = {}
    for tensor in tensors_of(module):
        fake = torch.empty_like(tensor, device=device)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        fakes[tensor] = fake
    return copy_of(module, fakes)


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def _computed(module: nn.Module) -> Iterator[Tensor]:
    """Tensors in plain attributes, or buffers, that an operation has computed."""
    values = (*tensors_of(module), *attributes_of(module))
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            yield leaf


def _uncopied(module: nn.Module) -> Iterator[object]:
    """Values of plain attributes that refuse a copy."""
    for value in attributes_of(module):
        try:
            copy.deepcopy(value)
        except Exception:
            yield value


def attributes_of(module: nn.Module) -> Iterator[object]:
    """Values of all plain attributes; those of torch's own are its weights, buffers and hooks."""
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in _OF_TORCH and not isinstance(value, nn.Module):
                yield value


_OF_TORCH = frozenset(vars(nn.Module()))


def has_hooks(layer: nn.Module) -> bool:
    """Whether a module runs more than its class does, which a module in its place would not."""
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(layer, name) for name in hooks)
