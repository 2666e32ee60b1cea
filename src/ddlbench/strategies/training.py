"""Loss and optimiser of a cell: every strategy trains with the same, and gets them here."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ddlbench.experiment.cell import Cell

__all__ = ["make_loss", "make_optimizer"]


class _SinglePrecision(nn.Module):
    """A loss that is computed in float32 where outputs are bfloat16."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, classes), (N,) -> ()."""
        if outputs.dtype == torch.bfloat16:
            outputs = outputs.float()
        loss: Tensor = self.function(outputs, labels)
        return loss


def make_loss(_cell: Cell) -> nn.Module:
    """The loss of outputs (N, classes) and labels (N,): its mean over the N samples."""
    return _SinglePrecision(nn.CrossEntropyLoss())


def make_optimizer(
    cell: Cell, parameters: Iterable[nn.Parameter], learning_rate: float | None = None
) -> torch.optim.Optimizer:
    """Plain SGD over ``parameters``, of which there may be none.

    Args:
        cell: gives learning rate and momentum.
        parameters: what this process updates.
        learning_rate: the cell's where left out.
    """
    rate = cell.learning_rate if learning_rate is None else learning_rate
    # A stage or a server may hold no weights, and torch's optimisers take no empty list.
    trained = list(parameters) or [nn.Parameter(torch.empty(0))]
    return torch.optim.SGD(trained, lr=rate, momentum=cell.momentum)
