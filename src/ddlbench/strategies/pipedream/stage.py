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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]
"""A version of a stage's parameters, by name."""


@dataclass
class _Passage:
    """One mini-batch between its forward and its backward pass."""

    inputs: Tensor
    outputs: Tensor
    weights: Weights


class _Holder(nn.Module):
    """Runs functions while its blocks hold other weights than their own.

    A block may run code in the backward pass as well: recomputation, or a hook. So both passes of a
    mini-batch run within its version.
    """

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, function: Callable[[], Tensor | None]) -> Tensor | None:
        """What the function returns."""
        return function()

    def within(self, weights: Weights, function: Callable[[], Tensor | None]) -> Tensor | None:
        """Run a function with ``weights`` in place of the blocks' parameters."""
        held = {f"blocks.{name}": weight for name, weight in weights.items()}
        outputs: Tensor | None = functional_call(self, held, (function,))
        return outputs


class Stage:
    """The blocks of one stage.

    Buffers (batch-norm statistics) have no versions: they follow the order of the forward passes,
    as in the original.

    Args:
        blocks: the stage's part of the network.
        first: whether its inputs are data, which need no gradient.
        loss_function: of the last stage, (outputs, labels) -> mean over the mini-batch; else None.
        runs_backward: whether blocks may run code of their own in a backward pass, which then needs
            the version, too. Giving it takes some tenths of a millisecond.
    """

    def __init__(
        self,
        blocks: nn.Sequential,
        first: bool,
        loss_function: Callable[[Tensor, Tensor], Tensor] | None,
        *,
        runs_backward: bool = True,
    ) -> None:
        self._holder = _Holder(blocks)
        self._first = first
        self._loss_function = loss_function
        self._runs_backward = runs_backward
        self._under_way: dict[int, _Passage] = {}

    def forward(
        self, number: int, inputs: Tensor, weights: Weights, labels: Tensor | None
    ) -> Tensor:
        """(N, ...) -> output, or the loss on the last stage: contiguous and detached."""
        if not self._first:
            inputs.requires_grad_()
        outputs = self._holder.within(weights, partial(self._holder.blocks, inputs))
        assert outputs is not None
        if self._loss_function is not None:
            assert labels is not None
            outputs = self._loss_function(outputs, labels)
        self._under_way[number] = _Passage(inputs, outputs, weights)
        return outputs.detach().contiguous()

    def backward(
        self, number: int, gradient: Tensor | None
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Gradients of the inputs (None on the first stage) and of the weights, in their order.

        A weight that is not trained, or not used, has none.

        Args:
            number: of the mini-batch, whose activations are freed.
            gradient: of the outputs; None on the last stage.
        """
        passage = self._under_way.pop(number)
        weights = list(passage.weights.values())
        if passage.outputs.requires_grad:  # else nothing of this stage is trained
            backward = partial(torch.autograd.backward, passage.outputs, gradient)
            if self._runs_backward:
                self._holder.within(passage.weights, backward)
            else:
                backward()
        gradients = [weight.grad for weight in weights]
        for weight in weights:  # other mini-batches may use the version, too
            weight.grad = None
        if self._first:
            return None, gradients
        of_inputs = passage.inputs.grad
        if of_inputs is None:  # the stage before waits for a gradient, whatever it is
            of_inputs = torch.zeros_like(passage.inputs)
        return of_inputs.contiguous(), gradients


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

    def acquire(self, number: int) -> Weights:
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

    def update(self, gradients: Sequence[Tensor | None]) -> None:
        """One step of the optimizer; gradients in the order of the module's parameters."""
        if self._users[self.newest] or self._needed <= self.newest:
            for parameter in self._parameters.values():
                if parameter.requires_grad:  # the others never change
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

    def complete(self, gradients: Sequence[Tensor | None] | None) -> list[Tensor]:
        """Dense gradients of the trained weights, zeros for those that are missing.

        A replica that has no mini-batch has None.
        """
        parameters = list(self._parameters.values())
        known = gradients or [None] * len(parameters)
        return [
            torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
            for parameter, gradient in zip(parameters, known, strict=True)
            if parameter.requires_grad
        ]

    def in_their_places(self, gradients: Iterable[Tensor]) -> list[Tensor | None]:
        """Gradients of the trained weights, with None for the others."""
        values = iter(gradients)
        return [next(values) if p.requires_grad else None for p in self._parameters.values()]

    def settle(self) -> None:
        """Keep the newest version only, as no mini-batch is in flight."""
        self._users.clear()
        self.expect(self.newest)

    def tensors(self) -> Iterator[Tensor]:
        """The weights of all held versions."""
        for weights in self._versions.values():
            yield from weights.values()

    def _view(self) -> Weights:
        # .data shares memory but not autograd's count of in-place changes.
        return {
            name: p.data.requires_grad_(p.requires_grad) for name, p in self._parameters.items()
        }

    def _free(self) -> None:
        below = min(self._needed, self.newest)
        for number in [n for n in self._versions if n < below and not self._users[n]]:
            del self._versions[number]
            del self._users[number]
