"""One timed loop for every strategy.

::

    prepare | warm-up (dropped) | barrier | epoch 1 | epoch 2 | ...   | one step for memory
                                          |<------ measured ------>|

With checkpoints the measured steps are run in segments, and a checkpoint is written behind each:
its time is no step's. A run that goes on from one warms up on steps whose effect it then
overwrites, so that no measured step is a cold one, and no step is trained twice::

    prepare | rehearsal (overwritten) | load | barrier | segment 3 | save | segment 4 | save ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch

from ddlbench.runtime.meters import Usage, Utilisation, mean_usage
from ddlbench.strategies.executor import Executor, RunRecord


@dataclass(frozen=True)
class Extent:
    """How long a cell is measured.

    Args:
        warmup_steps: dropped steps.
        epochs: measured epochs.
        steps_per_epoch: steps of each.
        checkpoint_every_steps: measured steps between two checkpoints; 0 for none.
    """

    warmup_steps: int
    epochs: int
    steps_per_epoch: int
    checkpoint_every_steps: int = 0

    @property
    def measured_steps(self) -> int:
        """Steps of all measured epochs."""
        return self.epochs * self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Warm-up included."""
        return self.warmup_steps + self.measured_steps

    def segments(self, done: int = 0) -> list[range]:
        """Ids of the mini-batches that follow ``done`` measured steps, cut behind checkpoints."""
        every = self.checkpoint_every_steps or max(1, self.measured_steps)
        ends = [*range((done // every + 1) * every, self.measured_steps, every)]
        cuts = [done, *ends, self.measured_steps]
        found = [range(a, b) for a, b in pairwise(cuts) if a < b]
        first = self.warmup_steps
        return [range(first + part.start, first + part.stop) for part in found]


@dataclass(frozen=True)
class Measurement:
    """What one process saw.

    Args:
        warmup, measured: of warm-up and of all measured steps so far.
        utilisation: of the processor and the GPUs in these.
        steps: measured steps that are done, by all processes together.
    """

    warmup: RunRecord
    measured: RunRecord
    utilisation: Usage
    steps: int

    def followed_by(self, record: RunRecord, usage: Usage, steps: int) -> Measurement:
        """With one more segment."""
        return replace(
            self,
            measured=self.measured.followed_by(record),
            utilisation=mean_usage((self.utilisation, usage)),
            steps=self.steps + steps,
        )


class Traffic(Protocol):
    """What the loop asks of a counter of bytes."""

    def start(self, done_steps: int) -> None:
        """Measured steps follow; so many are done."""
        ...

    def stop(self, done_steps: int) -> None:
        """So many measured steps are done, and no more follow."""
        ...


class Checkpoints(Protocol):
    """What the loop asks of checkpoints."""

    @property
    def resumes(self) -> bool:
        """Whether an earlier run left one."""
        ...

    def restore(self, executor: Executor, dry_run: Callable[[], object]) -> Measurement:
        """Rehearse, then go back to the checkpoint."""
        ...

    def save(self, executor: Executor, so_far: Measurement) -> None:
        """Write one; nothing is under way."""
        ...


def measure(
    executor: Executor,
    extent: Extent,
    devices: Sequence[torch.device],
    threads: int,
    barrier: Callable[[], None] = lambda: None,
    *,
    checkpoints: Checkpoints | None = None,
    traffic: Traffic | None = None,
) -> Measurement:
    """Warm up, wait for the others, run the measured epochs without a pause between them.

    Args:
        executor: prepared.
        extent: how long.
        devices: that this process drives.
        threads: that it computes with.
        barrier: returns once all processes have warmed up.
        checkpoints: where the extent has any.
        traffic: counts the bytes of the measured steps.
    """
    if checkpoints is not None and checkpoints.resumes:
        # One step at least: torch's DDP settles its buckets in the first.
        rehearsal = max(1, extent.warmup_steps)
        so_far = checkpoints.restore(executor, lambda: executor.run(0, rehearsal))
    else:
        so_far = Measurement(executor.run(0, extent.warmup_steps), RunRecord(), mean_usage(()), 0)
    if traffic is not None:  # before the barrier: until then no other rank sends
        traffic.start(so_far.steps)
    barrier()
    for part in extent.segments(so_far.steps):
        with Utilisation(devices, threads) as utilisation:
            record = executor.run(part.start, len(part))
        so_far = so_far.followed_by(record, utilisation.usage, len(part))
        if checkpoints is not None and so_far.steps % extent.checkpoint_every_steps == 0:
            checkpoints.save(executor, so_far)
    if traffic is not None:
        traffic.stop(so_far.steps)
    return so_far
