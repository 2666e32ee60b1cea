"""The losses of a run, in files that know no NaN: a loss that is no number is written as null.

A run that diverges is measured all the same - its steps take their time - and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ddlbench.experiment.result_parts import Loss
from ddlbench.runtime.rank_report import RankReport

__all__ = ["as_written", "divergence", "mean_over_ranks", "summary"]


def as_written(losses: Sequence[float]) -> list[float | None]:
    """What a rank's report holds: null in the place of NaN and infinity."""
    return [float(loss) if math.isfinite(loss) else None for loss in losses]


def mean_over_ranks(losses: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean loss of each step over the ranks that have one; NaN where one of them is no number."""
    rows = [of_rank for of_rank in losses if of_rank]
    if not rows:
        return []
    return [float(value) for value in np.mean(np.array(rows, dtype=float), axis=0)]


def summary(reports: Sequence[RankReport], steps_per_epoch: int) -> Loss | None:
    """``loss`` of the result; None where no rank has any."""
    loss = mean_over_ranks([report.loss for report in reports])
    if not loss:
        return None
    last_epoch = loss[-steps_per_epoch:]
    mean = sum(last_epoch) / len(last_epoch)
    return Loss(*as_written([loss[0], loss[-1], mean]))


def divergence(reports: Sequence[RankReport]) -> list[str]:
    """The note of a run whose loss stopped being a number, warm-up included."""
    warmup = mean_over_ranks([report.warmup_loss for report in reports])
    loss = warmup + mean_over_ranks([report.loss for report in reports])
    first = next((step for step, value in enumerate(loss) if not math.isfinite(value)), None)
    if first is None:
        return []
    return [
        f"training diverged: the loss is no number from step {first + 1} of {len(loss)} on "
        f"({len(warmup)} of them warm-up)"
    ]
