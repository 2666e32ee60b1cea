"""Replays: one device trains what the ranks of a strategy with older weights train together.

Such a strategy names its replay (``Strategy.replay``), which lies in its folder. The replay is the
truth of tests and of ``ddlbench check``, and a cell's first losses are compared with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from torch import Tensor, nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.strategy import Strategy

Batch = tuple[Tensor, Tensor]
"""Inputs (N, ...) and labels (N,), or tokens (N, T) and (N, T)."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) -> mean over the samples."""

Run = tuple[int, Iterable[Batch]]
"""Mini-batches of a call of ``run``: how many it trains, and these, or the first of them."""


class Replay(Protocol):
    """A replay of a plan, as the module of a strategy defines it."""

    def __call__(
        self,
        plan: StrategyPlan,
        networks: Sequence[nn.Module],
        runs: Iterable[Run],
        loss_function: Loss,
    ) -> Iterator[tuple[float, ...]]:
        """Train the networks in place; yield the loss of each mini-batch on each of them.

        They have equal weights, and are as many as ``Strategy.replayed_networks`` says.
        """
        ...


def replay_of(strategy: Strategy) -> Replay | None:
    """The replay of a strategy; None if it needs none, or has none."""
    module_name, _, attribute = strategy.replay.partition(":")
    if not module_name:
        return None
    replay: Replay = getattr(importlib.import_module(module_name), attribute)
    return replay


def rate_of(cell: Cell, mini_batch: int) -> float:
    """Learning rate of a mini-batch's update: it rises linearly over the first steps."""
    steps = max(1, cell.learning_rate_warmup_steps)
    return cell.learning_rate * min(1.0, (mini_batch + 1) / steps)
