"""One timed loop for every strategy.

::

    prepare | warm-up (dropped) | barrier | epoch 1 | epoch 2 | ...   | one step for memory
                                          |<------ measured ------>|
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ddlbench.runtime.meters import Utilisation
from ddlbench.strategies.executor import Executor, RunRecord

__all__ = ["Extent", "Measurement", "measure"]


@dataclass(frozen=True)
class Extent:
    """How long a cell is measured.

    Args:
        warmup_steps: dropped steps.
        epochs: measured epochs.
        steps_per_epoch: steps of each.
    """

    warmup_steps: int
    epochs: int
    steps_per_epoch: int

    @property
    def measured_steps(self) -> int:
        """Steps of all measured epochs."""
        return self.epochs * self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Warm-up included."""
        return self.warmup_steps + self.measured_steps


@dataclass(frozen=True)
class Measurement:
    """What one process saw."""

    warmup: RunRecord
    measured: RunRecord
    utilisation: Utilisation


def measure(
    executor: Executor,
    extent: Extent,
    devices: Sequence[torch.device],
    threads: int,
    barrier: Callable[[], None] = lambda: None,
) -> Measurement:
    """Warm up, wait for the others, run the measured epochs without a pause between them."""
    warmup = executor.run(0, extent.warmup_steps)
    barrier()
    with Utilisation(devices, threads) as utilisation:
        measured = executor.run(extent.warmup_steps, extent.measured_steps)
    return Measurement(warmup, measured, utilisation)
