"""The baseline: the same network, data, loss and optimiser on one device."""

from __future__ import annotations

from ddlbench.strategies.executor import StepwiseExecutor

__all__ = ["SequentialExecutor"]


class SequentialExecutor(StepwiseExecutor):
    """Nothing is added to the plain step."""
