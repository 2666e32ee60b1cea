"""The timed loop of every strategy.

::

    prepare | warm-up (dropped) | barrier | epoch 1 | epoch 2 | ...   | one step for memory
                                          |<------ measured ------>|

With checkpoints the measured steps run in segments, with a checkpoint after each; its time belongs
to no step. A run that resumes from a checkpoint warms up first, so that no measured step runs cold;
the checkpoint then overwrites the effect of these steps::

    prepare | rehearsal (overwritten) | load | barrier | segment 3 | save | segment 4 | save ...

With validation a segment also ends with an epoch. Neither steps, nor utilisation, nor the count of
bytes contain the validation. A checkpoint after the same step follows it, and so holds its score::

    ... epoch 1 | validate | save | epoch 2 | validate | save ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch

from ddlbench.runtime.energy import EnergyMeter
from ddlbench.runtime.meters import Usage, Utilisation, mean_usage
from ddlbench.runtime.pauses import MeasuredTimes
from ddlbench.runtime.rank_report import Score
from ddlbench.runtime.rendezvous import TcpTraffic
from ddlbench.runtime.validation import Validator
from ddlbench.strategies.executor import Executor, RunRecord


@dataclass(frozen=True)
class Extent:
    """Steps of a cell."""

    warmup_steps: int  # dropped
    epochs: int
    steps_per_epoch: int
    checkpoint_every_steps: int = 0  # 0 for none
    validate_every_steps: int = 0  # 0 for never

    @property
    def measured_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Warm-up included."""
        return self.warmup_steps + self.measured_steps

    def segments(self, done: int = 0) -> list[range]:
        """Mini-batches after ``done`` measured steps, split at checkpoints and validations."""
        cuts = {done, self.measured_steps}
        for every in filter(None, (self.checkpoint_every_steps, self.validate_every_steps)):
            cuts |= set(range((done // every + 1) * every, self.measured_steps, every))
        first = self.warmup_steps
        return [range(first + a, first + b) for a, b in pairwise(sorted(cuts))]


@dataclass(frozen=True)
class Measurement:
    """Records of one process."""

    warmup: RunRecord
    measured: RunRecord  # all measured steps so far
    utilisation: Usage  # in the measured steps
    steps: int  # completed measured steps, the same number in all processes
    scores: tuple[Score, ...] = ()  # of rank 0

    def followed_by(self, record: RunRecord, usage: Usage, steps: int) -> Measurement:
        return replace(
            self,
            measured=self.measured.followed_by(record),
            utilisation=mean_usage((self.utilisation, usage)),
            steps=self.steps + steps,
        )


class Checkpoints(Protocol):
    """Checkpoints, as the loop uses them."""

    @property
    def resumes(self) -> bool:
        """Whether an earlier run left a checkpoint."""

    def restore(self, executor: Executor, rehearse: Callable[[], object]) -> Measurement:
        """Rehearse, then restore the checkpoint."""

    def save(self, executor: Executor, so_far: Measurement) -> None:
        """Write a checkpoint; no step is in progress."""


def measure(
    executor: Executor,
    extent: Extent,
    devices: Sequence[torch.device],
    threads: int,
    barrier: Callable[[], None] = lambda: None,
    *,
    checkpoints: Checkpoints | None = None,
    validation: Validator | None = None,
    traffic: TcpTraffic | None = None,
    energy: EnergyMeter | None = None,
    times: MeasuredTimes | None = None,
    segment_done: Callable[[int], None] = lambda _steps: None,
) -> Measurement:
    """Warm up, wait for the other ranks, and run the measured epochs.

    They follow without a pause, but for checkpoints and validation. ``barrier`` returns once all
    processes have warmed up; ``segment_done`` gets the steps of each call of ``run``.
    """
    if checkpoints is not None and checkpoints.resumes:
        # At least one step: torch's DDP rebuilds its buckets after the first.
        rehearsal = max(1, extent.warmup_steps)
        so_far = checkpoints.restore(executor, lambda: executor.run(0, rehearsal))
    else:
        so_far = Measurement(executor.run(0, extent.warmup_steps), RunRecord(), mean_usage(()), 0)
    if traffic is not None:  # before the barrier, as no rank sends until then
        traffic.start(so_far.steps)
    barrier()
    times = times or MeasuredTimes()
    for part in extent.segments(so_far.steps):
        with Utilisation(devices, threads, energy) as utilisation, times:
            record = executor.run(part.start, len(part))
        so_far = so_far.followed_by(record, utilisation.usage, len(part))
        segment_done(len(part))
        if validation is not None and so_far.steps % extent.validate_every_steps == 0:
            score = validation.score(executor, so_far.steps, traffic)
            so_far = replace(so_far, scores=so_far.scores + score)
        if checkpoints is not None and so_far.steps % extent.checkpoint_every_steps == 0:
            checkpoints.save(executor, so_far)
    if traffic is not None:
        traffic.stop(so_far.steps)
    return so_far
