"""What one stage computes for the mini-batches that it has under way.

::

    forward    inputs, weights of a version -> outputs (the loss, on the last stage)   | kept
    backward   gradient of the outputs -> gradients of the inputs and of that version  | freed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["Stage"]


@dataclass
class _Passage:
    """One mini-batch between its forward and its backward pass."""

    inputs: Tensor
    outputs: Tensor
    weights: dict[str, Tensor]


class Stage:
    """The blocks of one stage.

    Buffers (batch-norm statistics) are the module's own and follow the order of the forward
    passes, whatever the version of the weights, as in the original.

    Args:
        blocks: the stage's part of the network.
        first: its inputs are data and need no gradient.
        loss_function: of the last stage, (outputs, labels) -> mean over the mini-batch; else None.
    """

    def __init__(
        self,
        blocks: nn.Sequential,
        first: bool,
        loss_function: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> None:
        self._blocks = blocks
        self._first = first
        self._loss_function = loss_function
        self._under_way: dict[int, _Passage] = {}

    def forward(
        self, number: int, inputs: Tensor, weights: dict[str, Tensor], labels: Tensor | None
    ) -> Tensor:
        """What is sent on, or the loss: contiguous, without history.

        Args:
            number: of the mini-batch.
            inputs: (N, ...).
            weights: of the version that serves it.
            labels: (N,) on the last stage.
        """
        if not self._first:
            inputs.requires_grad_()
        outputs: Tensor = functional_call(self._blocks, weights, (inputs,))
        if self._loss_function is not None:
            assert labels is not None
            outputs = self._loss_function(outputs, labels)
        self._under_way[number] = _Passage(inputs, outputs, weights)
        return outputs.detach().contiguous()

    def backward(self, number: int, gradient: Tensor | None) -> tuple[Tensor | None, list[Tensor]]:
        """Gradients of the inputs (None on the first stage) and of the weights, in their order.

        Args:
            number: of the mini-batch, which is under way no longer.
            gradient: of the outputs; None on the last stage.
        """
        passage = self._under_way.pop(number)
        weights = list(passage.weights.values())
        wanted = weights if self._first else [passage.inputs, *weights]
        if not wanted or not passage.outputs.requires_grad:  # a first stage without weights
            return None, []
        found = torch.autograd.grad(passage.outputs, wanted, gradient, allow_unused=True)
        gradients = [
            torch.zeros_like(tensor) if value is None else value
            for tensor, value in zip(wanted, found, strict=True)
        ]
        if self._first:
            return None, gradients
        return gradients[0].contiguous(), gradients[1:]
