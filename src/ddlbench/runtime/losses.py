"""The losses of a run, in files that know no NaN: a loss that is no number is written as null.

A run that diverges is measured all the same - its steps take their time - and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["as_written", "divergence", "mean_over_ranks", "summary"]


def as_written(losses: Sequence[float]) -> list[float | None]:
    """What a rank's report holds: null in the place of NaN and infinity."""
    return [float(loss) if math.isfinite(loss) else None for loss in losses]


def mean_over_ranks(reports: Sequence[Mapping[str, Any]], name: str = "loss") -> list[float]:
    """Mean loss of each step over the ranks that have one; NaN where one of them is no number."""
    rows = [report[name] for report in reports if report[name]]
    if not rows:
        return []
    return [float(value) for value in np.mean(np.array(rows, dtype=float), axis=0)]


def summary(
    reports: Sequence[Mapping[str, Any]], steps_per_epoch: int
) -> dict[str, float | None] | None:
    """``loss`` of the result; None where no rank has any."""
    loss = mean_over_ranks(reports)
    if not loss:
        return None
    last_epoch = loss[-steps_per_epoch:]
    mean = sum(last_epoch) / len(last_epoch)
    first, last, mean_last_epoch = as_written([loss[0], loss[-1], mean])
    return {"first": first, "last": last, "mean_last_epoch": mean_last_epoch}


def divergence(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """The note of a run whose loss stopped being a number, warm-up included."""
    warmup = mean_over_ranks(reports, "warmup_loss")
    loss = warmup + mean_over_ranks(reports)
    first = next((step for step, value in enumerate(loss) if not math.isfinite(value)), None)
    if first is None:
        return []
    return [
        f"training diverged: the loss is no number from step {first + 1} of {len(loss)} on "
        f"({len(warmup)} of them warm-up)"
    ]
