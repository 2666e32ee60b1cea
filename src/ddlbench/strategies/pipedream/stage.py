"""One stage of PipeDream: its passes, and the weight versions that they use.

::

    forward    inputs, weights of a version -> outputs (the loss, on the last stage)   | kept
    backward   gradient of the outputs -> gradients of the inputs and of that version  | freed

The backward pass of a mini-batch uses the weights of its forward pass (PipeDream, Narayanan et al.,
SOSP 2019, section 3.3, "weight stashing")::

    update            0   1   2   3
    version       0   1   2   3   4        newest: the module's own parameters
    used by          b3  b4  b5            kept for mini-batches in flight, then freed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call


@dataclass
class _Passage:
    """One mini-batch between its forward and its backward pass."""

    inputs: Tensor
    outputs: Tensor
    weights: dict[str, Tensor]


class Stage:
    """The blocks of one stage.

    Buffers (batch-norm statistics) have no versions: they follow the order of the forward passes,
    as in the original.

    Args:
        blocks: the stage's part of the network.
        first: whether its inputs are data, which need no gradient.
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
        """The output, or the loss on the last stage: contiguous and detached.

        Args:
            number: of the mini-batch.
            inputs: (N, ...).
            weights: of its version.
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
            number: of the mini-batch, whose activations are freed.
            gradient: of the outputs; None on the last stage.
        """
        passage = self._under_way.pop(number)
        weights = list(passage.weights.values())
        inputs = weights if self._first else [passage.inputs, *weights]
        if not inputs or not passage.outputs.requires_grad:  # a first stage without weights
            return None, []
        values = torch.autograd.grad(passage.outputs, inputs, gradient, allow_unused=True)
        gradients = [
            torch.zeros_like(tensor) if value is None else value
            for tensor, value in zip(inputs, values, strict=True)
        ]
        if self._first:
            return None, gradients
        return gradients[0].contiguous(), gradients[1:]


class WeightVersions:
    """The versions of one stage's weights.

    The optimiser updates the module's parameters in place. If a mini-batch still needs the old
    values, the parameters first move to new memory. So versions share no memory, and only needed
    ones take any.

    Args:
        module: the stage, whose parameters are the newest version.
        optimizer: of these parameters.

    Attributes:
        newest: number of the newest version: the updates so far.
        most: most versions held at once so far.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = dict(module.named_parameters())
        self._optimizer = optimizer
        self._needed = 0
        self._users: Counter[int] = Counter()
        self._versions = {0: self._view()}
        self.newest = 0
        self.most = 1

    def acquire(self, number: int) -> dict[str, Tensor]:
        """Weights of a version by name, as leaves of autograd; held until released."""
        self._users[number] += 1
        return self._versions[number]

    def release(self, number: int) -> None:
        """End a mini-batch's use of its version."""
        self._users[number] -= 1
        self._free()

    def expect(self, number: int) -> None:
        """Announce the version that is needed next; unused older ones are freed."""
        self._needed = number
        self._free()

    def update(self, gradients: Sequence[Tensor]) -> None:
        """One step of the optimizer; gradients in the order of the module's parameters."""
        if self._users[self.newest] or self._needed <= self.newest:
            for parameter in self._parameters.values():
                parameter.data = parameter.data.clone()
        else:
            del self._versions[self.newest]
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.newest += 1
        self._versions[self.newest] = self._view()
        self.most = max(self.most, len(self._versions))

    def no_gradients(self) -> list[Tensor]:
        """Zeros, as gradients of a replica that has no mini-batch."""
        return [torch.zeros_like(parameter) for parameter in self._parameters.values()]

    def settle(self) -> None:
        """Keep the newest version only, as no mini-batch is in flight."""
        self._users.clear()
        self.expect(self.newest)

    def tensors(self) -> Iterator[Tensor]:
        """The weights of all held versions."""
        for weights in self._versions.values():
            yield from weights.values()

    def _view(self) -> dict[str, Tensor]:
        # .data shares memory but not autograd's count of in-place changes.
        return {name: p.data.requires_grad_() for name, p in self._parameters.items()}

    def _free(self) -> None:
        below = min(self._needed, self.newest)
        for number in [n for n in self._versions if n < below and not self._users[n]]:
            del self._versions[number]
            del self._users[number]
