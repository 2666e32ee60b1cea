"""After several steps a parallel strategy has the weights of sequential training.

The reference consumes the same mini-batch part by part, so that batch norm sees what a rank or a
micro-batch sees; gradients are averaged; dropout is off.
"""

from __future__ import annotations

import torch

from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import strategy_of
from ddlbench.testing.training import assert_same_weights, reference, train

__all__ = ["assert_cell_equals_sequential"]

_STEPS = 4


def assert_cell_equals_sequential(cell: Cell, parts: int) -> None:
    """Train a cell and its sequential reference in float32; compare weights and mean losses.

    Args:
        cell: what a data-parallel rank or a synchronous pipeline trains.
        parts: that a mini-batch is computed in: ranks, or micro-batches.
    """
    assert strategy_of(cell.strategy).supports(cell) is None
    expected, losses = reference(cell, parts, _STEPS)
    (ranks,) = train([cell], ((0, _STEPS),))
    for rank in ranks:
        assert_same_weights(rank["state"], expected, rtol=1e-4, atol=1e-5)
    mean_losses = torch.tensor([rank["loss"] for rank in ranks]).mean(dim=0)
    torch.testing.assert_close(mean_losses, torch.tensor(losses), rtol=1e-3, atol=1e-4)
