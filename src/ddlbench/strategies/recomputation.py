"""Blocks that compute their activations again in the backward pass; and whether a block can.

A module with buffers, such as a batch norm, counts a mini-batch once: while a block computes its
activations again, it holds copies of its buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddlbench.common.errors import first_line
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.status import Reason
from ddlbench.networks.foreign import seeded
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.inspection import copy_of

_SAMPLES = 2


def recompute_in_place(network: nn.Sequential) -> None:
    """Have every block but the last keep its input only."""
    *earlier, last = network._modules.values()
    for block in dict.fromkeys(earlier):
        if block is not None and block is not last:
            change_forward(block, KeepsInputOnly)


class ChangedForward(nn.Module):
    """Base of classes that stand before the class of a block; they call what it computes."""

    def compute(self, inputs: Tensor) -> Tensor:
        """(N, ...) -> (N, ...), as the block does without a change."""
        computes = vars(self).get(_OF_THE_INSTANCE) or super().forward
        outputs: Tensor = computes(inputs)
        return outputs

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """A copy with the same change; copies of recorded modules have classes of their own."""
        changed = type(self)
        change, kind = changed.__bases__
        self.__class__ = kind
        try:
            double: nn.Module = copy.deepcopy(self, memo)
        finally:
            self.__class__ = changed
        double.__class__ = _changed(type(double), change)
        return double


_OF_THE_INSTANCE = "_forward_of_the_instance"


def change_forward(block: nn.Module, change: type[ChangedForward]) -> None:
    """Put a class before the class of a block.

    Names of weights and hooks stay, and copies of the block are changed, too.
    """
    attributes = vars(block)
    if "forward" in attributes:  # it would hide that of any class
        attributes[_OF_THE_INSTANCE] = attributes.pop("forward")
    block.__class__ = _changed(type(block), change)


def _changed(kind: type[Any], change: type[Any]) -> type[Any]:
    return type(f"{change.__name__}{kind.__name__}", (change, kind), {})


class KeepsInputOnly(ChangedForward):
    """Computes what a block computes, again before its backward pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.compute(inputs)
        further: dict[str, Any] = {}  # without it, torch can compile the block
        if next(self.buffers(), None) is not None:
            further["context_fn"] = partial(_contexts, self)
        outputs: Tensor = checkpoint(self.compute, inputs, use_reentrant=False, **further)
        return outputs


def _contexts(
    block: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), with_copied_buffers(block)


@contextmanager
def with_copied_buffers(module: nn.Module) -> Iterator[None]:
    """Lend a module copies of its buffers, which it may change."""
    kept = [(part, dict(part._buffers)) for part in module.modules() if part._buffers]
    try:
        for part, buffers in kept:
            for name, buffer in buffers.items():
                part._buffers[name] = None if buffer is None else buffer.clone()
        yield
    finally:
        for part, buffers in kept:
            part._buffers.update(buffers)


def buffered_block(network: nn.Sequential) -> str | None:
    """The first block that recomputes and has buffers; None if none has.

    A compiled block would change them in both passes.
    """
    *earlier, _ = network._modules.items()  # named_children skips repeated blocks
    buffered = (name for name, block in earlier if block is not None and [*block.buffers()])
    return next(buffered, None)


def why_not_recomputed(
    network: nn.Sequential,
    spec: DatasetSpec,
    floating: torch.dtype,
    instead: str,
    *,
    with_graph: bool = True,
) -> Reason | None:
    """Why a second pass with the same random numbers gives something else; None if it does not.

    A layer that counts its calls is an example.

    Args:
        network: stays as it is.
        spec: of the dataset.
        floating: type of the data's numbers, unless they are tokens.
        instead: the setting to write otherwise.
        with_graph: whether autograd sees the first pass.
    """
    with seeded(0):
        double = copy_of(network).train()
        inputs = made_up_inputs(spec, _SAMPLES, "cpu")
        if inputs.is_floating_point():
            inputs = inputs.to(floating)
        numbers = torch.get_rng_state()
        try:
            with torch.set_grad_enabled(with_graph):
                first = double(inputs)
            torch.set_rng_state(numbers)
            with torch.enable_grad(), with_copied_buffers(double):
                second = double(inputs)
        except RuntimeError as error:
            why = f"fails: {first_line(error)}"
        else:
            # The same operations give the same numbers, but for the last bits.
            few = 16 * torch.finfo(first.dtype).eps
            if torch.allclose(first, second, rtol=few, atol=few, equal_nan=True):
                return None
            why = "gives another result than the first one"
    sentence = f"a recomputed pass of the network {why}; write {instead}"
    return Reason("recomputation_differs", sentence)
