"""Losses of a cell, and the ``training`` part of its result, of what its ranks reported.

::

    ranks    warmup_loss, loss       mean over the ranks that report losses, step by step
    result   training.first_loss     warm-up | measured steps, the first 8
             loss                    measured steps: first, last, mean of the last epoch
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ddlbench.experiment.training import FIRST_STEPS, Loss, Training
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.trainable import samples_per_pass
from ddlbench.runtime.rank_report import RankReport, as_written


def training_of(plan: StrategyPlan, reports: Sequence[RankReport]) -> Training:
    """The ``training`` part of a cell that is ok."""
    digests = sorted({r.initial_digest for r in reports if r.initial_digest is not None})
    replayed = mean_over_ranks([report.replayed_loss for report in reports])
    return Training(
        initial_digest="+".join(digests) or None,
        first_loss=tuple(as_written(_all_losses(reports)[:FIRST_STEPS])),
        replayed_loss=tuple(as_written(replayed)),
        samples_per_pass=samples_per_pass(plan),
        batch_norm=any(report.batch_norm for report in reports),
        random=any(report.random for report in reports),
        settings=reports[0].torch_settings,
    )


def mean_over_ranks(losses: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean loss of each step over the ranks that report losses; NaN if one of them is None."""
    rows = [of_rank for of_rank in losses if of_rank]
    if not rows:
        return []
    return [float(value) for value in np.mean(np.array(rows, dtype=float), axis=0)]


def _all_losses(reports: Sequence[RankReport]) -> list[float]:
    """Mean losses of warm-up and measured steps."""
    warmup = mean_over_ranks([report.warmup_loss for report in reports])
    return warmup + mean_over_ranks([report.loss for report in reports])


def loss_summary(reports: Sequence[RankReport], steps_per_epoch: int) -> Loss | None:
    """The ``loss`` part of a result; None if no rank reports losses."""
    loss = mean_over_ranks([report.loss for report in reports])
    if not loss:
        return None
    last_epoch = loss[-steps_per_epoch:]
    mean = sum(last_epoch) / len(last_epoch)
    return Loss(*as_written([loss[0], loss[-1], mean]))


def divergence(reports: Sequence[RankReport]) -> list[str]:
    """The note on a run whose loss became NaN or infinite, warm-up included; empty if none did."""
    loss = _all_losses(reports)
    warmup = len(loss) - len(mean_over_ranks([report.loss for report in reports]))
    first = next((step for step, value in enumerate(loss) if not math.isfinite(value)), None)
    if first is None:
        return []
    return [
        f"training diverged: the loss is no number from step {first + 1} of {len(loss)} on "
        f"({warmup} of them warm-up)"
    ]
