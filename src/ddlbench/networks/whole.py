"""A network that cannot be cut: one block that holds the module itself.

Strategies without stages train any ``nn.Module``. It is called and its result is read by one rule::

    input     the first argument of ``forward``; by keyword if that is input_ids or pixel_values
    output    the tensor; else .logits, ["logits"] or ["out"]; else the first tensor of a tuple

so that models of torchvision, timm and Hugging Face need no wrapper of the user.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ddlbench.common.errors import ConfigError

_KEYWORDS = ("input_ids", "pixel_values")
_KEYS = ("logits", "out")


class Whole(nn.Module):
    """A module as one block.

    Args:
        module: any module of one input.
        why: it cannot be cut, as a clause.
    """

    def __init__(self, module: nn.Module, why: str) -> None:
        super().__init__()
        self.module, self.why = module, why
        self._keyword = _keyword_of(module)

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, ...) -> what the module returns for it."""
        returned = (
            self.module(inputs) if self._keyword is None else self.module(**{self._keyword: inputs})
        )
        return tensor_of(returned)


def whole(module: nn.Module, why: str) -> nn.Sequential:
    """A network of one block, called by the class of the module."""
    return nn.Sequential(OrderedDict([(type(module).__name__, Whole(module, why))]))


def why_uncut(network: nn.Sequential) -> str:
    """Why a network is one block; empty if it is made of blocks."""
    blocks = list(network._modules.values())
    return blocks[0].why if len(blocks) == 1 and isinstance(blocks[0], Whole) else ""


def tensor_of(returned: Any) -> Tensor:
    """The tensor that the loss reads, of what a module returns.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(returned, Tensor):
        return returned
    if isinstance(getattr(returned, "logits", None), Tensor):
        logits: Tensor = returned.logits
        return logits
    if isinstance(returned, Mapping):
        chosen = next((returned[key] for key in _KEYS if key in returned), None)
    elif isinstance(returned, tuple | list):
        chosen = next((one for one in returned if isinstance(one, Tensor)), None)
    else:
        chosen = None
    if not isinstance(chosen, Tensor):
        raise ConfigError(
            f"the network returns {type(returned).__name__} without a tensor called logits or out; "
            "return one tensor, or wrap the module in one that does"
        )
    return chosen


def _keyword_of(module: nn.Module) -> str | None:
    """The keyword by which the first argument of ``forward`` is given; None: by its place."""
    try:
        first = next(iter(inspect.signature(module.forward).parameters), None)
    except (TypeError, ValueError):  # a forward that Python cannot look into
        return None
    return first if first in _KEYWORDS else None
