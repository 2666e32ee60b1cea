"""The ``timing`` part of a result, from the times that all ranks report.

Steps need not be alike: a strategy may communicate in every H-th only (``Strategy.round_steps``).
The median of single steps would then hide the communication, so steps are summarised as the mean
step of whole rounds::

    steps     | s | s | s | s ++++ | s | s | s | s ++++ | s | s |      ++++ communication, H = 4
    summary   |  mean of 4 steps   |  mean of 4 steps   | left out

H consecutive steps hold one communication wherever they begin, so rounds are counted from the first
measured step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlbench.common.statistics import median_interval, round_means
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import FEWEST_STEPS, Epoch, StepSummary, Timing
from ddlbench.planning.strategy import DeviceKind, strategy_of
from ddlbench.runtime.disturbance import disturbance_of
from ddlbench.runtime.rank_report import RankReport

CLOCKS = {
    "cpu": "time.perf_counter of each host after every step",
    "cuda": "CUDA events on every device after each step, read once the devices were idle",
}
WARMUP_RULE = "the first warmup_steps steps of the run are trained and dropped"
BARRIER_RULE = "all ranks wait for each other once, between warm-up and the first epoch"
COMBINED_RULE = "a step is as long as its slowest rank, an epoch as the slowest rank's steps"
ROUNDS_RULE = (
    "step_s is of mean steps of whole rounds of {} steps, a round as long as its slowest rank; "
    "epoch_s and samples_per_s are of whole rounds"
)


# A run is flagged as noisy if (p75 - p25) / median of its steps exceeds this.
NOISY_SPREAD = 0.25


def timing_of(
    cell: Cell,
    reports: Sequence[RankReport],
    device_kind: DeviceKind,
    *,
    lossy: bool = False,
    suspended_s: float | None = None,
) -> Timing:
    """The ``timing`` part of a result, from the reports of all ranks."""
    rank_step_s = np.array([report.step_s for report in reports])  # (ranks, steps of all epochs)
    round_steps = strategy_of(cell.strategy).round_steps(cell)
    step_s = np.max([round_means(own_s, round_steps) for own_s in rank_step_s], axis=0)
    load_s = np.max([report.load_s for report in reports], axis=0)
    steps = reports[0].steps_per_epoch
    samples = steps * cell.batch_size
    dataset_samples = reports[0].dataset_samples
    epoch_s = rank_step_s.reshape(len(reports), cell.epochs, steps).sum(axis=2).max(axis=0)
    mean_epoch_s = float(epoch_s.mean())
    if steps % round_steps:  # its epochs hold more communication than others, or less
        whole = rank_step_s.shape[1] // round_steps * round_steps
        mean_epoch_s = float(rank_step_s[:, :whole].mean(axis=1).max()) * steps
    quartiles = np.percentile(step_s, [25, 50, 75])
    known = len(step_s) >= FEWEST_STEPS and quartiles[1] > 0
    spread = float((quartiles[2] - quartiles[0]) / quartiles[1]) if known else None
    disturbance = disturbance_of(cell, reports, lossy=lossy, suspended_s=suspended_s)
    return Timing(
        clock=CLOCKS[device_kind],
        device_synchronised=True,
        barrier=BARRIER_RULE,
        combined=COMBINED_RULE if round_steps == 1 else ROUNDS_RULE.format(round_steps),
        warmup_rule=WARMUP_RULE,
        warmup_steps=cell.warmup_steps,
        epochs=tuple(
            Epoch(
                epoch=epoch + 1,
                steps=steps,
                samples=samples,
                elapsed_s=float(epoch_s[epoch]),
                load_s=float(load_s[epoch * steps : (epoch + 1) * steps].sum()),
            )
            for epoch in range(cell.epochs)
        ),
        steps_per_epoch=steps,
        samples_per_epoch=samples,
        dataset_samples=dataset_samples,
        step_s=_step_summary(step_s, rank_step_s.shape[1]),
        step_spread=spread,
        noisy=None if spread is None else spread > NOISY_SPREAD,
        epoch_s=mean_epoch_s * dataset_samples / samples,
        epoch_scaled=samples != dataset_samples,
        samples_per_s=samples / mean_epoch_s if mean_epoch_s > 0 else None,
        load_s=max(sum(report.load_s) for report in reports),
        prepare_s=max(report.prepare_s for report in reports),
        median_samples_per_s=cell.batch_size / float(quartiles[1]) if quartiles[1] > 0 else None,
        pauses=disturbance.pauses,
        suspended_s=disturbance.suspended_s,
        stalled_steps=disturbance.stalled_steps,
        disturbed=disturbance.sentence,
    )


def rounds_note(round_steps: int, steps: int) -> list[str]:
    """The note on measured steps that are no whole rounds; empty if they are."""
    if steps % round_steps == 0:
        return []
    return [
        f"{steps} measured steps are no whole rounds of {round_steps} steps: the step and the rate "
        f"are of the first {steps - steps % round_steps}, the bytes of all; choose max_steps and "
        f"epochs so that steps are a multiple of {round_steps}"
    ]


def _step_summary(step_s: np.ndarray, count: int) -> StepSummary:
    ends = median_interval(step_s).ends()
    return StepSummary(
        median_s=float(np.median(step_s)),
        low_s=None if ends is None else ends[0],
        high_s=None if ends is None else ends[1],
        mean_s=float(step_s.mean()),
        p95_s=float(np.percentile(step_s, 95)),
        p99_s=float(np.percentile(step_s, 99)),
        count=count,
    )
