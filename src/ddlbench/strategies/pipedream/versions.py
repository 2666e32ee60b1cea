"""Weight versions: a mini-batch goes backward through the weights that it went forward through.

::

    update            0   1   2   3
    version       0   1   2   3   4        newest: the module's own parameters
    used by          b3  b4  b5            kept for mini-batches under way, then freed

The optimizer works in place on the module's parameters. Before it does, these move to new memory if
a mini-batch still needs the old contents: so versions share nothing, and one that nobody needs
costs nothing.

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.3, "weight stashing".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

__all__ = ["WeightVersions"]


class WeightVersions:
    """The versions of one stage's weights.

    Args:
        module: the stage; its parameters are the newest version.
        optimizer: of these parameters.

    Attributes:
        newest: number of the newest version, which is the number of updates so far.
        most: most versions held at once.
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
        """A mini-batch is done with its version."""
        self._users[number] -= 1
        self._free()

    def expect(self, number: int) -> None:
        """Say which version is asked for next; older ones never again."""
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
        """Nothing is under way: only the newest version is kept."""
        self._users.clear()
        self.expect(self.newest)

    def tensors(self) -> Iterator[Tensor]:
        """All weights of all versions that are held."""
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
