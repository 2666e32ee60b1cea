"""From the reports of the ranks to one result.

A step is as long as its slowest rank; an epoch is as long as the slowest rank's sum of steps.
Means are taken over seconds; rates are derived once, at the end.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result_parts import Epoch, RankEntry, StepSummary, Timing
from ddlbench.experiment.statistics import median_interval
from ddlbench.planning.strategy import DeviceKind
from ddlbench.runtime.loop_rules import BARRIER_RULE, CLOCKS, COMBINED_RULE, WARMUP_RULE
from ddlbench.runtime.losses import mean_over_ranks
from ddlbench.runtime.rank_report import RankReport

__all__ = [
    "NOISY_SPREAD",
    "partitions_csv",
    "rank_entry",
    "steps_csv",
    "timing",
]

# Above this (p75 - p25) / median of the steps a run is flagged as noisy.
NOISY_SPREAD = 0.25


def timing(cell: Cell, reports: Sequence[RankReport], device_kind: DeviceKind) -> Timing:
    """The ``timing`` part of a result.

    Args:
        cell: what was measured.
        reports: one of each rank, all ok.
        device_kind: what clock was read.
    """
    step_s = np.max([report.step_s for report in reports], axis=0)
    load_s = np.max([report.load_s for report in reports], axis=0)
    steps = reports[0].steps_per_epoch
    samples = steps * cell.batch_size
    dataset_samples = reports[0].dataset_samples
    per_rank = np.array([report.step_s for report in reports]).reshape(
        len(reports), cell.epochs, steps
    )
    epoch_s = per_rank.sum(axis=2).max(axis=0)
    mean_epoch_s = float(epoch_s.mean())
    quartiles = np.percentile(step_s, [25, 50, 75])
    spread = float((quartiles[2] - quartiles[0]) / quartiles[1]) if quartiles[1] > 0 else None
    return Timing(
        clock=CLOCKS[device_kind],
        device_synchronised=True,
        barrier=BARRIER_RULE,
        combined=COMBINED_RULE,
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
        step_s=_summary(step_s),
        step_spread=spread,
        noisy=spread is not None and spread > NOISY_SPREAD,
        epoch_s=mean_epoch_s * dataset_samples / samples,
        epoch_scaled=samples != dataset_samples,
        samples_per_s=samples / mean_epoch_s if mean_epoch_s > 0 else None,
        load_s=max(sum(report.load_s) for report in reports),
        prepare_s=max(report.prepare_s for report in reports),
    )


def rank_entry(report: RankReport) -> RankEntry:
    """One entry of the result's ``ranks``."""
    kept = {one.name: getattr(report, one.name) for one in fields(RankEntry)}
    return RankEntry(**{**kept, "load_s": sum(report.load_s)})


def steps_csv(cell: Cell, reports: Sequence[RankReport]) -> str:
    """steps.csv: one row a step, warm-up (epoch 0) included; the slowest rank's seconds."""
    steps = reports[0].steps_per_epoch
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["epoch", "step", "warmup", "step_s", "load_s", "loss"])
    warmup = [(r.warmup_step_s, r.warmup_load_s, r.warmup_loss) for r in reports]
    measured = [(r.step_s, r.load_s, r.loss) for r in reports]
    for parts, epoch_of in ((warmup, lambda _i: 0), (measured, lambda i: i // steps + 1)):
        step_s = np.max([part[0] for part in parts], axis=0)
        load_s = np.max([part[1] for part in parts], axis=0)
        loss = mean_over_ranks([part[2] for part in parts])
        for index in range(len(step_s)):
            epoch = epoch_of(index)
            step = index if epoch == 0 else index % steps
            seconds = (f"{step_s[index]:.9g}", f"{load_s[index]:.9g}")
            mean_loss = f"{loss[index]:.6g}" if loss else ""
            writer.writerow([epoch, step, int(epoch == 0), *seconds, mean_loss])
    return text.getvalue()


def partitions_csv(reports: Sequence[RankReport]) -> str:
    """partitions.csv: one row a partition, micro-batch and kind of work; empty where none has any.

    Seconds from the start of one step after the timed region.
    """
    spans = [span for report in reports for span in report.partition_spans]
    if not spans:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["partition", "kind", "micro_batch", "start_s", "end_s"])
    for partition, kind, micro_batch, start_s, end_s in spans:
        writer.writerow([partition, kind, micro_batch, f"{start_s:.9g}", f"{end_s:.9g}"])
    return text.getvalue()


def _summary(step_s: np.ndarray) -> StepSummary:
    ends = median_interval(step_s).ends()
    return StepSummary(
        median_s=float(np.median(step_s)),
        low_s=None if ends is None else ends[0],
        high_s=None if ends is None else ends[1],
        mean_s=float(step_s.mean()),
        p95_s=float(np.percentile(step_s, 95)),
        p99_s=float(np.percentile(step_s, 99)),
        count=len(step_s),
    )
